"""What statements touch: their plans, and the rows and pages that PostgreSQL counts for them.

The counters are of the whole statement: of what functions, triggers and foreign keys read, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import pytest
from psycopg2.extensions import connection, cursor

from cairn.catalog.connections import _Connection, _Cursor
from metastore.models import Base

BOUNDED = {
    "directories",
    "good_runs",
    "history_days",
    "jobs",
    "materialization_totals",
    "metastore",
    "ownerships",
    "pins",
    "damaged_segments",  # a scrub stops at 10,000 of a job
    "run_requests",
    "runs",
    "state_variables",
    "tenants",
    "upload_totals",
}
"""Tables that grow with days, restarts and what people do. All others grow with every batch."""
HISTORY = {table.name for table in Base.metadata.sorted_tables} - BOUNDED

# Of each table with its indexes and what is stored apart. Entries of indexes count as rows: all
# that an index scan finds, whatever is left of it.
_TOUCHED = """
    WITH relations AS MATERIALIZED (
        SELECT t.relname AS name, t.oid AS heap, r.oid AS relation, r.relkind AS kind
        FROM pg_catalog.pg_class AS t
        JOIN LATERAL (
            SELECT o.oid, o.relkind FROM pg_catalog.pg_class AS o
            WHERE o.oid IN (t.oid, t.reltoastrelid)
            UNION ALL
            SELECT x.indexrelid, CASE WHEN x.indrelid = t.oid THEN 'i'::"char" ELSE 't' END
            FROM pg_catalog.pg_index AS x WHERE x.indrelid IN (t.oid, t.reltoastrelid)
        ) AS r ON TRUE
        WHERE t.relnamespace = 'cairn'::regnamespace AND t.relkind = 'r'
    )
    SELECT
        name,
        sum(pg_stat_get_xact_blocks_fetched(relation)),
        sum(pg_stat_get_xact_tuples_returned(relation)) FILTER (WHERE kind IN ('r', 'i')),
        sum(pg_stat_get_xact_tuples_returned(relation)) FILTER (WHERE kind = 'r')
    FROM relations GROUP BY name
"""


@dataclass(frozen=True, slots=True)
class Touched:
    """Of one table: pages of it and its indexes, rows and entries found, rows scanned one by one.

    A page that is read twice counts twice.
    """

    pages: int = 0
    rows: int = 0
    scanned: int = 0

    def __sub__(self, other: Touched) -> Touched:
        return Touched(
            self.pages - other.pages, self.rows - other.rows, self.scanned - other.scanned
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that was executed: its plans, and what it touched by table."""

    sql: str
    plans: list[dict[str, Any]]
    touched: dict[str, Touched]

    @property
    def pages(self) -> int:
        """Pages of all tables."""
        return sum(one.pages for one in self.touched.values())

    @property
    def rows(self) -> int:
        """Rows and index entries of all tables."""
        return sum(one.rows for one in self.touched.values())

    @property
    def full_scans(self) -> list[str]:
        """The tables of `HISTORY` that a plan, or anything that it calls, reads from end to end."""
        planned = {
            node["Relation Name"]
            for plan in self.plans
            for node in _nodes(plan)
            if node["Node Type"] == "Seq Scan"
        }
        scanned = {name for name, one in self.touched.items() if one.scanned}
        return sorted(HISTORY & (planned | scanned))

    def __str__(self) -> str:
        """Returns the statement's beginning and what it touched."""
        found = {name: one for name, one in sorted(self.touched.items()) if one.pages}
        by_table = ", ".join(
            f"{name} {one.pages} pages {one.rows} rows" for name, one in found.items()
        )
        return f"{' '.join(self.sql.split())[:150]} …: {by_table}"


@contextmanager
def watching() -> Iterator[list[Statement]]:
    """Collects the statements that any connection of this process executes meanwhile."""
    seen: list[Statement] = []

    class Watched(_Cursor):
        def execute(self, query: str, vars: Any = None) -> None:  # type: ignore[override]
            with _watched(self.connection, query, vars, seen):
                super().execute(query, vars)

        def executemany(self, query: str, vars_list: Sequence[Any]) -> None:  # type: ignore[override]
            with _watched(self.connection, query, vars_list[0], seen):
                super().executemany(query, vars_list)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Connection, "cursor", partialmethod(_open_cursor, Watched))
        yield seen


def _open_cursor(
    self: _Connection, factory: type[cursor], *args: Any, cursor_factory: Any = None, **named: Any
) -> cursor:
    return connection.cursor(self, *args, cursor_factory=cursor_factory or factory, **named)


@contextmanager
def _watched(
    opened: _Connection, sql: str, parameters: Any, seen: list[Statement]
) -> Iterator[None]:
    # What sets something has no plan, and may have to be the first of its transaction.
    if sql.lstrip().upper().startswith("SET "):
        yield
        return
    with opened.cursor(cursor_factory=cursor) as own:
        if opened.is_idle:
            own.execute(opened.opening)
        plans = []
        for part in re.sub("--[^\n]*", "", sql).split(";"):
            if part.strip():
                own.execute(f"EXPLAIN (FORMAT JSON) {part}", parameters)
                plans.append(own.fetchall()[0][0][0]["Plan"])
        before = _touched(own)
        yield
        touched = {name: one - before[name] for name, one in _touched(own).items()}
    seen.append(Statement(sql, plans, touched))


def _touched(own: cursor) -> Mapping[str, Touched]:
    own.execute(_TOUCHED)
    return {name: Touched(*(int(n or 0) for n in numbers)) for name, *numbers in own.fetchall()}


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
