"""A job made of rows and objects, without Spark: six checkpoints, with something to clean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.dialects.postgresql import Range

from cairn.catalog.catalog import Catalog
from cairn.layout import generation_of, new_job_id, shared_file, task_manager_file
from cairn.ownership.take import own_root
from cairn.storage import ObjectStore, open_store
from metastore.enums import CheckpointStatus, FileStatus, Scope, SegmentKind
from metastore.models import Base, Checkpoint, Job, PhysicalFile, PlacedSegment, Run
from tests.file_retention import DELETE_AT_ONCE_MS

SEGMENT_BYTES = 100
SUBTASKS = 2
TM = "tm-1"


@dataclass
class SyntheticJob:
    """Epoch 2 is current; checkpoints 1 to 5 are CONFIRMED, 6 is IN_PROGRESS; two are retained.

    Checkpoint 4 brought bases that released the changelogs of 1 to 3. A cleanup must subsume 1
    to 3, let their 6 segments die, and delete `doomed`: their files, a sealed file without
    segments, and two files of the fenced epoch 1, of which one never got its bytes.
    """

    url: str
    storage: str
    name: str = field(default_factory=lambda: f"job-{uuid4().hex[:8]}")
    num_retained: int = 2
    file_retention_ms: int = DELETE_AT_ONCE_MS
    job_id: str = ""
    doomed: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)

    SUBSUMED = 3
    DEAD = 6
    DOOMED = 6
    FREED_BYTES = 4 * SUBTASKS * SEGMENT_BYTES

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def create(self) -> SyntheticJob:
        self.job_id = new_job_id(self.name)
        self.catalog.run("making a job", self._create)
        own_root(self.catalog, self.store, self.job_id)
        return self

    @property
    def store(self) -> ObjectStore:
        return open_store(self.storage)

    def objects(self) -> set[str]:
        """Returns the paths of its objects, without owner objects."""
        paths = {stored.path for stored in self.store.list(f"{self.job_id}/")}
        return {path for path in paths if generation_of(path) is None}

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        def work(connection: Connection) -> list[tuple[Any, ...]]:
            result = connection.execute(text(statement), {"job": self.job_id, **values})
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.catalog.run("a statement of a test", work)

    def add_file(
        self, connection: Connection, path: str, *, segments: int, epoch: int = 2, seal: bool = True
    ) -> UUID:
        """Adds a file of `segments` × 100 bytes, with its object, but no segment rows."""
        file_id = uuid4()
        connection.execute(
            insert(PhysicalFile).values(
                file_id=file_id,
                job_id=self.job_id,
                epoch=epoch,
                path=path,
                scope=Scope.SHARED,
                created_at=text("now() - interval '1 hour'"),
            )
        )
        if seal:
            self.seal(connection, file_id, segments)
        self.store.put(path, [b"x" * (segments * SEGMENT_BYTES)])
        return file_id

    def seal(self, connection: Connection, file_id: UUID, segments: int) -> None:
        connection.execute(
            update(PhysicalFile)
            .where(PhysicalFile.file_id == file_id)
            .values(status=FileStatus.SEALED, size_bytes=segments * SEGMENT_BYTES)
        )

    def add_segments(
        self, connection: Connection, file_id: UUID, kind: SegmentKind, first: int, as_of: int
    ) -> None:
        for subtask in range(SUBTASKS):
            connection.execute(
                insert(PlacedSegment).values(
                    segment_id=uuid4(),
                    job_id=self.job_id,
                    file_id=file_id,
                    kind=kind,
                    subtask=subtask,
                    key_groups=Range(subtask * 64, subtask * 64 + 64),
                    offset_bytes=subtask * SEGMENT_BYTES,
                    size_bytes=SEGMENT_BYTES,
                    sha256="0" * 64,
                    entries=1,
                    first_checkpoint=first,
                    as_of_checkpoint=as_of,
                    released_checkpoint=4 if first < 4 else None,
                )
            )

    def _create(self, connection: Connection) -> None:
        connection.execute(
            insert(Job).values(
                job_id=self.job_id,
                name=self.name,
                storage=self.storage,
                max_parallelism=128,
                num_retained=self.num_retained,
                file_retention_ms=self.file_retention_ms,
                key_schema={"fields": []},
                current_epoch=2,
                next_checkpoint_id=7,
            )
        )
        for epoch in (1, 2):
            connection.execute(
                insert(Run).values(
                    job_id=self.job_id, epoch=epoch, run_id=uuid4(), parallelism=SUBTASKS
                )
            )
        # Before the checkpoints: no base is added to one that there is.
        self._add_base(connection)
        for checkpoint_id in range(1, 7):
            self._add_checkpoint(connection, checkpoint_id, confirmed=checkpoint_id < 6)
        self._add_leftovers(connection)

    def _add_checkpoint(
        self, connection: Connection, checkpoint_id: int, *, confirmed: bool
    ) -> None:
        connection.execute(
            insert(Checkpoint).values(
                job_id=self.job_id,
                checkpoint_id=checkpoint_id,
                epoch=2,
                query_id="query",
                batch_id=checkpoint_id,
                parallelism=SUBTASKS,
            )
        )
        mine = (Checkpoint.job_id == self.job_id, Checkpoint.checkpoint_id == checkpoint_id)
        if confirmed:
            for status in (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED):
                connection.execute(update(Checkpoint).where(*mine).values(status=status))
        path = task_manager_file(self.job_id, TM, str(uuid4()))
        file_id = self.add_file(connection, path, segments=SUBTASKS)
        self.add_segments(connection, file_id, SegmentKind.CHANGELOG, checkpoint_id, checkpoint_id)
        (self.doomed if checkpoint_id < 4 else self.needed).add(path)

    def _add_base(self, connection: Connection) -> None:
        path = shared_file(self.job_id, 0, SUBTASKS, str(uuid4()))
        file_id = self.add_file(connection, path, segments=SUBTASKS)
        self.add_segments(connection, file_id, SegmentKind.KEYED_FULL, 4, 3)
        self.needed.add(path)

    def _add_leftovers(self, connection: Connection) -> None:
        losing, fenced, in_flight, absent = (
            task_manager_file(self.job_id, TM, str(uuid4())) for _ in range(4)
        )
        self.add_file(connection, losing, segments=SUBTASKS)
        self.add_file(connection, fenced, segments=1, epoch=1, seal=False)
        self.add_file(connection, in_flight, segments=1, seal=False)
        connection.execute(
            insert(PhysicalFile).values(
                file_id=uuid4(),
                job_id=self.job_id,
                epoch=1,
                path=absent,
                scope=Scope.SHARED,
                created_at=text("now() - interval '1 hour'"),
            )
        )
        self.doomed |= {losing, fenced, absent}
        self.needed.add(in_flight)


def dump(url: str) -> dict[str, list[str]]:
    """Returns every row of every table as text, sorted, by table."""

    def work(connection: Connection) -> dict[str, list[str]]:
        return {
            table.name: sorted(str(row) for row in connection.execute(select(table)))
            for table in Base.metadata.sorted_tables
        }

    return Catalog(url).run("dumping the tables", work)
