"""The segments of a checkpoint: handles and the order to replay them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select, update
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from metastore.enums import KEYED, OF_AN_ATTEMPT, CheckpointStatus, SegmentKind, SegmentStatus
from metastore.models import Checkpoint, Job, PhysicalFile, Run, Segment

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
    Segment.sequence_number,
)


def segments_at(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> list[SegmentHandle]:
    """Returns a checkpoint's segments of keyed state in the key groups, in order of replay.

    Replay order: by `as_of_checkpoint`, and within one a changelog before an increment before a
    base, because a base replaces its key groups whole.
    """
    rows = connection.execute(
        select(*HANDLE_COLUMNS)
        .join(PhysicalFile, PhysicalFile.file_id == Segment.file_id)
        .where(
            state_of(job_id, checkpoint_id),
            Segment.kind.in_(KEYED),
            Segment.key_groups.op("&&")(Range(key_groups.start, key_groups.end)),
        )
    )
    return sorted(map(handle_of, rows), key=replay_order)


def lists_at(connection: Connection, job_id: str, checkpoint_id: int) -> dict[int, SegmentHandle]:
    """Returns a checkpoint's segments of operator lists by subtask; most have none."""
    rows = connection.execute(
        select(Segment.subtask, *HANDLE_COLUMNS)
        .join(PhysicalFile, PhysicalFile.file_id == Segment.file_id)
        .where(state_of(job_id, checkpoint_id), Segment.kind == SegmentKind.OPERATOR)
    )
    return {row.subtask: handle_of(row) for row in rows}


def state_of(job_id: str, checkpoint_id: int) -> ColumnElement[bool]:
    """Returns the condition that a segment is part of a checkpoint's state, of any kind."""
    return and_(
        Segment.job_id == job_id,
        Segment.status == SegmentStatus.LIVE,
        # A manifest describes the state and is no part of it.
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
            # Subsumed ones, too: local state that is far behind may be of one.
            Checkpoint.status.in_([CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED]),
        )
    )
    return None if run_id is None else str(run_id)


_REPLAY_RANK = {
    SegmentKind.CHANGELOG: 0,
    SegmentKind.KEYED_INCREMENT: 1,
    SegmentKind.KEYED_FULL: 2,
    SegmentKind.OPERATOR: 3,
    SegmentKind.CHANNEL: 4,
}


def replay_order(handle: SegmentHandle) -> tuple[int, int, KeyGroupRange, int]:
    """Returns the sort key of replay.

    By as-of checkpoint; changelog, increment, base, and kinds not replayed; key groups, which
    one subtask has in one checkpoint; sequence number.
    """
    rank = _REPLAY_RANK[handle.kind]
    return handle.as_of_checkpoint, rank, handle.key_groups, handle.sequence_number


def handle_of(row: Row[*tuple[Any, ...]]) -> SegmentHandle:
    """Returns the handle in a row that has `HANDLE_COLUMNS`."""
    return SegmentHandle(
        segment_id=str(row.segment_id),
        kind=row.kind,
        path=row.path,
        offset=row.offset_bytes,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        key_groups=KeyGroupRange(row.key_groups.lower, row.key_groups.upper),
        entries=row.entries,
        first_checkpoint=row.first_checkpoint,
        as_of_checkpoint=row.as_of_checkpoint,
        released_checkpoint=row.released_checkpoint,
        sequence_number=row.sequence_number,
    )


def made_in(job_id: str, checkpoints: Sequence[int]) -> ColumnElement[bool]:
    """Returns the condition that a segment is what attempts at some checkpoints have made.

    A base is the state of a confirmed checkpoint and outlives the one it was made in.
    """
    return and_(
        Segment.job_id == job_id,
        Segment.first_checkpoint.in_(checkpoints),
        Segment.kind.in_(OF_AN_ATTEMPT),
    )


def kill_segments(connection: Connection, which: ColumnElement[bool]) -> None:
    """Makes segments part of no checkpoint, past or future: their attempt or checkpoint lost."""
    connection.execute(
        update(Segment)
        .where(which, Segment.status == SegmentStatus.LIVE)
        # An empty interval: no checkpoint has it, whichever condition is asked.
        .values(status=SegmentStatus.DEAD, released_checkpoint=Segment.first_checkpoint)
    )


def place_segments(
    connection: Connection, job_id: str, segments: Sequence[tuple[str, int, SegmentHandle]]
) -> None:
    """Inserts segments, at least one, each with its sealed file's id and its subtask.

    Those whose ids are known are passed over.
    """
    rows = [
        {
            "segment_id": UUID(handle.segment_id),
            "job_id": job_id,
            "file_id": UUID(file_id),
            "kind": handle.kind,
            "subtask": subtask,
            "key_groups": Range(handle.key_groups.start, handle.key_groups.end),
            "offset_bytes": handle.offset,
            "size_bytes": handle.size_bytes,
            "sha256": handle.sha256,
            "entries": handle.entries,
            "first_checkpoint": handle.first_checkpoint,
            "as_of_checkpoint": handle.as_of_checkpoint,
            "released_checkpoint": handle.released_checkpoint,
            "sequence_number": handle.sequence_number,
        }
        for file_id, subtask, handle in segments
    ]
    connection.execute(
        insert(Segment).on_conflict_do_nothing(index_elements=[Segment.segment_id]), rows
    )
