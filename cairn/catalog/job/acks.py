"""Acknowledgements: seal before ack, in one transaction per group.

The transaction may be run again with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, text, update

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import TAKES_ACKS
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.group_commits import Ack, Group, add_group
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import FencedError
from metastore.models import Job

# As constant texts: to build these statements anew takes longer than to run them.
# One group after the other holds the lock: the last one must see the acks of all.
_LOCK_CHECKPOINT = text("""
    SELECT status, epoch, parallelism FROM cairn.checkpoints
    WHERE job_id = :job_id AND checkpoint_id = :checkpoint_id FOR NO KEY UPDATE
""")
_RECORDED = text("""
    SELECT subtasks, task_attempts, replaced_subtasks FROM cairn.group_commits
    WHERE job_id = :job_id AND checkpoint_id = :checkpoint_id
      AND subtasks && CAST(:subtasks AS integer[])
""")
_REPLACE = text("""
    UPDATE cairn.group_commits
    SET replaced_subtasks = replaced_subtasks || CAST(:subtasks AS integer[])
    WHERE job_id = :job_id AND checkpoint_id = :checkpoint_id
      AND (subtasks && CAST(:subtasks AS integer[])
        OR segment_subtasks && CAST(:subtasks AS integer[]))
""")
_COMPLETE = text("SELECT cairn.complete_checkpoint(:job_id, :checkpoint_id)")


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
    connection.execute(_COMPLETE, {"job_id": batch.job_id, "checkpoint_id": checkpoint_id})


def _lock_checkpoint(
    connection: Connection, batch: BatchRef, checkpoint_id: int
) -> Row[*tuple[Any, ...]]:
    facts = {"job_id": batch.job_id, "checkpoint_id": checkpoint_id}
    checkpoint = connection.execute(_LOCK_CHECKPOINT, facts).one()
    if checkpoint.epoch != batch.epoch or checkpoint.status not in TAKES_ACKS:
        raise FencedError(
            f"the checkpoint is {checkpoint.status}; acks of run {batch.epoch} are refused",
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
    facts = {"job_id": job_id, "checkpoint_id": checkpoint_id}
    rows = connection.execute(_RECORDED, {**facts, "subtasks": [ack.subtask for ack in acks]})
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
        connection.execute(_REPLACE, {**facts, "subtasks": replaced})
    return list(newest.values())
