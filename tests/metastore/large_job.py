"""A job of P=1,000 on 64 executors with 100,000 live segments and a long history, by SQL alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from benchmarks.metastore_fill import fill
from benchmarks.metastore_shape import QUERY_ID, SEGMENT_BYTES, History, JobRef, share
from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.job.upload_stats import UploadStats
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import range_of
from cairn.layout import shared_directory, shared_file, task_manager_directory, task_manager_file
from metastore.enums import Scope, SegmentKind
from metastore.models import Base
from tests.databases import connect

PARALLELISM, MAX_PARALLELISM, EXECUTORS, RETAINED = 1000, 2048, 64, 3
LIVE_BATCHES = 100
DEAD_BATCHES = 5400
HISTORY = History(
    dead_batches=DEAD_BATCHES,
    live_batches=LIVE_BATCHES,
    groups=EXECUTORS,
    # Four times as many dead group commits as live ones: who reads them stands out. Of the narrow
    # rows of files there are more, or it would be right to read them all.
    bare_batches=DEAD_BATCHES - 4 * LIVE_BATCHES,
    max_parallelism=MAX_PARALLELISM,
)
NEWEST = HISTORY.batches
"""The newest confirmed checkpoint, and the batch that is next."""

# As if all executors but the first had committed the batch that is under way.
_ACKS_OF_OTHERS = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO cairn.group_commits
    SELECT (jsonb_populate_record(g, jsonb_build_object(
        'commit_id', gen_random_uuid(), 'checkpoint_id', :newest + 1
    ))).*
    FROM cairn.group_commits AS g
    WHERE g.job_id = :job AND g.checkpoint_id = :newest AND g.tm_id <> '1-000000000000'
    """,
    "SET LOCAL session_replication_role = origin",
)
_EARLIER_CLEANUPS = """
    INSERT INTO cairn.maintenance_runs (
        maintenance_run_id, job_id, action, plan, plan_sha256, status, result, finished_at
    )
    SELECT gen_random_uuid(), :job, 'subsumption', '{}', '', 'APPLIED', '{}', now()
    FROM generate_series(1, 5000)
"""
_EARLIER_DECISIONS = """
    INSERT INTO cairn.maintenance_decisions (maintenance_run_id, job_id, decision, reason, path)
    SELECT m.maintenance_run_id, :job, 'SKIPPED', 'another cleanup has condemned it', g
    FROM cairn.maintenance_runs AS m CROSS JOIN generate_series(1, 3) AS g
"""
# A file and a segment of each kind that has an index of its own. The planner reads an index that is
# empty each time it looks at the table, which no metastore of a while's work pays.
_NEIGHBOUR = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, batch_id, retry_of, maintenance_run_id, status,
        size_bytes, live_segments, live_bytes, dead_bytes, sealed_at
    )
    SELECT id, :job, 1, :job || '/taskmanager-owned/1-000000000000/' || id || '.seg',
        'taskmanager', 0, CASE WHEN kind = 'retry' THEN id END,
        CASE WHEN kind = 'maintenance' THEN id END,
        CASE WHEN kind = 'writing' THEN 'WRITING' ELSE 'SEALED' END, 3,
        CASE WHEN kind = 'empty' THEN 0 ELSE 1 END, 1,
        CASE WHEN kind = 'wasteful' THEN 2 ELSE 0 END, now()
    FROM (
        SELECT kind, gen_random_uuid() AS id
        FROM unnest(ARRAY['writing', 'empty', 'wasteful', 'retry', 'maintenance']) AS kind
    ) AS kinds
    """,
    """
    INSERT INTO cairn.placed_segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint, released_checkpoint
    )
    SELECT gen_random_uuid(), f.job_id, f.file_id, kind, 0, '[0,1)', 0, 1, '', 1, 1, 1, 2
    FROM cairn.physical_files AS f CROSS JOIN unnest(
        ARRAY['manifest', 'operator', 'changelog']
    ) AS kind
    WHERE f.job_id = :job AND f.maintenance_run_id IS NOT NULL
    """,
    "SET LOCAL session_replication_role = origin",
)
# Bases for all subtasks: all live batches can die but for what retained checkpoints need.
_MATERIALIZE = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO cairn.placed_segments
    SELECT (jsonb_populate_record(p, jsonb_build_object(
        'segment_id', gen_random_uuid(), 'as_of_checkpoint', :as_of, 'first_checkpoint', :as_of + 1
    ))).*
    FROM cairn.placed_segments AS p WHERE p.job_id = :job AND p.status = 'LIVE'
    """,
    """
    UPDATE cairn.placed_segments SET released_checkpoint = :as_of + 1
    WHERE job_id = :job AND status = 'LIVE' AND first_checkpoint <= :as_of
    """,
    "SET LOCAL session_replication_role = origin",
)


_GIVE_UP = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO cairn.directories (
        job_id, path, scope, subtask, parallelism, epoch, status, unclaimed_at
    )
    SELECT :job, :job || '/shared/subtask-' || s || '-' || :subtasks, 'shared', s, :subtasks, 1,
        'UNCLAIMED', now() - INTERVAL '1 day'
    FROM generate_series(0, :subtasks - 1) AS s
    """,
    """
    INSERT INTO cairn.directories (job_id, path, scope, tm_id, epoch, status, unclaimed_at)
    SELECT :job, :job || '/taskmanager-owned/0-' || g, 'taskmanager', '0-' || g, 1, 'UNCLAIMED',
        now() - INTERVAL '1 day'
    FROM generate_series(0, :executors - 1) AS g
    """,
    "SET LOCAL session_replication_role = origin",
)
# As if all but one in ten bytes of some files with bases had died.
_WASTE = (
    "SET LOCAL session_replication_role = replica",
    """
    UPDATE cairn.physical_files AS f
    SET size_bytes = 10 * f.live_bytes, dead_bytes = 9 * f.live_bytes
    WHERE f.file_id IN (
        SELECT p.file_id FROM cairn.placed_segments AS p
        WHERE p.job_id = :job AND p.status = 'LIVE' AND p.kind = 'keyed_full'
        LIMIT :files
    )
    """,
    "SET LOCAL session_replication_role = origin",
)
# As if the cleanups of the last hour had condemned as many files as those that are to be deleted.
_AGE_INTENTS = (
    "SET LOCAL session_replication_role = replica",
    """
    UPDATE cairn.deletions SET requested_at = now() - INTERVAL '1 day'
    WHERE job_id = :job AND done_at IS NULL
    """,
    """
    INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id, requested_at)
    SELECT gen_random_uuid(), :job, d.path, d.maintenance_run_id, now() - g * INTERVAL '1 second'
    FROM cairn.deletions AS d CROSS JOIN generate_series(1, 20) AS g
    WHERE d.job_id = :job AND d.done_at IS NULL
    """,
    "SET LOCAL session_replication_role = origin",
)


@dataclass(frozen=True)
class LargeJob:
    """The job; its batch `NEWEST` is next, and its checkpoint is `NEWEST` + 1."""

    url: str
    ref: JobRef

    @classmethod
    def create(cls, url: str) -> LargeJob:
        catalog = Catalog(url)
        registration = cls.registration()
        run = catalog.run("registering", lambda c: register_run(c, registration))
        ref = JobRef(registration.job, run.job_id, run.epoch, PARALLELISM, str(registration.run_id))
        with catalog.begin() as connection:
            fill(connection, ref, HISTORY)
            for statement in (_EARLIER_CLEANUPS, _EARLIER_DECISIONS):
                connection.execute(text(statement), {"job": run.job_id})
            neighbour = register_run(connection, cls.registration("neighbour")).job_id
            for statement in _NEIGHBOUR:
                connection.execute(
                    text(statement), {"job": neighbour} if ":job" in statement else {}
                )
        with connect(url) as connection:
            # Nor later by itself: what tests roll back would count in the statistics of others.
            for table in Base.metadata.sorted_tables:
                connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
            connection.execute(text("VACUUM (ANALYZE)"))
        return cls(url, ref)

    @staticmethod
    def registration(job: str = "large") -> Registration:
        return Registration(
            run_id=uuid4(),
            job=job,
            storage="file:///nowhere",
            parallelism=PARALLELISM,
            max_parallelism=MAX_PARALLELISM,
            num_retained=RETAINED,
            key_schema={"fields": []},
            states=[],
        )

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    @property
    def job_id(self) -> str:
        return self.ref.job_id

    def batch(self, epoch: int = 1, run_id: UUID | None = None) -> BatchRef:
        """Returns the batch that is next, of the first run or another one."""
        return BatchRef(
            job=self.ref.name,
            job_id=self.job_id,
            epoch=epoch,
            run_id=str(run_id or self.ref.run_id),
            query_id=QUERY_ID,
            batch_id=NEWEST,
        )

    def execute(self, connection: Connection, statements: Sequence[str], **facts: Any) -> None:
        for sql in statements:
            values = {"job": self.job_id, "newest": NEWEST, **facts}
            used = text(sql).compile().params.keys()
            connection.execute(text(sql), {name: values[name] for name in used})

    def begin(self, connection: Connection) -> None:
        begin_batch(connection, self.batch(), subtasks=self.subtasks())

    def subtasks(self, executor: int = 0) -> list[int]:
        return list(share(PARALLELISM, EXECUTORS, executor))

    def ack_of_others(self, connection: Connection) -> None:
        self.execute(connection, _ACKS_OF_OTHERS)

    def materialize(self, connection: Connection, as_of: int) -> None:
        """Adds a base of each subtask as of a checkpoint, from the one after it on."""
        self.execute(connection, _MATERIALIZE, as_of=as_of)

    def give_up_directories(self, connection: Connection) -> None:
        """Adds directories that are given up: of all subtasks, and empty ones of executors."""
        self.execute(connection, _GIVE_UP, subtasks=PARALLELISM, executors=EXECUTORS)

    def waste(self, connection: Connection, files: int) -> None:
        """Makes some files with bases ten times as large as what is live in them."""
        self.execute(connection, _WASTE, files=files)

    def age_intents(self, connection: Connection) -> None:
        """Makes the open intents a day old, and adds twenty for each that are young."""
        self.execute(connection, _AGE_INTENTS)

    def intend(self, connection: Connection, scope: Scope = Scope.TASK_MANAGER) -> IntendedFile:
        file_id, tm_id = str(uuid4()), "1-000000000000"
        if scope is Scope.TASK_MANAGER:
            path = task_manager_file(self.job_id, tm_id, file_id)
            file = IntendedFile(file_id=file_id, path=path, scope=scope, batch_id=NEWEST)
            directory = DirectoryHandle(
                path=task_manager_directory(self.job_id, tm_id), scope=scope, tm_id=tm_id
            )
        else:
            path = shared_file(self.job_id, 7, PARALLELISM, file_id)
            file = IntendedFile(file_id=file_id, path=path, scope=scope)
            directory = DirectoryHandle(
                path=shared_directory(self.job_id, 7, PARALLELISM),
                scope=scope,
                subtask=7,
                parallelism=PARALLELISM,
            )
        intend_files(connection, self.batch(), [file], [directory])
        return file

    def commit(self, file: IntendedFile) -> Callable[[Connection], None]:
        """Returns the transaction that acknowledges the subtasks of the first executor."""
        subtasks = self.subtasks()
        acks = [
            Ack(
                subtask=subtask,
                attempt_id=str(uuid4()),
                task_attempt=1,
                input_rows=10,
                restore_ms=5,
                segments=(
                    self.segment(subtask, SegmentKind.CHANGELOG, NEWEST + 1).at(
                        file.path, place * SEGMENT_BYTES
                    ),
                ),
            )
            for place, subtask in enumerate(subtasks)
        ]
        written = WrittenFile(file.file_id, len(acks) * SEGMENT_BYTES)

        def work(connection: Connection) -> None:
            acknowledge(
                connection,
                self.batch(),
                checkpoint_id=NEWEST + 1,
                tm_id="1-000000000000",
                acks=acks,
                files={file.path: written},
                uploads=[_stats(len(acks))],
            )

        return work

    def base(
        self, connection: Connection, kind: SegmentKind = SegmentKind.KEYED_FULL
    ) -> tuple[WrittenFile, SegmentHandle]:
        """Returns a base of subtask 7, with its file (the intent is recorded)."""
        file = self.intend(connection, Scope.SHARED)
        return WrittenFile(file.file_id, SEGMENT_BYTES), self.segment(7, kind, NEWEST).at(file.path)

    def segment(self, subtask: int, kind: SegmentKind, checkpoint_id: int) -> SegmentSpec:
        return SegmentSpec(
            kind=kind,
            size_bytes=SEGMENT_BYTES,
            sha256="00" * 32,
            key_groups=range_of(subtask, PARALLELISM, MAX_PARALLELISM),
            entries=3,
            checkpoint_id=checkpoint_id,
        )


def _stats(segments: int) -> UploadStats:
    return UploadStats.of_one_request(
        segments=segments, size_bytes=segments * SEGMENT_BYTES, took_ms=5
    )
