"""A job whose protocol transactions are called one by one, as its tasks call them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.batch_start import BatchStart
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.materializations import install
from cairn.catalog.job.runs import RegisteredRun, Registration, register_run
from cairn.catalog.job.segments import segments_at
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange, range_of
from cairn.layout import task_manager_directory, task_manager_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.ownership.take import own_root
from cairn.storage import open_store
from metastore.enums import Scope, SegmentKind
from tests.file_retention import DELETE_AT_ONCE_MS

T = TypeVar("T")
MAX_PARALLELISM = 8
SIZE_BYTES = 100


@dataclass
class Steps:
    """One job; every method is one transaction, run as a task runs it."""

    url: str
    storage: str
    name: str = field(default_factory=lambda: f"job-{uuid4().hex[:8]}")
    job_id: str = ""
    parallelism: dict[int, int] = field(default_factory=dict)
    run_ids: dict[int, str] = field(default_factory=dict)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def run(self, work: Callable[[Connection], T]) -> T:
        return self.catalog.run("testing", work)

    def run_each(self, work: Callable[[Connection], T]) -> T:
        return self.catalog.run_each("testing", work)

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement, in which `:job` is the job's id."""

        def work(connection: Connection) -> list[tuple[Any, ...]]:
            bound = {"job": self.job_id, **values}
            needed = {name: value for name, value in bound.items() if f":{name}" in statement}
            result = connection.execute(text(statement), needed)
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.run(work)

    def registration(self, parallelism: int = 2, **changes: Any) -> Registration:
        made = Registration(
            run_id=uuid4(),
            job=self.name,
            storage=self.storage,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            num_retained=2,
            file_retention_ms=DELETE_AT_ONCE_MS,
            key_schema={"fields": [{"name": "word", "type": "string"}]},
            states=[],
        )
        return replace(made, **changes)

    def register(self, parallelism: int = 2, **changes: Any) -> int:
        """Registers a run; returns its epoch."""
        return self.register_as(self.registration(parallelism, **changes)).epoch

    def register_as(self, registration: Registration) -> RegisteredRun:
        """Registers a run, which `ref` knows by its epoch from then on."""
        run: RegisteredRun = self.run(lambda c: register_run(c, registration))
        own_root(self.catalog, open_store(self.storage), run.job_id)
        self.job_id = run.job_id
        self.parallelism[run.epoch] = registration.parallelism
        self.run_ids[run.epoch] = str(registration.run_id)
        return run

    def ref(self, epoch: int, batch_id: int, query_id: str = "q") -> BatchRef:
        return BatchRef(
            job=self.name,
            job_id=self.job_id,
            epoch=epoch,
            run_id=self.run_ids[epoch],
            query_id=query_id,
            batch_id=batch_id,
        )

    def begin(self, batch: BatchRef) -> BatchStart:
        return self.run_each(lambda c: begin_batch(c, batch))

    def intend(
        self,
        batch: BatchRef,
        scope: Scope = Scope.TASK_MANAGER,
        retry_of: WrittenFile | None = None,
        materialization_id: str | None = None,
    ) -> WrittenFile:
        """Records the intent of a file of one segment's size: a changelog's or a base's."""
        file = WrittenFile(str(uuid4()), SIZE_BYTES)
        intended = IntendedFile(
            file_id=file.file_id,
            path=self.path(file),
            scope=scope,
            batch_id=batch.batch_id if scope is Scope.TASK_MANAGER else None,
            retry_of=retry_of.file_id if retry_of else None,
            materialization_id=materialization_id,
        )
        self.run_each(lambda c: intend_files(c, batch, [intended], [self.directory]))
        return file

    @property
    def directory(self) -> DirectoryHandle:
        """The directory that all its files are in."""
        path = task_manager_directory(self.job_id, "tm")
        return DirectoryHandle(path=path, scope=Scope.TASK_MANAGER, tm_id="tm")

    def path(self, file: WrittenFile) -> str:
        return task_manager_file(self.job_id, "tm", file.file_id)

    def changelog(self, epoch: int, checkpoint_id: int, subtask: int, offset: int) -> SegmentHandle:
        spec = SegmentSpec(
            kind=SegmentKind.CHANGELOG,
            size_bytes=SIZE_BYTES,
            sha256="00" * 32,
            key_groups=range_of(subtask, self.parallelism[epoch], MAX_PARALLELISM),
            entries=1,
            checkpoint_id=checkpoint_id,
        )
        return spec.at("", offset)

    def lists(self, epoch: int, checkpoint_id: int, subtask: int, offset: int) -> SegmentHandle:
        """Returns the handle of a subtask's operator lists."""
        return replace(
            self.changelog(epoch, checkpoint_id, subtask, offset),
            kind=SegmentKind.OPERATOR,
            released_checkpoint=checkpoint_id + 1,
        )

    def ack_with_lists(
        self,
        batch: BatchRef,
        checkpoint_id: int,
        subtask: int,
        task_attempt: int = 1,
        *,
        changed: bool = True,
    ) -> tuple[Ack, WrittenFile]:
        """Writes and acknowledges a changelog and operator lists of a subtask, in one file."""
        lists = self.lists(batch.epoch, checkpoint_id, subtask, SIZE_BYTES)
        changelog = self.changelog(batch.epoch, checkpoint_id, subtask, 0)
        segments = (changelog, lists) if changed else (lists,)
        ack = Ack(
            subtask=subtask,
            attempt_id=str(uuid4()),
            task_attempt=task_attempt,
            input_rows=10,
            restore_ms=5,
            segments=segments,
        )
        file = replace(self.intend(batch), size_bytes=2 * SIZE_BYTES)
        self.commit(batch, checkpoint_id, [ack], file)
        return ack, file

    def group(
        self, batch: BatchRef, checkpoint_id: int, subtasks: Sequence[int], task_attempt: int = 1
    ) -> tuple[list[Ack], WrittenFile]:
        """Returns the acks of a group, with the file they wrote (its intent is recorded)."""
        acks = []
        for number, subtask in enumerate(subtasks):
            segment = self.changelog(batch.epoch, checkpoint_id, subtask, number * SIZE_BYTES)
            acks.append(
                Ack(
                    subtask=subtask,
                    attempt_id=str(uuid4()),
                    task_attempt=task_attempt,
                    input_rows=10,
                    restore_ms=5,
                    segments=(segment,),
                )
            )
        return acks, replace(self.intend(batch), size_bytes=len(acks) * SIZE_BYTES)

    def ack(
        self,
        batch: BatchRef,
        checkpoint_id: int,
        *subtasks: int,
        task_attempt: int = 1,
    ) -> tuple[list[Ack], WrittenFile]:
        """Writes and acknowledges one group."""
        acks, file = self.group(batch, checkpoint_id, subtasks, task_attempt)
        self.commit(batch, checkpoint_id, acks, file)
        return acks, file

    def commit(
        self,
        batch: BatchRef,
        checkpoint_id: int,
        acks: Sequence[Ack],
        file: WrittenFile | None,
    ) -> None:
        self.run_each(acknowledging(batch, checkpoint_id, acks, file))

    def whole_batch(self, epoch: int, batch_id: int) -> int:
        """Begins a batch and acknowledges all its subtasks; returns the checkpoint's id."""
        batch = self.ref(epoch, batch_id)
        checkpoint_id = self.begin(batch).checkpoint_id
        self.ack(batch, checkpoint_id, *range(self.parallelism[epoch]))
        return checkpoint_id

    def base(
        self,
        batch: BatchRef,
        as_of: int,
        key_groups: tuple[int, int],
        kind: SegmentKind = SegmentKind.KEYED_FULL,
        materialization_id: str | None = None,
    ) -> tuple[WrittenFile, SegmentHandle]:
        """Returns a base of some key groups, with its file (the intent is recorded)."""
        spec = SegmentSpec(
            kind=kind,
            size_bytes=SIZE_BYTES,
            sha256="00" * 32,
            key_groups=KeyGroupRange(*key_groups),
            entries=1,
            checkpoint_id=as_of,
        )
        file = self.intend(batch, Scope.SHARED, materialization_id=materialization_id)
        return file, spec.at("")

    def install(
        self, batch: BatchRef, *bases: tuple[WrittenFile, SegmentHandle], subtask: int = 0
    ) -> None:
        self.run(lambda c: install(c, batch, subtask, bases))

    def segments(self, checkpoint_id: int) -> list[str]:
        """Returns the ids of a checkpoint's segments in order of replay."""
        everything = KeyGroupRange(0, MAX_PARALLELISM)
        handles = self.run(lambda c: segments_at(c, self.job_id, checkpoint_id, everything))
        return [handle.segment_id for handle in handles]

    def statuses(self) -> dict[int, str]:
        """Returns the status of every checkpoint by id."""
        rows = self.sql("SELECT checkpoint_id, status FROM cairn.checkpoints WHERE job_id = :job")
        return {int(checkpoint_id): str(status) for checkpoint_id, status in rows}

    def segment_status(self, ack: Ack) -> str:
        [segment] = ack.segments
        [(status,)] = self.sql(
            "SELECT status FROM cairn.segments WHERE segment_id = :id",
            id=UUID(segment.segment_id),
        )
        return str(status)

    def file_facts(self, file: WrittenFile) -> tuple[str, int, int]:
        """Returns a file's status, live segments and live bytes."""
        [(status, segments, size_bytes)] = self.sql(
            "SELECT status, live_segments, live_bytes FROM cairn.physical_files"
            " WHERE file_id = :id",
            id=UUID(file.file_id),
        )
        return str(status), int(segments), int(size_bytes)

    def acked(self, checkpoint_id: int) -> dict[int, str]:
        """Returns the attempt that counts, by subtask."""
        rows = self.sql(
            "SELECT subtask, attempt_id FROM cairn.subtask_acks"
            " WHERE job_id = :job AND checkpoint_id = :checkpoint",
            checkpoint=checkpoint_id,
        )
        return {int(subtask): str(attempt_id) for subtask, attempt_id in rows}

    def dump(self) -> dict[str, list[str]]:
        """Returns every row that the protocol writes, as text."""
        tables = (
            "jobs",
            "runs",
            "checkpoints",
            "group_commits",
            "physical_files",
            "placed_segments",
        )
        return {
            table: [
                str(row)
                for (row,) in self.sql(
                    f"SELECT to_jsonb(t) FROM cairn.{table} t"  # noqa: S608 - fixed names
                    " WHERE job_id = :job ORDER BY to_jsonb(t)::text"
                )
            ]
            for table in tables
        }

    def let_writes_end(self) -> None:
        """Makes every write intent as old as it takes for no request to be under way."""
        self.sql(
            "UPDATE cairn.physical_files SET created_at = created_at - interval '21 min'"
            " WHERE job_id = :job"
        )

    def clean(self) -> None:
        cleanup_job(self.catalog, self.name)

    def wait_until_blocked(self) -> None:
        """Returns once another connection waits for a lock in this database."""
        waiting = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        give_up = time.monotonic() + 10
        while not self.sql(waiting):
            assert time.monotonic() < give_up, "nobody waits for a lock"
            time.sleep(0.005)


def acknowledging(
    batch: BatchRef, checkpoint_id: int, acks: Sequence[Ack], file: WrittenFile | None
) -> Callable[[Connection], None]:
    """Returns the body of a group's transaction."""

    files = {} if file is None else {"": file}

    def work(connection: Connection) -> None:
        acknowledge(
            connection, batch, checkpoint_id=checkpoint_id, tm_id="tm", acks=acks, files=files
        )

    return work
