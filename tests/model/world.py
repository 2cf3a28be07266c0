"""A metastore and a storage, and time, which passes by making all rows and files older."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, DateTime, text

from cairn.catalog.catalog import Catalog
from cairn.layout import generation_of
from tests.databases import stored_columns
from tests.model.watch import OF_JOBS

MEMORY = Path("/dev/shm")
# At once, and so that no dead rows are left, which the next job's statements would read.
_REMOVE_ROWS = f"TRUNCATE {', '.join(map(str, OF_JOBS))}"
# Of each table one query, as planning a join of all would take longer than they do.
_DUMP = "SELECT jsonb_build_object({})".format(
    ", ".join(
        f"'{table.name}', (SELECT jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t))"  # noqa: S608 - fixed
        f" FROM {table} AS t WHERE job_id = :job)"
        for table in OF_JOBS
    )
)


class World:
    """What processes share.

    Attributes:
        now_s: how much time has passed, by the database's clock.
        skew_s: how far the clock of the storage is ahead of the database's.
        timeline: of the database: another one after each restored backup.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.directory = Path(
            mkdtemp(prefix="cairn-model-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        self.root = self.directory / "storage"
        self.root.mkdir()
        self.storage = self.root.as_uri()
        self.now_s = 0.0
        self.skew_s = 0.0
        self.timeline = 1
        self._passed: list[tuple[float, float]] = []

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def close(self) -> None:
        """Removes the storage, and all rows."""
        shutil.rmtree(self.directory)

        def work(connection: Connection) -> None:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.exec_driver_sql(_REMOVE_ROWS)
            if self.timeline > 1:
                self._be_on(connection, 1)

        self.catalog.run("removing all", work)

    def _be_on(self, connection: Connection, timeline: int) -> None:
        self.timeline = timeline
        made = "CREATE OR REPLACE FUNCTION cairn.timeline() RETURNS bigint LANGUAGE sql RETURN"
        connection.execute(text(f"{made} {timeline}"))

    def rows(self, statement: str, **values: Any) -> list[Any]:
        """Returns the rows of a statement, each with its columns by name."""
        with self.catalog.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    # ------------------------------------------------------------------ time

    def pass_time(self, seconds: float) -> None:
        """Makes all rows older, and by what machines say all files."""
        self.now_s += seconds
        self._age(seconds, None)
        # A little before: the clock of files is coarse, and none must look older than it is.
        self._passed.append((time.time() - 0.02, seconds))

    def _age(self, seconds: float, job_id: str | None) -> None:
        def work(connection: Connection) -> None:
            # Without triggers: what happened when is part of what rows are.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.exec_driver_sql(_aged(seconds, job_id))

        self.catalog.run("letting time pass", work)

    def seen_at(self, moment: datetime) -> datetime:
        """Returns when a file was made, as the storage says after all time that has passed since.

        That is, by the storage's clock.
        """
        made_s = moment.timestamp()
        passed_s = sum(seconds for at_s, seconds in self._passed if at_s > made_s)
        return moment + timedelta(seconds=self.skew_s - passed_s)

    # ------------------------------------------------------------------ what is there

    def manifests(self, job_id: str) -> list[int]:
        """Returns the checkpoints that are kept and have a whole manifest."""
        found = self.rows(
            "SELECT first_checkpoint AS n FROM cairn.placed_segments JOIN cairn.checkpoints AS c"
            " ON c.job_id = placed_segments.job_id AND c.checkpoint_id = first_checkpoint"
            " WHERE placed_segments.job_id = :job AND kind = 'manifest'"
            " AND placed_segments.status = 'LIVE' AND c.status = 'CONFIRMED'"
            " ORDER BY 1",
            job=job_id,
        )
        return [row.n for row in found]

    def objects(self, job_id: str) -> dict[str, int]:
        """Returns the sizes of a job's objects but for its owner objects, past all gates."""
        found: dict[str, int] = {}
        start = len(str(self.root)) + 1
        for directory, _, names in os.walk(self.root / job_id):
            for name in names:
                path = f"{directory}/{name}"
                found[path[start:]] = os.stat(path).st_size
        return {path: size for path, size in found.items() if generation_of(path) is None}

    # ------------------------------------------------------------------ backups

    def dump(self, job_id: str) -> dict[str, list[Any]]:
        """Returns all rows of a job, by table."""
        [[found]] = self.rows(_DUMP, job=job_id)
        return {name: found[name] or [] for name in sorted(found)}

    def restore(self, job_id: str, rows: Mapping[str, list[Any]], age_s: float) -> None:
        """Makes the rows of a job those of a backup of some age, in a history of its own."""

        def work(connection: Connection) -> None:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for table in OF_JOBS:
                name = f"cairn.{table.name}"
                gone = f"DELETE FROM {name} WHERE job_id = :job"  # noqa: S608 - fixed
                connection.execute(text(gone), {"job": job_id})
                columns = stored_columns(table)
                back = (
                    f"INSERT INTO {name} ({columns})"  # noqa: S608 - fixed
                    f" SELECT {columns} FROM unnest(CAST(:rows AS jsonb[])) AS one,"
                    f" jsonb_populate_record(CAST(NULL AS {name}), one)"
                )
                connection.execute(text(back), {"rows": [json.dumps(r) for r in rows[table.name]]})
            self._be_on(connection, self.timeline + 1)

        self.catalog.run("restoring a backup", work)
        self._age(age_s, job_id)


def _aged(seconds: float, job_id: str | None) -> str:
    which = "" if job_id is None else f" WHERE job_id = '{job_id}'"
    statements = []
    for table in OF_JOBS:
        moments = [column.name for column in table.columns if isinstance(column.type, DateTime)]
        if moments:
            changes = ", ".join(f"{name} = {name} - interval '{seconds} s'" for name in moments)
            statements.append(f"UPDATE {table} SET {changes}{which}")  # noqa: S608 - fixed
    return "; ".join(statements)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes ids follow from a seed, so that a run can be played again; uuid4 is made of these."""
    with patch.object(os, "urandom", random.Random(seed).randbytes):
        yield
