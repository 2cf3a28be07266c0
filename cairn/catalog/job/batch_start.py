"""The begin of a batch as its tasks read it: times, the parent checkpoint, and the acks there.

All of it is immutable once the batch has begun, so it is read without a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    SQLColumnExpression,
    and_,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.orm import aliased

from cairn.batch_ref import BatchRef
from cairn.catalog.job.coverage import COVERING
from cairn.catalog.job.group_commits import committed_segments
from cairn.catalog.job.segments import lists_at
from cairn.errors import FencedError
from cairn.handles import SegmentHandle
from metastore.enums import CheckpointStatus, SegmentKind, SegmentStatus
from metastore.models import Checkpoint, GroupCommit, Job, PlacedSegment, Run

_PARENT, _BEFORE = aliased(Checkpoint), aliased(Checkpoint)  # each costs a millisecond to make
_RUN, _RUN_BEFORE = aliased(Run), aliased(Run)
TAKES_ACKS = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED)


@dataclass(frozen=True, slots=True)
class ParentAck:
    """The attempt whose changes count for one subtask of the parent, and its changelog in order."""

    attempt_id: str
    segments: tuple[SegmentHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The checkpoint whose state a batch starts from, its run, and the one before with its run.

    `acks` and `lists`, the segments of operator lists, are by subtask.
    """

    checkpoint_id: int
    run_id: str
    parent_checkpoint: int | None
    parent_run_id: str | None
    parallelism: int
    acks: dict[int, ParentAck]
    lists: dict[int, SegmentHandle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """Milliseconds since 1970 by the database's clock; bases by the start of their key groups.

    The times of bases are also those of the increments on top of them.
    """

    now_ms: int
    job_created_ms: int
    base_made_ms: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStart:
    """The begin of a batch: its checkpoint, the parent (None: no state yet), and the times.

    Processing time and watermark are those that processors see, in ms since 1970. Rows at or
    before `late_watermark_ms`, the parent's watermark, are late, as in Spark.
    """

    checkpoint_id: int
    parent: Parent | None
    clock: Clock
    processing_ms: int
    watermark_ms: int
    late_watermark_ms: int


def read_start(
    connection: Connection,
    batch: BatchRef,
    *,
    subtasks: Sequence[int] | None = None,
    with_lists: bool = False,
) -> BatchStart | None:
    """Returns the begin of a batch; None if this run has not begun it, or was replaced.

    The parent has the acks of the group commits that have some of the subtasks; None: of all. With
    `with_lists` it has its operator lists, for one more statement.

    Raises:
        FencedError: a newer run has taken the batch again.
    """
    found = connection.execute(_facts(batch)).one_or_none()
    if found is None or found.current_epoch != batch.epoch:
        return None
    if found.status not in TAKES_ACKS:
        raise FencedError(
            f"batch {batch.batch_id} is {found.status.value}; a late attempt of it changes nothing",
            job=batch.job,
            checkpoint=found.checkpoint_id,
        )
    return BatchStart(
        checkpoint_id=found.checkpoint_id,
        parent=_parent(connection, batch.job_id, found, subtasks, with_lists),
        clock=Clock(
            int(found.now_ms), int(found.created_ms), _base_made_ms(connection, batch.job_id)
        ),
        processing_ms=found.processing_ms,
        watermark_ms=found.watermark_ms,
        late_watermark_ms=found.late_watermark_ms or 0,
    )


def _facts(batch: BatchRef) -> Select[*tuple[Any, ...]]:
    """Returns the query for all that rows of single checkpoints, runs and the job say."""
    return (
        select(
            Checkpoint.checkpoint_id,
            Checkpoint.status,
            Checkpoint.processing_ms,
            Checkpoint.watermark_ms,
            Checkpoint.parent_checkpoint,
            _PARENT.watermark_ms.label("late_watermark_ms"),
            _PARENT.parallelism.label("parent_parallelism"),
            _RUN.run_id.label("parent_run_id"),
            _BEFORE.checkpoint_id.label("before"),
            _RUN_BEFORE.run_id.label("run_before"),
            Job.current_epoch,
            # The database's clock, because those of executors differ.
            _ms(func.now()).label("now_ms"),
            _ms(Job.created_at).label("created_ms"),
        )
        .join(Job, Job.job_id == Checkpoint.job_id)
        .outerjoin(_PARENT, _is(_PARENT, Checkpoint.job_id, Checkpoint.parent_checkpoint))
        .outerjoin(_RUN, and_(_RUN.job_id == _PARENT.job_id, _RUN.epoch == _PARENT.epoch))
        .outerjoin(_BEFORE, _is(_BEFORE, _PARENT.job_id, _PARENT.parent_checkpoint))
        .outerjoin(
            _RUN_BEFORE,
            and_(_RUN_BEFORE.job_id == _BEFORE.job_id, _RUN_BEFORE.epoch == _BEFORE.epoch),
        )
        .where(
            Checkpoint.job_id == batch.job_id,
            Checkpoint.epoch == batch.epoch,
            Checkpoint.query_id == batch.query_id,
            Checkpoint.batch_id == batch.batch_id,
        )
    )


def _is(
    which: type[Checkpoint], job_id: SQLColumnExpression[str], id_: SQLColumnExpression[Any]
) -> SQLColumnExpression[bool]:
    return and_(which.job_id == job_id, which.checkpoint_id == id_)


def _ms(moment: SQLColumnExpression[datetime]) -> SQLColumnExpression[int]:
    return func.floor(func.extract("epoch", moment) * 1000)


def _parent(
    connection: Connection,
    job_id: str,
    found: Row[*tuple[Any, ...]],
    subtasks: Sequence[int] | None,
    with_lists: bool,
) -> Parent | None:
    parent_id = found.parent_checkpoint
    if parent_id is None:
        return None
    return Parent(
        checkpoint_id=parent_id,
        run_id=str(found.parent_run_id),
        parent_checkpoint=found.before,
        parent_run_id=found.run_before and str(found.run_before),
        parallelism=found.parent_parallelism,
        acks=acks_at(connection, job_id, parent_id, subtasks),
        lists=lists_at(connection, job_id, parent_id) if with_lists else {},
    )


def acks_at(
    connection: Connection, job_id: str, checkpoint_id: int, subtasks: Sequence[int] | None = None
) -> dict[int, ParentAck]:
    """Returns the acks of a checkpoint's group commits that have some of the subtasks.

    None: of all. One that a checkpoint was restored with, or that was rebuilt, has none.
    """
    of_checkpoint = and_(
        GroupCommit.job_id == job_id,
        GroupCommit.checkpoint_id == checkpoint_id,
    )
    wanted: ColumnElement[bool] = true()
    if subtasks is not None:
        own = literal(list(subtasks), ARRAY(Integer))
        wanted = or_(GroupCommit.subtasks.op("&&")(own), GroupCommit.segment_subtasks.op("&&")(own))
    rows = connection.execute(
        select(GroupCommit.subtasks, GroupCommit.attempt_ids, GroupCommit.replaced_subtasks).where(
            of_checkpoint, wanted
        )
    )
    attempts = {
        subtask: str(attempt_id)
        for row in rows
        for subtask, attempt_id in zip(row.subtasks, row.attempt_ids, strict=True)
        if subtask not in row.replaced_subtasks
    }
    changelog: dict[int, list[SegmentHandle]] = {subtask: [] for subtask in attempts}
    for one in committed_segments(connection, of_checkpoint, wanted):
        if one.handle.kind is SegmentKind.CHANGELOG and one.subtask in changelog:
            changelog[one.subtask].append(one.handle)
    return {
        subtask: ParentAck(
            attempt_id,
            tuple(sorted(changelog[subtask], key=lambda handle: handle.sequence_number)),
        )
        for subtask, attempt_id in attempts.items()
    }


def _base_made_ms(connection: Connection, job_id: str) -> dict[int, int]:
    rows = connection.execute(
        select(func.lower(PlacedSegment.key_groups), _ms(func.max(PlacedSegment.created_at)))
        .where(
            PlacedSegment.job_id == job_id,
            PlacedSegment.kind.in_(COVERING),
            PlacedSegment.status == SegmentStatus.LIVE,
        )
        .group_by(func.lower(PlacedSegment.key_groups))
    )
    return {start: int(made) for start, made in rows}
