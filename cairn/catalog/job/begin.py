"""Beginning a micro-batch: its checkpoint, its parent, and the fencing of older runs.

Lock order everywhere: the job, then the checkpoint's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import TAKES_ACKS, BatchStart, read_start
from cairn.catalog.job.directories import unclaim_directories
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.states import drop_states
from cairn.catalog.job.times import next_times, times_of
from cairn.errors import FencedError, RefusedError
from metastore.enums import CheckpointStatus, CommitStatus
from metastore.group_commits import SubtaskAck
from metastore.models import Checkpoint, GroupCommit, Job, Run

ADOPTED_BATCH = -1
"""The batch of the checkpoint that a restored job starts from, before any query's batch 0."""


def begin_batch(
    connection: Connection,
    batch: BatchRef,
    *,
    subtasks: Sequence[int] | None = None,
    with_lists: bool = False,
) -> BatchStart:
    """Opens the checkpoint of a batch, or finds it open; confirms the parent; fences older runs.

    Every executor begins a batch. The first one locks the job; the others read what it has decided.
    `subtasks` and `with_lists` say what to read of the parent, see `read_start`.

    Raises:
        FencedError: a newer run has begun a batch, or has taken this one again.
        RefusedError: the job belongs to another query, or the parent's state is not whole.
    """
    read = partial(read_start, connection, batch, subtasks=subtasks, with_lists=with_lists)
    start = read()
    if start is None:
        _open(connection, batch)
        start = read()
    if start is None:
        raise FencedError("a newer run began while this batch did", job=batch.job)
    return start


def _open(connection: Connection, batch: BatchRef) -> None:
    """Opens the checkpoint of a batch unless another executor has done it meanwhile."""
    job = require_epoch(connection, batch.job_id, batch.epoch, exclusive=True, may_begin=True)
    if job.query_id is not None and job.query_id != batch.query_id:
        raise refuse_second_query(batch.job, job.query_id, batch.query_id)
    is_open = connection.scalar(
        select(Checkpoint.checkpoint_id).where(
            Checkpoint.job_id == batch.job_id,
            Checkpoint.epoch == batch.epoch,
            Checkpoint.query_id == batch.query_id,
            Checkpoint.batch_id == batch.batch_id,
        )
    )
    if is_open is not None:
        return
    # Before the checkpoint opens: a hole in the parent has to refuse the batch.
    parent_id = _confirm_parent(connection, batch)
    is_first = job.current_epoch < batch.epoch
    _open_checkpoint(connection, batch, job.next_checkpoint_id, parent_id, is_first=is_first)


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
) -> None:
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
        connection.execute(
            update(GroupCommit)
            .where(
                GroupCommit.job_id == batch.job_id,
                GroupCommit.checkpoint_id.in_(aborted),
                GroupCommit.status == CommitStatus.LIVE,
            )
            .values(status=CommitStatus.ABORTED)
        )
