"""Beginning a micro-batch: its checkpoint, its parent, and the fencing of older runs.

Lock order everywhere: the job's row, then the checkpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    SQLColumnExpression,
    and_,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from cairn.batch_ref import BatchRef
from cairn.catalog.job.directories import unclaim_directories
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.segments import HANDLE_COLUMNS, handle_of, kill_segments, lists_at, made_in
from cairn.catalog.job.states import drop_states
from cairn.catalog.job.times import CheckpointTimes, next_times, times_of
from cairn.errors import FencedError, RefusedError
from cairn.handles import SegmentHandle
from metastore.enums import CheckpointStatus, SegmentKind, SegmentStatus
from metastore.models import Checkpoint, Job, PhysicalFile, Run, Segment, SubtaskAck

_BEFORE, _RUN_BEFORE = aliased(Checkpoint), aliased(Run)  # each costs a millisecond to make
TAKES_ACKS = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED)
ADOPTED_BATCH = -1
"""The batch of the checkpoint that a restored job starts from, before any query's batch 0."""


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


def begin_batch(connection: Connection, batch: BatchRef, *, with_lists: bool = False) -> BatchStart:
    """Opens the checkpoint of a batch, or finds it open; confirms the parent; fences older runs.

    With `with_lists` the parent has its operator lists, for one more statement.

    Raises:
        FencedError: a newer run has begun a batch, or has taken this one again.
        RefusedError: the job belongs to another query, or the parent's state is not whole.
    """
    job = require_epoch(connection, batch.job_id, batch.epoch, exclusive=True, may_begin=True)
    if job.query_id is not None and job.query_id != batch.query_id:
        raise refuse_second_query(batch.job, job.query_id, batch.query_id)
    # By batch: every executor begins it, and all but the first find it begun.
    found = connection.execute(
        select(Checkpoint.checkpoint_id, Checkpoint.status, Checkpoint.parent_checkpoint).where(
            Checkpoint.job_id == batch.job_id,
            Checkpoint.epoch == batch.epoch,
            Checkpoint.query_id == batch.query_id,
            Checkpoint.batch_id == batch.batch_id,
        )
    ).one_or_none()
    if found is None:
        # Before the checkpoint opens: a hole in the parent has to refuse the batch.
        parent_id = _confirm_parent(connection, batch)
        checkpoint_id, times, before = _open_checkpoint(
            connection,
            batch,
            job.next_checkpoint_id,
            parent_id,
            is_first=job.current_epoch < batch.epoch,
        )
    elif found.status in TAKES_ACKS:  # by another executor, or before a lost answer
        checkpoint_id, parent_id = found.checkpoint_id, found.parent_checkpoint
        times = times_of(connection, batch.job_id, checkpoint_id)
        before = times_of(connection, batch.job_id, parent_id)
    else:
        raise _is_over(batch, found)
    return BatchStart(
        checkpoint_id=checkpoint_id,
        parent=None
        if parent_id is None
        else _parent(connection, batch.job_id, parent_id, with_lists),
        clock=_clock(connection, batch),
        processing_ms=times.processing_ms,
        watermark_ms=times.watermark_ms,
        late_watermark_ms=before.watermark_ms,
    )


def _is_over(batch: BatchRef, found: Row[*tuple[Any, ...]]) -> FencedError:
    return FencedError(
        f"batch {batch.batch_id} is {found.status.value}; a late attempt of it changes nothing",
        job=batch.job,
        checkpoint=found.checkpoint_id,
    )


def _confirm_parent(connection: Connection, batch: BatchRef) -> int | None:
    """Returns the checkpoint of the batch before, now CONFIRMED; None for a job's first batch."""
    of_query = and_(Checkpoint.job_id == batch.job_id, Checkpoint.query_id == batch.query_id)
    # Subsumed ones, too: Spark has committed them, whatever the cleanup has made of them since.
    passed = connection.scalar(
        select(func.max(Checkpoint.batch_id)).where(
            of_query,
            Checkpoint.status.in_([CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED]),
        )
    )
    if passed is not None and passed >= batch.batch_id:
        raise RefusedError(
            f"Spark begins batch {batch.batch_id}, but batch {passed} of this query was already "
            "committed: its checkpointLocation was moved back or edited. Put it back, or start "
            "over with a new checkpointLocation and a new job name",
            job=batch.job,
        )
    previous = connection.execute(
        select(Checkpoint.__table__)
        .where(
            # The checkpoint that a restored job starts from is of batch -1 and of no query.
            of_query if batch.batch_id > 0 else Checkpoint.job_id == batch.job_id,
            Checkpoint.batch_id == batch.batch_id - 1,
            Checkpoint.status != CheckpointStatus.ABORTED,
        )
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(1)
    ).one_or_none()
    if previous is None:
        # The first batch of a job starts from nothing; any other one has lost its parent.
        if batch.batch_id == 0:
            return None
        raise _no_parent(batch, passed)
    if previous.status == CheckpointStatus.IN_PROGRESS:
        raise _hole(connection, batch, previous)
    # Spark begins a batch only after it has committed the one before: that is the confirmation.
    if previous.status == CheckpointStatus.COMPLETED:
        connection.execute(
            update(Checkpoint)
            .where(
                Checkpoint.job_id == batch.job_id,
                Checkpoint.checkpoint_id == previous.checkpoint_id,
            )
            .values(status=CheckpointStatus.CONFIRMED, confirmed_at=func.now())
        )
    return int(previous.checkpoint_id)


def _no_parent(batch: BatchRef, passed: int | None) -> RefusedError:
    found = (
        f"Spark begins batch {batch.batch_id}, but the metastore has no checkpoint of batch "
        f"{batch.batch_id - 1}"
    )
    if passed is None:
        return RefusedError(
            f"{found}: the job is new here, or that batch never ran the stateful operator. Use the "
            "metastore that the query ran with, run every batch's plan in foreachBatch, or start "
            "over with a new checkpointLocation",
            job=batch.job,
        )
    return RefusedError(
        f"{found}; the newest is of batch {passed}. If the metastore was rebuilt, or is a backup, "
        f"let Spark run the batches after it again: stop the query, and delete the files above "
        f"{passed} in the checkpointLocation's commits and above {passed + 1} in its offsets. Or "
        "start a new job with restore_from and a new checkpointLocation. If it is neither, run "
        "every batch's plan in foreachBatch",
        job=batch.job,
    )


def _hole(connection: Connection, batch: BatchRef, previous: Row[*tuple[Any, ...]]) -> RefusedError:
    acked = set(
        connection.scalars(
            select(SubtaskAck.subtask).where(
                SubtaskAck.job_id == batch.job_id,
                SubtaskAck.checkpoint_id == previous.checkpoint_id,
            )
        )
    )
    missing = [i for i in range(previous.parallelism) if i not in acked]
    return RefusedError(
        f"subtasks {missing} never acknowledged batch {previous.batch_id}, so its state is not "
        "whole: something downstream (a limit, a take in foreachBatch) stopped before all "
        "partitions ran. Run the whole result of the stateful operator in every batch",
        job=batch.job,
        checkpoint=previous.checkpoint_id,
    )


def _open_checkpoint(
    connection: Connection,
    batch: BatchRef,
    checkpoint_id: int,
    parent_id: int | None,
    *,
    is_first: bool,
) -> tuple[int, CheckpointTimes, CheckpointTimes]:
    """Returns the new checkpoint's id, its times and those of its parent."""
    # Complete ones too: the batch runs again, perhaps at another parallelism.
    _abort_older_runs(connection, batch)
    connection.execute(
        update(Job)
        .where(Job.job_id == batch.job_id)
        # From here on the older runs are fenced: each of their transactions compares this (ADR
        # 0001).
        .values(current_epoch=batch.epoch, next_checkpoint_id=checkpoint_id + 1)
    )
    run = connection.execute(
        update(Run)
        .where(Run.job_id == batch.job_id, Run.epoch == batch.epoch)
        .values(started_at=func.coalesce(Run.started_at, func.now()), query_id=batch.query_id)
        .returning(Run.__table__)
    ).one()
    # Once per run, and not when its plan is built: a plan may never be started.
    if is_first:
        drop_states(connection, batch.job_id, batch.job, run)
        unclaim_directories(connection, batch.job_id, batch.epoch, run.parallelism)
    before = times_of(connection, batch.job_id, parent_id)
    times = next_times(connection, run, batch.query_id, batch.batch_id, parent_id, before)
    connection.execute(
        insert(Checkpoint).values(
            job_id=batch.job_id,
            checkpoint_id=checkpoint_id,
            epoch=batch.epoch,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            parallelism=run.parallelism,
            parent_checkpoint=parent_id,
            processing_ms=times.processing_ms,
            watermark_ms=times.watermark_ms,
            max_event_ms=times.max_event_ms,
        )
    )
    return checkpoint_id, times, before


def _abort_older_runs(connection: Connection, batch: BatchRef) -> None:
    aborted = connection.scalars(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == batch.job_id,
            Checkpoint.epoch < batch.epoch,
            Checkpoint.status.in_(TAKES_ACKS),
        )
        .values(status=CheckpointStatus.ABORTED, ended_at=func.now())
        .returning(Checkpoint.checkpoint_id)
    ).all()
    if aborted:
        kill_segments(connection, made_in(batch.job_id, aborted))


def _parent(connection: Connection, job_id: str, checkpoint_id: int, with_lists: bool) -> Parent:
    row = connection.execute(
        select(
            Checkpoint.parent_checkpoint,
            Checkpoint.parallelism,
            Run.run_id,
            _RUN_BEFORE.run_id.label("parent_run_id"),
        )
        .join(Run, and_(Run.job_id == Checkpoint.job_id, Run.epoch == Checkpoint.epoch))
        .outerjoin(
            _BEFORE,
            and_(
                _BEFORE.job_id == Checkpoint.job_id,
                _BEFORE.checkpoint_id == Checkpoint.parent_checkpoint,
            ),
        )
        .outerjoin(
            _RUN_BEFORE,
            and_(_RUN_BEFORE.job_id == _BEFORE.job_id, _RUN_BEFORE.epoch == _BEFORE.epoch),
        )
        .where(Checkpoint.job_id == job_id, Checkpoint.checkpoint_id == checkpoint_id)
    ).one()
    return Parent(
        checkpoint_id=checkpoint_id,
        run_id=str(row.run_id),
        parent_checkpoint=row.parent_checkpoint,
        parent_run_id=row.parent_run_id and str(row.parent_run_id),
        parallelism=row.parallelism,
        acks=_parent_acks(connection, job_id, checkpoint_id),
        lists=lists_at(connection, job_id, checkpoint_id) if with_lists else {},
    )


def _parent_acks(connection: Connection, job_id: str, checkpoint_id: int) -> dict[int, ParentAck]:
    of_subtask = and_(
        made_in(job_id, [checkpoint_id]),
        Segment.kind == SegmentKind.CHANGELOG,
        Segment.status == SegmentStatus.LIVE,
        Segment.subtask == SubtaskAck.subtask,
    )
    rows = connection.execute(
        select(SubtaskAck.subtask, SubtaskAck.attempt_id, *HANDLE_COLUMNS)
        # Outer: a subtask that changed nothing has an ack and no segment.
        .outerjoin(Segment, of_subtask)
        .outerjoin(PhysicalFile, PhysicalFile.file_id == Segment.file_id)
        .where(SubtaskAck.job_id == job_id, SubtaskAck.checkpoint_id == checkpoint_id)
        .order_by(Segment.sequence_number)
    )
    acks: dict[int, ParentAck] = {}
    for row in rows:
        before = acks[row.subtask].segments if row.subtask in acks else ()
        segments = before if row.segment_id is None else (*before, handle_of(row))
        acks[row.subtask] = ParentAck(str(row.attempt_id), segments)
    return acks


def _clock(connection: Connection, batch: BatchRef) -> Clock:
    def ms(moment: SQLColumnExpression[datetime]) -> SQLColumnExpression[int]:
        return func.floor(func.extract("epoch", moment) * 1000)

    bases = connection.execute(
        select(func.lower(Segment.key_groups), ms(func.max(Segment.created_at)))
        .where(
            Segment.job_id == batch.job_id,
            Segment.kind.in_([SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT]),
            Segment.status == SegmentStatus.LIVE,
        )
        .group_by(func.lower(Segment.key_groups))
    )
    # The database's clock, because those of executors differ.
    now, created = connection.execute(
        select(ms(func.now()), ms(Job.created_at)).where(Job.job_id == batch.job_id)
    ).one()
    return Clock(int(now), int(created), {start: int(made) for start, made in bases})
