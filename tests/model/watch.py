"""Whether anything has changed since the last look, for the price of one short statement."""

from __future__ import annotations

from typing import Any

from metastore.models import Base
from tests.databases import connect

OF_JOBS = [table for table in Base.metadata.sorted_tables if "job_id" in table.columns]

Rows = dict[str, tuple[int, int]]
"""By table: how many rows it has, and the newest transaction that has written one of them."""

# An insert and an update leave a newer transaction's id, and a delete a row less.
_ROWS = " UNION ALL ".join(
    f"SELECT '{table.name}', count(*), coalesce(max(CAST(CAST(xmin AS text) AS bigint)), 0)"  # noqa: S608
    f" FROM {table}"
    for table in OF_JOBS
)


class Watch:
    """A connection of its own, beside all that is tried, whose statements are planned once.

    Attributes:
        transactions: how many were begun, by whomever.
        requests: how many a store was sent.
    """

    def __init__(self, url: str, **statements: str) -> None:
        self.transactions = 0
        self.requests = 0
        self._rows: Rows = {}
        self._at = -1
        self._connection = connect(url)
        self._cursor = self._connection.connection.cursor()
        for name, statement in {"rows": f"AS {_ROWS}", **statements}.items():
            self._cursor.execute(f"PREPARE {name} {statement}")

    def rows(self) -> Rows:
        """Returns what tells whether any row of any job has changed."""
        if self._at != self.transactions:
            self._rows = {name: (count, newest) for name, count, newest in self.execute("rows")}
            self._at = self.transactions
        return self._rows

    def execute(self, name: str, *values: str | int) -> list[tuple[Any, ...]]:
        """Returns the rows of a prepared statement."""
        given = ", ".join(["%s"] * len(values))
        self._cursor.execute(f"EXECUTE {name}({given})" if values else f"EXECUTE {name}", values)
        return list(self._cursor.fetchall())

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()
