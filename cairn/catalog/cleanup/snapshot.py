"""The snapshot of a job for a plan: retained checkpoints, released segments, unneeded files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    DateTime,
    Text,
    Uuid,
    column,
    select,
    table,
    text,
    true,
    type_coerce,
)

from cairn.catalog.cleanup.needs import any_uuid, is_needed, is_pinned, multirange
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.jobs import find_job
from metastore.enums import CheckpointStatus, FileStatus, SegmentStatus
from metastore.models import SCHEMA, Checkpoint, PhysicalFile, Pin, PlacedSegment

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
class ReleasedCommit:
    """A LIVE group commit whose changelog no checkpoint from `released_checkpoint` on needs."""

    commit_id: UUID
    file_id: UUID | None
    first_checkpoint: int
    released_checkpoint: int
    live_segments: int


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
    commits: tuple[ReleasedCommit, ...]
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
    read_one_instant(connection)
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
    commits = _released_commits(connection, job, horizon)
    unneeded = _unneeded_files(connection, job)
    # Only files that may become empty: a job has many more.
    holding = {segment.file_id for segment in segments}
    holding |= {commit.file_id for commit in commits if commit.file_id is not None}
    return CleanupSnapshot(
        job=job,
        checkpoints=checkpoints,
        segments=segments,
        commits=commits,
        sealed_files=_sealed_files(connection, job, sorted(holding), PLAN_ROWS - len(unneeded)),
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
            PlacedSegment.segment_id,
            PlacedSegment.file_id,
            PlacedSegment.first_checkpoint,
            type_coerce(PlacedSegment.released_checkpoint, BigInteger).label("released_checkpoint"),
        )
        .where(
            PlacedSegment.job_id == job.job_id,
            PlacedSegment.status == SegmentStatus.LIVE,
            PlacedSegment.released_checkpoint.is_not(None),
            # Many segments that pins keep would fill the limit, and hide what can die.
            ~is_needed(pinned),
            true() if horizon is None else PlacedSegment.released_checkpoint <= horizon,
        )
        # Oldest first: whatever the limit leaves out, the next plan begins with.
        .order_by(PlacedSegment.released_checkpoint, PlacedSegment.segment_id)
        .limit(PLAN_ROWS)
    )
    return tuple(ReleasedSegment(**row) for row in rows.mappings())


_RELEASED_COMMITS = text("""
    WITH covered AS MATERIALIZED (
        SELECT cairn.covered_until(:job_id, NULL) AS until
    ),
    pinned AS MATERIALIZED (
        SELECT p.checkpoint_id, cairn.covered_until(:job_id, p.checkpoint_id) AS until
        FROM (
            SELECT DISTINCT checkpoint_id FROM cairn.pins
            WHERE job_id = :job_id AND removed_at IS NULL
        ) AS p
    ),
    released AS MATERIALIZED (
        SELECT c.*
        FROM cairn.group_commits AS c CROSS JOIN covered
        WHERE c.job_id = :job_id
          AND c.status = 'LIVE'
          AND cairn.is_covered(c.key_groups, c.checkpoint_id, covered.until)
          -- Many that pins keep would fill the limit, and hide what can die.
          AND NOT EXISTS (
            SELECT FROM pinned
            WHERE pinned.checkpoint_id >= c.checkpoint_id
              AND cairn.is_needed_by(
                c.checkpoint_id, c.key_groups, pinned.checkpoint_id, pinned.until
            )
          )
        -- Oldest first: whatever the limit leaves out, the next plan begins with.
        ORDER BY c.checkpoint_id, c.commit_id
        LIMIT :most
    )
    SELECT
        commit_id,
        file_id,
        checkpoint_id AS first_checkpoint,
        cairn.released_at(job_id, key_groups, checkpoint_id) AS released_checkpoint,
        (
            SELECT count(*) FROM unnest(segment_subtasks) AS s (subtask)
            WHERE s.subtask <> ALL (replaced_subtasks)
        ) AS live_segments
    FROM released
""")


def _released_commits(
    connection: Connection, job: JobFacts, horizon: int | None
) -> tuple[ReleasedCommit, ...]:
    rows = connection.execute(_RELEASED_COMMITS, {"job_id": job.job_id, "most": PLAN_ROWS})
    released = [ReleasedCommit(**row) for row in rows.mappings()]
    return tuple(
        commit for commit in released if horizon is None or commit.released_checkpoint <= horizon
    )


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
