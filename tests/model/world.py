"""What the model knows: the state of each checkpoint, time, and what must hold at any moment."""

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
from cairn.catalog.job.segments import segments_at
from cairn.handles import SegmentHandle
from cairn.keygroups import range_of
from cairn.layout import generation_of, manifest_file
from cairn.savepoints.manifest_files import read_manifest
from cairn.segments.snapshot import snapshot
from cairn.storage import open_store
from metastore.models import Base
from tests.databases import stored_columns
from tests.model.application import EVERYTHING, KEY_GROUPS, State, applied, changes_of

MEMORY = Path("/dev/shm")
READABLE = ("COMPLETED", "CONFIRMED")
OF_JOBS = [table for table in Base.metadata.sorted_tables if "job_id" in table.columns]
_REMOVE_ROWS = "; ".join(f"DELETE FROM {table}" for table in OF_JOBS)  # noqa: S608 - fixed


class World:
    """A metastore, a storage, and the state that each checkpoint should have.

    Attributes:
        now_s: how much time has passed, by the database's clock and that of the machines.
        expected: the state of each checkpoint of the job that may still be read.
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
        self.timeline = 1
        self.expected: dict[tuple[str, int], State] = {}
        self._passed: list[tuple[float, float]] = []
        self._final: set[tuple[str, int]] = set()
        self._read: dict[tuple[str, int], tuple[str, ...]] = {}

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

    def pass_time(self, job_ids: list[str], seconds: float) -> None:
        """Makes all rows of jobs older."""
        self.now_s += seconds
        statement = _aged(seconds)

        def work(connection: Connection) -> None:
            # Without triggers: what happened when is part of what rows are.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text(statement), {"jobs": job_ids})

        self.catalog.run("letting time pass", work)
        # A little before: the clock of files is coarse, and none must look older than it is.
        self._passed.append((time.time() - 0.02, seconds))

    def seen_at(self, moment: datetime) -> datetime:
        """Returns when a file was made, as machines say after all time that has passed since."""
        made_s = moment.timestamp()
        return moment - timedelta(seconds=sum(s for at_s, s in self._passed if at_s > made_s))

    # ------------------------------------------------------------------ what must hold

    def learn(self, job_id: str) -> dict[int, str]:
        """Computes the states of checkpoints that may still change; returns those to be read."""
        found = self.rows(
            "SELECT checkpoint_id, parent_checkpoint, batch_id, status, parallelism"
            " FROM cairn.checkpoints WHERE job_id = :job AND status IN ('COMPLETED', 'CONFIRMED')"
            " ORDER BY checkpoint_id",
            job=job_id,
        )
        for row in found:
            key = (job_id, row.checkpoint_id)
            if key in self._final:
                continue
            if row.status == "CONFIRMED":
                # From now on nobody acknowledges it any more.
                self._final.add(key)
            state = dict(self.expected.get((job_id, row.parent_checkpoint or 0), {}))
            for subtask, attempt in self.rows(
                "SELECT subtask, task_attempt FROM cairn.subtask_acks"
                " WHERE job_id = :job AND checkpoint_id = :checkpoint",
                job=job_id,
                checkpoint=row.checkpoint_id,
            ):
                groups = EVERYTHING.intersect(range_of(subtask, row.parallelism, KEY_GROUPS))
                state = applied(state, changes_of(row.batch_id, attempt, groups))
            if self.expected.get(key) != state:
                self.expected[key] = state
                self._read.pop(key, None)
        return {row.checkpoint_id: row.status for row in found}

    def check_readable(self, job_id: str) -> None:
        """Every checkpoint that is retained or pinned reads bit for bit."""
        objects = self.objects(job_id)
        store = open_store(self.storage)
        for checkpoint_id in self.learn(job_id):
            handles = self._handles(job_id, checkpoint_id)
            missing = {h.path for h in handles} - objects.keys()
            assert not missing, f"checkpoint {checkpoint_id} needs {missing}"
            key, ids = (job_id, checkpoint_id), tuple(h.segment_id for h in handles)
            # Objects never change, so what was read before reads the same.
            if self._read.get(key) != ids:
                state = snapshot(store, handles, EVERYTHING, job=job_id)
                assert state == self.expected[key], (
                    f"checkpoint {checkpoint_id} has {state.items() - self.expected[key].items()}"
                    f" and lacks {self.expected[key].items() - state.items()}"
                )
                self._read[key] = ids

    def _handles(self, job_id: str, checkpoint_id: int) -> list[SegmentHandle]:
        return self.catalog.run(
            "reading", lambda c: segments_at(c, job_id, checkpoint_id, EVERYTHING)
        )

    def check_files(self, job_id: str) -> None:
        """Sealed files are there and whole, and every object has a row that knows it."""
        objects = self.objects(job_id)
        files = self.rows(
            "SELECT path, status, size_bytes, live_segments FROM cairn.physical_files"
            " WHERE job_id = :job AND status <> 'DELETED'",
            job=job_id,
        )
        for file in files:
            if file.status == "SEALED":
                assert objects.get(file.path) == file.size_bytes, f"{file.path} is not whole"
        unknown = objects.keys() - {file.path for file in files}
        assert not unknown, f"no row knows {sorted(unknown)}"

    def check_manifests(self, job_id: str) -> None:
        """Every pinned manifest restores its checkpoint from storage alone."""
        for checkpoint_id in self.manifests(job_id):
            found = read_manifest(f"{self.storage}/{manifest_file(job_id, checkpoint_id)}")
            handles = [handle for _, handle in found.manifest.handles()]
            state = snapshot(found.store, handles, EVERYTHING, job=job_id)
            assert state == self.expected[job_id, checkpoint_id]

    def manifests(self, job_id: str) -> list[int]:
        """Returns the checkpoints that are kept and have a whole manifest."""
        found = self.rows(
            "SELECT first_checkpoint AS n FROM cairn.placed_segments JOIN cairn.checkpoints AS c"
            " ON c.job_id = placed_segments.job_id AND c.checkpoint_id = first_checkpoint"
            " WHERE placed_segments.job_id = :job AND kind = 'manifest'"
            " AND placed_segments.status = 'LIVE' AND c.status = 'CONFIRMED'",
            job=job_id,
        )
        return [row.n for row in found]

    def objects(self, job_id: str) -> dict[str, int]:
        """Returns the sizes of a job's objects but for its owner objects, past all gates."""
        found: dict[str, int] = {}
        for directory, _, names in os.walk(self.root / job_id):
            for name in names:
                path = Path(directory) / name
                found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return {path: size for path, size in found.items() if generation_of(path) is None}

    def dump(self, job_id: str) -> dict[str, list[Any]]:
        """Returns all rows of a job, by table."""
        return {
            table.name: [
                row.data
                for row in self.rows(
                    f"SELECT to_jsonb(t) AS data FROM {table} AS t"  # noqa: S608 - fixed
                    " WHERE job_id = :job ORDER BY 1",
                    job=job_id,
                )
            ]
            for table in OF_JOBS
        }

    def restore(self, job_id: str, rows: Mapping[str, list[Any]]) -> None:
        """Makes the rows of a job those of a backup, in a history of its own."""

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
        # The ids of the lost checkpoints may be given again.
        self._read.clear()
        self._final.clear()


def _aged(seconds: float) -> str:
    statements = []
    for table in OF_JOBS:
        moments = [column.name for column in table.columns if isinstance(column.type, DateTime)]
        if moments:
            changes = ", ".join(f"{name} = {name} - interval '{seconds} s'" for name in moments)
            statements.append(f"UPDATE {table} SET {changes} WHERE job_id = ANY (:jobs)")  # noqa: S608
    return "; ".join(statements)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes ids follow from a seed, so that a run can be played again; uuid4 is made of these."""
    with patch.object(os, "urandom", random.Random(seed).randbytes):
        yield
