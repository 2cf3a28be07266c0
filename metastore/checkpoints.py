"""What a checkpoint holds: segment handles and the order to replay them in."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select, update
from sqlalchemy.dialects.postgresql import Range

from cairn.handles import SegmentHandle, SegmentKind
from cairn.keygroups import KeyGroupRange
from metastore.models import (
    Checkpoint,
    CheckpointStatus,
    Job,
    PhysicalFile,
    Run,
    Segment,
    SegmentStatus,
)

HANDLE_COLUMNS = (
    Segment.segment_id,
    Segment.kind,
    PhysicalFile.path,
    Segment.offset_bytes,
    Segment.size_bytes,
    Segment.sha256,
    Segment.key_groups,
    Segment.entries,
    Segment.first_checkpoint,
    Segment.as_of_checkpoint,
    Segment.released_checkpoint,
)


def segments_at(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> list[SegmentHandle]:
    """Returns the segments of a checkpoint that overlap the key groups, in order of replay.

    Replay order: by `as_of_checkpoint`, and within one a changelog before an increment before a
    base, because a base replaces its key groups whole.
    """
    rows = connection.execute(
        select(*HANDLE_COLUMNS)
        .join(PhysicalFile, PhysicalFile.file_id == Segment.file_id)
        .where(
            state_of(job_id, checkpoint_id),
            Segment.key_groups.op("&&")(Range(key_groups.start, key_groups.end)),
        )
    )
    return sorted(map(handle_of, rows), key=replay_order)


def state_of(job_id: str, checkpoint_id: int) -> ColumnElement[bool]:
    """Returns the condition that a segment is part of a checkpoint's state."""
    return and_(
        Segment.job_id == job_id,
        Segment.status == SegmentStatus.LIVE,
        Segment.kind != SegmentKind.MANIFEST,
        Segment.first_checkpoint <= checkpoint_id,
        or_(
            Segment.released_checkpoint.is_(None),
            Segment.released_checkpoint > checkpoint_id,
        ),
    )


def current_epoch(connection: Connection, job_id: str) -> int:
    """Returns the newest run of a job that has begun a batch; 0 if none has."""
    return connection.execute(select(Job.current_epoch).where(Job.job_id == job_id)).scalar_one()


def lineage_of(connection: Connection, job_id: str, checkpoint_id: int) -> str | None:
    """Returns the id of the run that made a checkpoint which Spark has committed; else None."""
    run_id = connection.scalar(
        select(Run.run_id)
        .join(Checkpoint, and_(Checkpoint.job_id == Run.job_id, Checkpoint.epoch == Run.epoch))
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id == checkpoint_id,
            Checkpoint.status.in_([CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED]),
        )
    )
    return None if run_id is None else str(run_id)


_REPLAY_RANK = {
    SegmentKind.CHANGELOG: 0,
    SegmentKind.KEYED_INCREMENT: 1,
    SegmentKind.KEYED_FULL: 2,
}


def replay_order(handle: SegmentHandle) -> tuple[int, int, KeyGroupRange]:
    """Returns the sort key of replay: as-of checkpoint; changelog, increment, base; key groups."""
    return handle.as_of_checkpoint, _REPLAY_RANK[handle.kind], handle.key_groups


def handle_of(row: Row[*tuple[Any, ...]]) -> SegmentHandle:
    """Returns the handle in a row that has `HANDLE_COLUMNS`."""
    return SegmentHandle(
        str(row.segment_id),
        row.kind,
        row.path,
        row.offset_bytes,
        row.size_bytes,
        row.sha256,
        KeyGroupRange(row.key_groups.lower, row.key_groups.upper),
        row.entries,
        row.first_checkpoint,
        row.as_of_checkpoint,
        row.released_checkpoint,
    )


def kill_segments(connection: Connection, which: ColumnElement[bool]) -> None:
    """Makes segments part of no checkpoint, past or future: their attempt or checkpoint lost."""
    connection.execute(
        update(Segment)
        .where(which, Segment.status == SegmentStatus.LIVE)
        .values(status=SegmentStatus.DEAD, released_checkpoint=Segment.first_checkpoint)
    )
