"""The snapshot of a job for a plan: retained checkpoints, released segments, unneeded files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    DateTime,
    Row,
    Text,
    Uuid,
    column,
    select,
    table,
    text,
    true,
    type_coerce,
)

from cairn.catalog.cleanup.needs import any_uuid, is_kept, is_needed, multirange_of
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.jobs import find_job
from metastore.enums import CheckpointStatus, FileStatus, SegmentStatus
from metastore.models import SCHEMA, Checkpoint, Job, PhysicalFile, PlacedSegment

PLAN_ROWS = 500
"""Most rows of one table in a snapshot: who applies a plan keeps the job's batches waiting."""

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
    file_retention_ms: int
    current_epoch: int
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """A checkpoint that is IN_PROGRESS, COMPLETED or CONFIRMED."""

    checkpoint_id: int
    status: CheckpointStatus
    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSegment:
    """A LIVE segment that no checkpoint from `released_checkpoint` on needs."""

    segment_id: UUID
    file_id: UUID
    first_checkpoint: int
    released_checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedCommit:
    """A LIVE group commit whose changelog no checkpoint from `released_checkpoint` on needs.

    That is the first one after it that stays, or an earlier one.
    """

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

    Segments that a checkpoint needs which stays are not in it.
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
    job = _facts_of(find_job(connection, job_name))
    checkpoints, horizon = _retained_checkpoints(connection, job)
    subsumed = set(subsumed_of(checkpoints, job.num_retained))
    # What these need would fill the limits below, and hide what can die.
    staying = [one.checkpoint_id for one in checkpoints if one.checkpoint_id not in subsumed]
    segments = _released_segments(connection, job, staying, horizon)
    commits = _released_commits(connection, job, staying, horizon)
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


def read_job(connection: Connection, job_id: str) -> JobFacts | None:
    """Returns the facts of a job by its id; None if there is none."""
    query = select(Job.__table__).where(Job.job_id == job_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _facts_of(row)


def facts_of_job(connection: Connection, job_name: str) -> JobFacts:
    """Returns the facts of a job by its name.

    Raises:
        BadInputError: there is no such job.
    """
    return _facts_of(find_job(connection, job_name))


def _facts_of(row: Row[Any]) -> JobFacts:
    return JobFacts(
        job_id=row.job_id,
        name=row.name,
        storage=row.storage,
        num_retained=row.num_retained,
        file_retention_ms=row.file_retention_ms,
        current_epoch=row.current_epoch,
        is_dropped=row.dropped_at is not None,
    )


def _retained_checkpoints(
    connection: Connection, job: JobFacts
) -> tuple[tuple[RetainedCheckpoint, ...], int | None]:
    """Returns the oldest retained checkpoints, those pinned, the newest confirmed, and the horizon.

    All retained checkpoints up to the horizon are in it; None: all are. Pinned ones do not count
    towards the limit, or many of them would hide what can be subsumed.
    """
    kept_besides = is_kept(job.job_id)
    columns = (Checkpoint.checkpoint_id, Checkpoint.status, kept_besides)
    is_retained = (Checkpoint.job_id == job.job_id, Checkpoint.status.in_(RETAINED))
    oldest = connection.execute(
        select(*columns)
        .where(*is_retained, ~kept_besides)
        .order_by(Checkpoint.checkpoint_id)
        .limit(PLAN_ROWS)
    ).all()
    kept = connection.execute(select(*columns).where(*is_retained, kept_besides)).all()
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


def subsumed_of(checkpoints: Iterable[RetainedCheckpoint], num_retained: int) -> list[int]:
    """Returns which of a job's checkpoints are not retained any longer, oldest first.

    The newest `num_retained` confirmed ones stay, all that are pinned, and all that are not
    confirmed.
    """
    confirmed = sorted(
        (one for one in checkpoints if one.status is CheckpointStatus.CONFIRMED),
        key=lambda one: one.checkpoint_id,
    )
    # Pinned ones stay besides, and do not take the place of one that is retained.
    return [old.checkpoint_id for old in confirmed[:-num_retained] if not old.is_kept]


def _released_segments(
    connection: Connection, job: JobFacts, staying: Sequence[int], horizon: int | None
) -> tuple[ReleasedSegment, ...]:
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
            ~is_needed(multirange_of(staying)),
            true() if horizon is None else PlacedSegment.released_checkpoint <= horizon,
        )
        # Oldest first: whatever the limit leaves out, the next plan begins with.
        .order_by(PlacedSegment.released_checkpoint, PlacedSegment.segment_id)
        .limit(PLAN_ROWS)
    )
    return tuple(ReleasedSegment(**row) for row in rows.mappings())


# A group commit is in a gap between two checkpoints that stay. If the later one does not need it,
# newer ones do not: the bases of a checkpoint are those of all newer ones, too.
_RELEASED_COMMITS = text("""
    WITH gaps AS MATERIALIZED (
        SELECT g.after, g.before, cairn.covered_until(:job_id, g.before) AS until
        FROM unnest(CAST(:after AS bigint[]), CAST(:before AS bigint[])) AS g (after, before)
        WHERE EXISTS (
            SELECT FROM cairn.group_commits AS c
            WHERE c.job_id = :job_id
              AND c.status = 'LIVE'
              AND c.checkpoint_id > g.after
              AND c.checkpoint_id < coalesce(g.before, 9223372036854775807)
        )
    )
    SELECT released.*
    FROM gaps CROSS JOIN LATERAL (
        SELECT
            c.commit_id,
            c.file_id,
            c.checkpoint_id AS first_checkpoint,
            coalesce(gaps.before, c.checkpoint_id + 1) AS released_checkpoint,
            (
                SELECT count(*) FROM unnest(c.segment_subtasks) AS s (subtask)
                WHERE s.subtask <> ALL (c.replaced_subtasks)
            ) AS live_segments
        FROM cairn.group_commits AS c
        WHERE c.commit_id IN (
            -- No base covers those after the newest base's state, and most of what is live is.
            (
                SELECT g.commit_id FROM cairn.group_commits AS g
                WHERE g.job_id = :job_id
                  AND g.status = 'LIVE'
                  AND g.checkpoint_id > gaps.after
                  AND g.checkpoint_id < coalesce(gaps.before, 9223372036854775807)
                  AND g.checkpoint_id <= (SELECT max(u.until) FROM unnest(gaps.until) AS u (until))
                  AND cairn.is_covered(g.key_groups, g.checkpoint_id, gaps.until)
                ORDER BY g.checkpoint_id
                LIMIT :most
            )
            UNION ALL
            (
                SELECT g.commit_id FROM cairn.group_commits AS g
                WHERE g.job_id = :job_id
                  AND g.status = 'LIVE'
                  AND g.key_groups = '{}'
                  AND g.checkpoint_id > gaps.after
                  AND g.checkpoint_id < coalesce(gaps.before, 9223372036854775807)
                  AND g.checkpoint_id > (SELECT max(u.until) FROM unnest(gaps.until) AS u (until))
                ORDER BY g.checkpoint_id
                LIMIT :most
            )
        )
        ORDER BY c.checkpoint_id
        LIMIT :most
    ) AS released
    -- Oldest first: whatever the limit leaves out, the next plan begins with.
    ORDER BY first_checkpoint, commit_id
    LIMIT :most
""")


def _released_commits(
    connection: Connection, job: JobFacts, staying: Sequence[int], horizon: int | None
) -> tuple[ReleasedCommit, ...]:
    gaps = list(_gaps(staying, horizon))
    rows = connection.execute(
        _RELEASED_COMMITS,
        {
            "job_id": job.job_id,
            "after": [after for after, _ in gaps],
            "before": [before for _, before in gaps],
            "most": PLAN_ROWS,
        },
    )
    return tuple(ReleasedCommit(**row) for row in rows.mappings())


def _gaps(staying: Sequence[int], horizon: int | None) -> Iterator[tuple[int, int | None]]:
    """Yields the checkpoints around each gap between those that stay; None: those to come."""
    after = 0
    for checkpoint_id in staying:
        before = checkpoint_id if horizon is None else min(checkpoint_id, horizon)
        if before > after + 1:
            yield after, before
        after = max(after, before)
    if horizon is None:
        yield after, None


# The view decides. These are all that it may have to condemn of a job that was not dropped, found
# by an index each: alone, it would read every file that is not deleted.
_MAY_BE_UNNEEDED = text("""
    file_id = ANY (ARRAY(
        SELECT f.file_id FROM cairn.physical_files AS f
        WHERE f.job_id = :job_id AND f.status = 'WRITING'
        UNION ALL
        (
            SELECT f.file_id FROM cairn.physical_files AS f
            WHERE f.job_id = :job_id AND f.status = 'SEALED' AND f.is_empty
            LIMIT :most
        )
    ))
""")


def _unneeded_files(connection: Connection, job: JobFacts) -> tuple[UnneededFile, ...]:
    files = UNNEEDED_FILES.c
    some = _MAY_BE_UNNEEDED.bindparams(job_id=job.job_id, most=PLAN_ROWS)
    rows = connection.execute(
        select(files.file_id, files.path, files.size_bytes, files.reason)
        .where(files.job_id == job.job_id, files.is_condemnable, true() if job.is_dropped else some)
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
