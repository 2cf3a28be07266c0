"""What maintenance plans from: a job's open checkpoints, released segments and undeleted files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Uuid,
    and_,
    any_,
    func,
    literal,
    or_,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.orm import aliased

from cairn.catalog.job.begin import TAKES_ACKS
from cairn.catalog.jobs import find_job
from metastore.enums import CheckpointStatus, FileStatus, SegmentStatus
from metastore.models import Checkpoint, PhysicalFile, Pin, Segment

PLAN_ROWS = 5_000
"""Most rows of one table in a snapshot, so memory and the applying transaction stay small."""

WRITE_GRACE_MIN = 20
"""No object appears longer than this after its write intent.

A writer that was held up sends nothing (`cairn.storage.store.LONGEST_HOLD_S`), S3 refuses what
was signed more than 15 min ago, and a request ends (`cairn.storage.store.LONGEST_WRITE_S`).
"""

RETAINED = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What maintenance needs to know of a job."""

    job_id: str
    name: str
    storage: str
    num_retained: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class OpenCheckpoint:
    """A checkpoint that is IN_PROGRESS, COMPLETED or CONFIRMED."""

    checkpoint_id: int
    status: CheckpointStatus
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class ReleasedSegment:
    """A LIVE segment that no checkpoint from `released_checkpoint` on needs."""

    segment_id: UUID
    file_id: UUID
    first_checkpoint: int
    released_checkpoint: int


@dataclass(frozen=True, slots=True)
class UndeletedFile:
    """A WRITING or SEALED file; `live_segments` counts all its LIVE segments, released or not.

    `is_lost` tells that nobody will seal it, although its run goes on; `may_appear` that its
    object may still come, because its intent is younger than the grace.
    """

    file_id: UUID
    path: str
    status: FileStatus
    epoch: int
    size_bytes: int | None
    live_segments: int
    is_lost: bool = False
    may_appear: bool = False


@dataclass(frozen=True, slots=True)
class UpkeepSnapshot:
    """One instant of a job. Holds every retained checkpoint that a segment in it could serve.

    Segments that a pinned checkpoint needs are not in it.
    """

    job: JobFacts
    checkpoints: tuple[OpenCheckpoint, ...]
    segments: tuple[ReleasedSegment, ...]
    files: tuple[UndeletedFile, ...]


def read_snapshot(connection: Connection, job_name: str) -> UpkeepSnapshot:
    """Returns what a subsumption plan is made from, read in one repeatable-read snapshot.

    At most `PLAN_ROWS` rows of each kind, oldest first: where there is more to do, plan, apply
    and read again until a plan is empty.

    Raises:
        BadInputError: there is no such job.
    """
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    row = find_job(connection, job_name)
    job = JobFacts(row.job_id, row.name, row.storage, row.num_retained, row.current_epoch)
    checkpoints, horizon = _open_checkpoints(connection, job)
    segments = _released_segments(connection, job, horizon)
    files = _undeleted_files(connection, job, {segment.file_id for segment in segments})
    return UpkeepSnapshot(job, checkpoints, segments, files)


def _open_checkpoints(
    connection: Connection, job: JobFacts
) -> tuple[tuple[OpenCheckpoint, ...], int | None]:
    """Returns the oldest open checkpoints, those pinned and the newest confirmed, and the horizon.

    All open checkpoints up to the horizon are there; None: there is no gap. Pinned ones do not
    count towards the limit, or many of them would hide what can go.
    """
    pinned = is_pinned()
    columns = (Checkpoint.checkpoint_id, Checkpoint.status, pinned)
    is_open = (Checkpoint.job_id == job.job_id, Checkpoint.status.in_(RETAINED))
    oldest = connection.execute(
        select(*columns)
        .where(*is_open, ~pinned)
        .order_by(Checkpoint.checkpoint_id)
        .limit(PLAN_ROWS)
    ).all()
    kept = connection.execute(select(*columns).where(*is_open, pinned)).all()
    newest = connection.execute(
        select(*columns)
        .where(Checkpoint.job_id == job.job_id, Checkpoint.status == CheckpointStatus.CONFIRMED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(job.num_retained)
    ).all()
    horizon = oldest[-1].checkpoint_id if len(oldest) == PLAN_ROWS else None
    by_id = {row.checkpoint_id: OpenCheckpoint(*row) for row in (*oldest, *kept, *newest)}
    return tuple(by_id[checkpoint_id] for checkpoint_id in sorted(by_id)), horizon


def _released_segments(
    connection: Connection, job: JobFacts, horizon: int | None
) -> tuple[ReleasedSegment, ...]:
    rows = connection.execute(
        select(
            Segment.segment_id,
            Segment.file_id,
            Segment.first_checkpoint,
            type_coerce(Segment.released_checkpoint, BigInteger),
        )
        .where(
            Segment.job_id == job.job_id,
            Segment.status == SegmentStatus.LIVE,
            Segment.released_checkpoint.is_not(None),
            ~_serves_a_pin(),
            true() if horizon is None else Segment.released_checkpoint <= horizon,
        )
        .order_by(Segment.released_checkpoint, Segment.segment_id)
        .limit(PLAN_ROWS)
    )
    return tuple(ReleasedSegment(*row) for row in rows)


def _serves_a_pin() -> ColumnElement[bool]:
    """Returns whether a pinned checkpoint needs a segment.

    It stays, and would count towards the limit: many pins would hide what can go.
    """
    return (
        select(Pin.pin_id)
        .where(
            Pin.job_id == Segment.job_id,
            Pin.removed_at.is_(None),
            Pin.checkpoint_id >= Segment.first_checkpoint,
            Pin.checkpoint_id < Segment.released_checkpoint,
        )
        .exists()
    )


def _undeleted_files(
    connection: Connection, job: JobFacts, holding: set[UUID]
) -> tuple[UndeletedFile, ...]:
    """Returns sealed files that are empty or hold one of the segments, and files being written."""
    rows = connection.execute(
        select(
            PhysicalFile.file_id,
            PhysicalFile.path,
            PhysicalFile.status,
            PhysicalFile.epoch,
            PhysicalFile.size_bytes,
            PhysicalFile.live_segments,
            is_lost().label("is_lost"),
            may_appear().label("may_appear"),
        )
        .where(
            PhysicalFile.job_id == job.job_id,
            or_(
                PhysicalFile.status == FileStatus.WRITING,
                and_(
                    PhysicalFile.status == FileStatus.SEALED,
                    or_(
                        PhysicalFile.live_segments == 0,
                        PhysicalFile.file_id == any_uuid(sorted(holding)),
                    ),
                ),
            ),
        )
        .order_by(PhysicalFile.epoch, PhysicalFile.file_id)
        .limit(PLAN_ROWS)
    )
    return tuple(UndeletedFile(*row) for row in rows)


def is_lost() -> ColumnElement[bool]:
    """Returns whether nobody will seal a physical file that is being written.

    The batch whose acks could is over, or another request for the same bytes has won.
    """
    takes_acks = (
        select(Checkpoint.checkpoint_id)
        .where(
            Checkpoint.job_id == PhysicalFile.job_id,
            Checkpoint.epoch == PhysicalFile.epoch,
            Checkpoint.batch_id == PhysicalFile.batch_id,
            Checkpoint.status.in_(TAKES_ACKS),
        )
        .exists()
    )
    winner = aliased(PhysicalFile)
    has_winner = (
        select(winner.file_id)
        .where(
            or_(
                winner.file_id == PhysicalFile.retry_of,
                winner.retry_of == func.coalesce(PhysicalFile.retry_of, PhysicalFile.file_id),
            ),
            winner.sealed_at.is_not(None),
        )
        .exists()
    )
    return or_(and_(PhysicalFile.batch_id.is_not(None), ~takes_acks), has_winner)


def may_appear() -> ColumnElement[bool]:
    """Returns whether the object of a physical file may still come: `WRITE_GRACE_MIN`."""
    grace = func.make_interval(0, 0, 0, 0, 0, WRITE_GRACE_MIN)
    return PhysicalFile.created_at > func.now() - grace


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
