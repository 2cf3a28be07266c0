"""Rows of one job, made the legal way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Connection, insert, select, text, update
from sqlalchemy.dialects.postgresql import Range

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.upload_stats import UploadStats, upload_facts
from cairn.layout import task_manager_directory, task_manager_file
from metastore.enums import FileStatus, RequestKind, Scope, SegmentKind
from metastore.models import (
    Base,
    Checkpoint,
    DamagedSegment,
    Deletion,
    Directory,
    GroupCommit,
    Job,
    MaintenanceDecision,
    MaintenanceRun,
    Materialization,
    PhysicalFile,
    Pin,
    PlacedSegment,
    Run,
    RunRequest,
)

PATHS = {
    "checkpoints": ["IN_PROGRESS", "COMPLETED", "CONFIRMED", "SUBSUMED"],
    "physical_files": ["WRITING", "SEALED", "CONDEMNED", "DELETED"],
    "placed_segments": ["LIVE", "DEAD"],
    "group_commits": ["LIVE", "DEAD"],
    "directories": ["CLAIMED", "UNCLAIMED", "DELETED"],
    "maintenance_runs": ["PLANNED", "RUNNING", "APPLIED"],
}
"""A legal way through every table's states."""


GUARDS = {
    "checkpoints": "guard_subsumed",
    "placed_segments": "guard_needed",
    "group_commits": "guard_needed",
}
"""Of what a retained checkpoint needs."""


@contextmanager
def unguarded(connection: Connection, table: str) -> Iterator[None]:
    """Lets rows of a table end although checkpoints need them, in an open transaction."""
    guard = GUARDS.get(table)
    if guard:
        connection.execute(text(f"ALTER TABLE cairn.{table} DISABLE TRIGGER {guard}"))
    yield
    if guard:
        connection.execute(text("RESET ROLE"))
        connection.execute(text(f"ALTER TABLE cairn.{table} ENABLE TRIGGER {guard}"))


@dataclass
class Rows:
    """Makes rows of one job the legal way, and reads and changes them."""

    url: str
    job_id: str = "clicks-1a2b3c4d"
    role: str = "postgres"
    name: str = ""
    _segments: int = 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def execute(self, statement: Any, role: str | None = None) -> list[Any]:
        def work(connection: Connection) -> list[Any]:
            connection.execute(text(f"SET LOCAL ROLE {role or self.role}"))
            result = connection.execute(statement)
            return list(result.mappings()) if result.returns_rows else []

        return self.catalog.run("testing", work)

    def job(self, parallelism: int = 2) -> None:
        self.execute(
            insert(Job).values(
                job_id=self.job_id,
                name=self.name or self.job_id,
                storage="file:///nowhere",
                max_parallelism=8,
                num_retained=3,
                key_schema={"type": "struct", "fields": []},
            )
        )
        self.run(1, parallelism)

    def run(self, epoch: int, parallelism: int) -> None:
        self.execute(
            insert(Run).values(
                job_id=self.job_id, epoch=epoch, run_id=uuid4(), parallelism=parallelism
            )
        )

    def checkpoint(
        self, checkpoint_id: int, status: str = "IN_PROGRESS", epoch: int = 1, parallelism: int = 2
    ) -> None:
        self.execute(
            insert(Checkpoint).values(
                job_id=self.job_id,
                checkpoint_id=checkpoint_id,
                epoch=epoch,
                query_id="q",
                batch_id=checkpoint_id,
                parallelism=parallelism,
            )
        )
        which = Checkpoint.checkpoint_id == checkpoint_id
        if status == "ABORTED":
            self.set_status(Checkpoint, which, status)
        else:
            self.walk(Checkpoint, which, status)

    def ack(self, checkpoint_id: int, subtask: int, input_rows: int) -> None:
        self.execute(
            insert(GroupCommit).values(
                **self.group_commit(checkpoint_id),
                subtasks=[subtask],
                attempt_ids=[uuid4()],
                task_attempts=[1],
                input_rows=[input_rows],
                restore_ms=[10 * subtask],
            )
        )

    def pin(self, checkpoint_id: int, kind: str = "pin", name: str | None = None) -> UUID:
        pin_id = uuid4()
        self.execute(
            insert(Pin).values(
                pin_id=pin_id,
                job_id=self.job_id,
                checkpoint_id=checkpoint_id,
                kind=kind,
                name=name,
            )
        )
        return pin_id

    def file(
        self,
        status: str = "SEALED",
        size_bytes: int = 1000,
        scope: Scope = Scope.TASK_MANAGER,
        path: str | None = None,
        retry_of: UUID | None = None,
    ) -> UUID:
        file_id = uuid4()
        self.execute(
            insert(PhysicalFile).values(
                file_id=file_id,
                job_id=self.job_id,
                epoch=1,
                path=path or self.path(file_id),
                scope=scope,
                batch_id=1,
                retry_of=retry_of,
            )
        )
        which = PhysicalFile.file_id == file_id
        if status != "WRITING":
            self.execute(
                update(PhysicalFile)
                .where(which)
                .values(status=FileStatus.SEALED, size_bytes=size_bytes, sealed_at=text("now()"))
            )
            self.walk(PhysicalFile, which, status, start="SEALED")
        return file_id

    def path(self, file_id: UUID) -> str:
        """Returns the path of a file of the task manager."""
        return task_manager_file(self.job_id, "tm", str(file_id))

    def directory(self, status: str = "CLAIMED", path: str | None = None, epoch: int = 1) -> str:
        """Makes a task manager's directory; returns its path."""
        path = path or task_manager_directory(self.job_id, "tm")
        self.execute(
            insert(Directory).values(
                job_id=self.job_id, path=path, scope=Scope.TASK_MANAGER, tm_id="tm", epoch=epoch
            )
        )
        self.walk(Directory, Directory.path == path, status)
        return path

    def upload(self, checkpoint_id: int, tm_id: str = "tm", **facts: Any) -> None:
        """Adds the stats of a group commit; every number that is not given is 1."""
        numbers = {one.name: 1 for one in fields(UploadStats)}
        stats = UploadStats(**{**numbers, **{k: facts[k] for k in facts if k in numbers}})
        other = {name: fact for name, fact in facts.items() if name not in numbers}
        columns = {**upload_facts([stats], 1), **other}
        self.execute(
            insert(GroupCommit).values(**self.group_commit(checkpoint_id, tm_id), **columns)
        )

    def group_commit(self, checkpoint_id: int, tm_id: str = "tm") -> dict[str, Any]:
        """Returns the columns of a group commit that says nothing yet."""
        return {
            "commit_id": uuid4(),
            "job_id": self.job_id,
            "checkpoint_id": checkpoint_id,
            "tm_id": tm_id,
            "parallelism": 2,
            "max_parallelism": 8,
        }

    def packed(self, file_id: UUID, checkpoint_id: int, *subtasks: int) -> UUID:
        """Makes a group commit with a segment of 100 bytes of each subtask; returns its id."""
        columns = self.packed_columns(file_id, checkpoint_id, *subtasks)
        self.execute(insert(GroupCommit).values(columns))
        commit_id: UUID = columns["commit_id"]
        return commit_id

    def packed_columns(self, file_id: UUID, checkpoint_id: int, *subtasks: int) -> dict[str, Any]:
        """Returns a group commit with a segment of 100 bytes of each subtask."""
        ones = [1 for _ in subtasks]
        return self.group_commit(checkpoint_id) | {
            "file_id": file_id,
            "subtasks": list(subtasks),
            "attempt_ids": [uuid4() for _ in subtasks],
            "task_attempts": ones,
            "input_rows": ones,
            "restore_ms": ones,
            "segment_ids": [uuid4() for _ in subtasks],
            "segment_subtasks": list(subtasks),
            "offsets_bytes": [100 * number for number in range(len(subtasks))],
            "sizes_bytes": [100 for _ in subtasks],
            "sha256s": b"\0" * 32 * len(subtasks),
            "entries": ones,
        }

    def segment(
        self,
        file_id: UUID,
        size_bytes: int = 100,
        first_checkpoint: int = 1,
        released_checkpoint: int | None = None,
        status: str = "LIVE",
        subtask: int = 0,
    ) -> UUID:
        segment_id = uuid4()
        self._segments += 1
        self.execute(
            insert(PlacedSegment).values(
                segment_id=segment_id,
                job_id=self.job_id,
                file_id=file_id,
                kind=SegmentKind.CHANGELOG,
                subtask=subtask,
                key_groups=Range(0, 4),
                offset_bytes=0,
                size_bytes=size_bytes,
                sha256="00",
                entries=1,
                first_checkpoint=first_checkpoint,
                as_of_checkpoint=first_checkpoint,
                released_checkpoint=released_checkpoint,
                sequence_number=self._segments,
            )
        )
        self.walk(PlacedSegment, PlacedSegment.segment_id == segment_id, status)
        return segment_id

    def damage(self, file_id: UUID, segment_id: UUID, damage: str = "corrupt") -> None:
        """Makes a segment known as damaged."""
        self.execute(
            insert(DamagedSegment).values(
                file_id=file_id, segment_id=segment_id, job_id=self.job_id, damage=damage
            )
        )

    def materialization(self, subtask: int = 0, *, epoch: int = 1, **columns: Any) -> None:
        self.execute(
            insert(Materialization).values(
                materialization_id=uuid4(),
                job_id=self.job_id,
                epoch=epoch,
                subtask=subtask,
                **columns,
            )
        )

    def maintenance_run(self, status: str = "PLANNED") -> UUID:
        run_id = uuid4()
        self.execute(
            insert(MaintenanceRun).values(
                maintenance_run_id=run_id,
                job_id=self.job_id,
                action="subsumption",
                plan={},
                plan_sha256="00",
            )
        )
        which = MaintenanceRun.maintenance_run_id == run_id
        if status == "RUNNING":
            self.execute(
                update(MaintenanceRun)
                .where(which)
                .values(
                    status=status, holder=uuid4(), leased_until=text("now() + interval '1 hour'")
                )
            )
        else:
            self.set_status(MaintenanceRun, which, status)
        return run_id

    def decision(self, run_id: UUID, path: str = "", decision: str = "SKIPPED") -> None:
        self.execute(
            insert(MaintenanceDecision).values(
                maintenance_run_id=run_id,
                job_id=self.job_id,
                decision=decision,
                reason="a test",
                path=path,
            )
        )

    def deletion(self, file_id: UUID, path: str | None = None) -> None:
        self.execute(
            insert(Deletion).values(
                file_id=file_id,
                job_id=self.job_id,
                path=path or self.path(file_id),
                maintenance_run_id=self.maintenance_run(),
            )
        )

    def request(self) -> None:
        self.execute(
            insert(RunRequest).values(
                request_id=uuid4(), job_id=self.job_id, kind=RequestKind.RESCALE, parallelism=3
            )
        )

    def walk(self, table: type[Base], which: Any, status: str, start: str | None = None) -> None:
        path = PATHS[table.__tablename__]
        begin = path.index(start) if start else 0
        for step in path[begin + 1 : path.index(status) + 1]:
            self.set_status(table, which, step)

    def set_status(self, table: type[Base], which: Any, status: str) -> None:
        """Changes a status as the protocol's order allows, whatever is retained."""
        change = update(table).where(which, self.own(table)).values(status=status)
        self.catalog.run("testing", lambda c: self.unguarded(c, table.__tablename__, change))

    def unguarded(self, connection: Connection, table: str, change: Any) -> None:
        """Executes a change, whatever is retained."""
        with unguarded(connection, table):
            connection.execute(text(f"SET LOCAL ROLE {self.role}"))
            connection.execute(change)

    def counters(self, file_id: UUID) -> tuple[int, int]:
        columns = select(PhysicalFile.live_segments, PhysicalFile.live_bytes)
        [row] = self.execute(columns.where(PhysicalFile.file_id == file_id))
        return row["live_segments"], row["live_bytes"]

    def view(self, name: str) -> list[Any]:
        """Returns the job's rows in a view."""
        query = text(f"SELECT * FROM cairn.{name} WHERE job_id = :job_id")  # noqa: S608
        return self.execute(query.bindparams(job_id=self.job_id))

    def own(self, table: type[Base]) -> ColumnElement[bool]:
        """Returns the condition for the job's rows in a table."""
        return table.__table__.c.job_id == self.job_id
