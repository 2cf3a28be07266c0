"""The snapshot of a job for a plan: retained checkpoints, released segments, unneeded files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    Text,
    Uuid,
    any_,
    column,
    func,
    literal,
    select,
    table,
    text,
    true,
    type_coerce,
)
from sqlalchemy.orm import InstrumentedAttribute

from cairn.catalog.jobs import find_job
from metastore.enums import CheckpointStatus, FileStatus, SegmentStatus
from metastore.models import SCHEMA, Checkpoint, PhysicalFile, Pin, Segment

PLAN_ROWS = 5_000
"""Most rows of one table in a snapshot, so memory and the applying transaction stay small."""

RETAINED = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)

UNNEEDED_FILES = table(
    "v_unneeded_files",
    column("job_id", Text),
    column("file_id", Uuid),
    column("path", Text),
    column("epoch", BigInteger),
    column("status", Text),
    column("size_bytes", BigInteger),
    column("condemned_at", DateTime(timezone=True)),
    column("reason", Text),
    column("is_condemnable", Boolean),
    schema=SCHEMA,
)
"""The one definition of the files that may be deleted, and why: a view, which can be updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts of a job that the cleanup needs."""

    job_id: str
    name: str
    storage: str
    num_retained: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """A checkpoint that is IN_PROGRESS, COMPLETED or CONFIRMED."""

    checkpoint_id: int
    status: CheckpointStatus
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSegment:
    """A LIVE segment that no checkpoint from `released_checkpoint` on needs."""

    segment_id: UUID
    file_id: UUID
    first_checkpoint: int
    released_checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """A SEALED file that holds released segments; `live_segments` counts all its LIVE ones."""

    file_id: UUID
    path: str
    size_bytes: int
    live_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnneededFile:
    """A file to condemn, and why, in words. `size_bytes` is None where nothing was sealed."""

    file_id: UUID
    path: str
    size_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSnapshot:
    """One instant of a job. Holds every retained checkpoint that a segment in it could serve.

    Segments that a pinned checkpoint needs are not in it.
    """

    job: JobFacts
    checkpoints: tuple[RetainedCheckpoint, ...]
    segments: tuple[ReleasedSegment, ...]
    sealed_files: tuple[SealedFile, ...]
    unneeded_files: tuple[UnneededFile, ...]


def read_snapshot(connection: Connection, job_name: str) -> CleanupSnapshot:
    """Returns the input of a subsumption plan, read in one repeatable-read snapshot.

    At most `PLAN_ROWS` rows of each kind, oldest first: where there is more to do, plan, apply
    and read again until a plan is empty.

    Raises:
        BadInputError: there is no such job.
    """
    # One snapshot for all reads: a file's live segments must be those that the segments say.
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    row = find_job(connection, job_name)
    job = JobFacts(
        job_id=row.job_id,
        name=row.name,
        storage=row.storage,
        num_retained=row.num_retained,
        current_epoch=row.current_epoch,
    )
    checkpoints, horizon = _retained_checkpoints(connection, job)
    segments = _released_segments(connection, job, horizon)
    unneeded = _unneeded_files(connection, job)
    # Only files that may become empty: a job has many more.
    holding = sorted({segment.file_id for segment in segments})
    return CleanupSnapshot(
        job=job,
        checkpoints=checkpoints,
        segments=segments,
        sealed_files=_sealed_files(connection, job, holding, PLAN_ROWS - len(unneeded)),
        unneeded_files=unneeded,
    )


def _retained_checkpoints(
    connection: Connection, job: JobFacts
) -> tuple[tuple[RetainedCheckpoint, ...], int | None]:
    """Returns the oldest retained checkpoints, those pinned, the newest confirmed, and the horizon.

    All retained checkpoints up to the horizon are in it; None: all are. Pinned ones do not count
    towards the limit, or many of them would hide what can be subsumed.
    """
    pinned = is_pinned()
    columns = (Checkpoint.checkpoint_id, Checkpoint.status, pinned)
    is_retained = (Checkpoint.job_id == job.job_id, Checkpoint.status.in_(RETAINED))
    oldest = connection.execute(
        select(*columns)
        .where(*is_retained, ~pinned)
        .order_by(Checkpoint.checkpoint_id)
        .limit(PLAN_ROWS)
    ).all()
    kept = connection.execute(select(*columns).where(*is_retained, pinned)).all()
    newest = connection.execute(
        select(*columns)
        .where(Checkpoint.job_id == job.job_id, Checkpoint.status == CheckpointStatus.CONFIRMED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(job.num_retained)
    ).all()
    # Behind it are checkpoints that were not read and may need a segment.
    horizon = oldest[-1].checkpoint_id if len(oldest) == PLAN_ROWS else None
    by_id = {row.checkpoint_id: RetainedCheckpoint(*row) for row in (*oldest, *kept, *newest)}
    return tuple(by_id[checkpoint_id] for checkpoint_id in sorted(by_id)), horizon


def _released_segments(
    connection: Connection, job: JobFacts, horizon: int | None
) -> tuple[ReleasedSegment, ...]:
    pinned = multirange(Pin.checkpoint_id, Pin.job_id == job.job_id, Pin.removed_at.is_(None))
    rows = connection.execute(
        select(
            Segment.segment_id,
            Segment.file_id,
            Segment.first_checkpoint,
            type_coerce(Segment.released_checkpoint, BigInteger).label("released_checkpoint"),
        )
        .where(
            Segment.job_id == job.job_id,
            Segment.status == SegmentStatus.LIVE,
            Segment.released_checkpoint.is_not(None),
            # Many segments that pins keep would fill the limit, and hide what can die.
            ~is_needed(pinned),
            true() if horizon is None else Segment.released_checkpoint <= horizon,
        )
        # Oldest first: whatever the limit leaves out, the next plan begins with.
        .order_by(Segment.released_checkpoint, Segment.segment_id)
        .limit(PLAN_ROWS)
    )
    return tuple(ReleasedSegment(**row) for row in rows.mappings())


def _unneeded_files(connection: Connection, job: JobFacts) -> tuple[UnneededFile, ...]:
    files = UNNEEDED_FILES.c
    rows = connection.execute(
        select(files.file_id, files.path, files.size_bytes, files.reason)
        .where(files.job_id == job.job_id, files.is_condemnable)
        .order_by(files.epoch, files.file_id)
        .limit(PLAN_ROWS)
    )
    return tuple(UnneededFile(**row) for row in rows.mappings())


def _sealed_files(
    connection: Connection, job: JobFacts, file_ids: Sequence[UUID], limit: int
) -> tuple[SealedFile, ...]:
    columns = (
        PhysicalFile.file_id,
        PhysicalFile.path,
        PhysicalFile.size_bytes,
        PhysicalFile.live_segments,
    )
    rows = connection.execute(
        select(*columns)
        .where(
            PhysicalFile.job_id == job.job_id,
            PhysicalFile.status == FileStatus.SEALED,
            PhysicalFile.file_id == any_uuid(file_ids),
        )
        .order_by(PhysicalFile.epoch, PhysicalFile.file_id)
        .limit(limit)
    )
    return tuple(SealedFile(**row) for row in rows.mappings())


def multirange(
    ids: InstrumentedAttribute[int], *conditions: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Returns the ids of the rows that fulfil the conditions as one multirange, read once."""
    one_id = func.int8range(ids, ids, "[]")
    return (
        # A multirange and no list: a job retains ranges, and a test per segment stays cheap.
        select(func.coalesce(func.range_agg(one_id), func.int8multirange()))
        .where(*conditions)
        .scalar_subquery()
    )


def is_needed(checkpoints: ColumnElement[Any]) -> ColumnElement[bool]:
    """Returns the condition that a checkpoint of a multirange, or one to come, needs a segment."""
    return func.cairn.is_needed(
        Segment.first_checkpoint, Segment.released_checkpoint, checkpoints, type_=Boolean
    )


def is_pinned() -> ColumnElement[bool]:
    """Returns the condition that a checkpoint has an open pin."""
    return (
        select(Pin.pin_id)
        .where(
            Pin.job_id == Checkpoint.job_id,
            Pin.checkpoint_id == Checkpoint.checkpoint_id,
            Pin.removed_at.is_(None),
        )
        .exists()
    )


def any_uuid(ids: Sequence[UUID]) -> ColumnElement[Any]:
    """Returns `ANY(ids)`: one bound array, however many ids there are."""
    return any_(literal(list(ids), ARRAY(Uuid())))
