"""Acknowledgements: seal before ack, in one transaction per group.

The transaction may be run again with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Integer,
    Row,
    and_,
    func,
    literal,
    or_,
    select,
    update,
)

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import TAKES_ACKS
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.group_commits import Ack, Group, add_group
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import FencedError
from metastore.enums import CheckpointStatus
from metastore.group_commits import SubtaskAck
from metastore.models import Checkpoint, GroupCommit, Job


def acknowledge(
    connection: Connection,
    batch: BatchRef,
    *,
    checkpoint_id: int,
    tm_id: str,
    acks: Sequence[Ack],
    files: Mapping[str, WrittenFile],
    uploads: Sequence[UploadStats] = (),
    pool_wait_ms: int = 0,
) -> None:
    """Seals a group's files, adds their segments and acks, and completes the checkpoint if whole.

    `files` are by the path that their segments have. A later attempt of a subtask replaces an
    earlier one's ack and kills its segments; an ack that is older than the one recorded is passed
    over; one that is already recorded changes nothing. The first ack ever binds the job to its
    query. `uploads` is what writing the files was like, and `pool_wait_ms` how long the group
    waited before; they are recorded as part of a statement that is needed anyway.

    Raises:
        FencedError: the checkpoint is no longer open to this run, or a file was condemned.
        RefusedError: the job belongs to another query.
    """
    job = require_epoch(connection, batch.job_id, batch.epoch)
    _bind_query(connection, batch, job)
    checkpoint = _lock_checkpoint(connection, batch, checkpoint_id)
    winners = _winners(connection, batch.job_id, checkpoint_id, acks)
    seal_files(connection, batch, list(files.values()))  # a condemned file refuses all acks
    if not winners:
        return
    group = Group(
        job_id=batch.job_id,
        checkpoint_id=checkpoint_id,
        tm_id=tm_id,
        parallelism=checkpoint.parallelism,
        max_parallelism=job.max_parallelism,
        acks=winners,
        files=files,
        uploads=uploads,
        pool_wait_ms=pool_wait_ms,
    )
    add_group(connection, group)
    _complete(connection, batch.job_id, checkpoint_id)


def _lock_checkpoint(
    connection: Connection, batch: BatchRef, checkpoint_id: int
) -> Row[*tuple[Any, ...]]:
    checkpoint = connection.execute(
        select(Checkpoint.status, Checkpoint.epoch, Checkpoint.parallelism)
        .where(Checkpoint.job_id == batch.job_id, Checkpoint.checkpoint_id == checkpoint_id)
        # One group after the other: the last one must see the acks of all.
        .with_for_update(key_share=True)
    ).one()
    if checkpoint.epoch != batch.epoch or checkpoint.status not in TAKES_ACKS:
        raise FencedError(
            f"the checkpoint is {checkpoint.status.value}; acks of run {batch.epoch} are refused",
            job=batch.job,
            checkpoint=checkpoint_id,
        )
    return checkpoint


def _bind_query(connection: Connection, batch: BatchRef, job: Row[*tuple[Any, ...]]) -> None:
    """Binds the job to the query of its first acknowledgement."""
    query_id = job.query_id
    if query_id is None:
        query_id = connection.scalar(
            update(Job)
            .where(Job.job_id == batch.job_id)
            # Another executor may have bound it since it was read.
            .values(query_id=func.coalesce(Job.query_id, batch.query_id))
            .returning(Job.query_id)
        )
    if query_id != batch.query_id:
        raise refuse_second_query(batch.job, query_id, batch.query_id)


def _winners(
    connection: Connection, job_id: str, checkpoint_id: int, acks: Sequence[Ack]
) -> list[Ack]:
    """Returns the acks to record, and makes void what is recorded of those they replace."""
    subtasks = literal([ack.subtask for ack in acks], ARRAY(Integer))
    of_checkpoint = and_(GroupCommit.job_id == job_id, GroupCommit.checkpoint_id == checkpoint_id)
    rows = connection.execute(
        select(
            GroupCommit.subtasks, GroupCommit.task_attempts, GroupCommit.replaced_subtasks
        ).where(of_checkpoint, GroupCommit.subtasks.op("&&")(subtasks))
    )
    recorded = {
        subtask: attempt
        for row in rows
        for subtask, attempt in zip(row.subtasks, row.task_attempts, strict=True)
        if subtask not in row.replaced_subtasks
    }
    newest: dict[int, Ack] = {}
    for ack in acks:
        # Equal: the same ack again, after a commit whose answer was lost.
        if recorded.get(ack.subtask, -1) >= ack.task_attempt:
            continue
        if ack.subtask not in newest or newest[ack.subtask].task_attempt < ack.task_attempt:
            newest[ack.subtask] = ack
    replaced = [subtask for subtask in newest if subtask in recorded]
    # The earlier attempt's: both would replay, and Spark counts the later one.
    if replaced:
        _replace(connection, of_checkpoint, replaced)
    return list(newest.values())


def _replace(
    connection: Connection, of_checkpoint: ColumnElement[bool], subtasks: Sequence[int]
) -> None:
    void = literal(list(subtasks), ARRAY(Integer))
    connection.execute(
        update(GroupCommit)
        .where(
            of_checkpoint,
            or_(GroupCommit.subtasks.op("&&")(void), GroupCommit.segment_subtasks.op("&&")(void)),
        )
        .values(replaced_subtasks=GroupCommit.replaced_subtasks.op("||")(void))
    )


def _complete(connection: Connection, job_id: str, checkpoint_id: int) -> None:
    # Counted in the statement: an earlier count would miss the acks that it has waited for.
    acked = (
        select(func.count())
        .select_from(SubtaskAck)
        .where(SubtaskAck.job_id == job_id, SubtaskAck.checkpoint_id == checkpoint_id)
        .scalar_subquery()
    )
    connection.execute(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id == checkpoint_id,
            Checkpoint.status == CheckpointStatus.IN_PROGRESS,
            Checkpoint.parallelism == acked,
        )
        .values(status=CheckpointStatus.COMPLETED, completed_at=func.now())
    )
