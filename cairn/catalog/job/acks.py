"""Acknowledgements: seal before ack, in one transaction per group.

The transaction may be run again with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import CTE, Connection, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import BatchRef
from cairn.catalog.job.begin import TAKES_ACKS
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.segments import kill_segments, made_in, place_segments
from cairn.catalog.job.upload_stats import UploadStats, record_uploads
from cairn.errors import FencedError
from cairn.handles import SegmentHandle
from metastore.enums import CheckpointStatus
from metastore.models import Checkpoint, Job, Segment, SubtaskAck


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One subtask's acknowledgement. It has no segments if it changed nothing."""

    subtask: int
    attempt_id: str
    task_attempt: int
    input_rows: int
    restore_ms: int
    segments: tuple[SegmentHandle, ...] = ()
    late_rows: int = 0
    max_event_ms: tuple[int | None, ...] = ()
    """Latest event time in its rows by input, in ms since 1970; None: no row of that input."""


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
    _bind_query(connection, batch)
    checkpoint = connection.execute(
        select(Checkpoint.status, Checkpoint.epoch)
        .where(Checkpoint.job_id == batch.job_id, Checkpoint.checkpoint_id == checkpoint_id)
        .with_for_update()  # one group after the other: the last one must see the acks of all
    ).one()
    if checkpoint.epoch != batch.epoch or checkpoint.status not in TAKES_ACKS:
        raise FencedError(
            f"the checkpoint is {checkpoint.status.value}; acks of run {batch.epoch} are refused",
            job=batch.job,
            checkpoint=checkpoint_id,
        )
    winners = _winners(connection, batch.job_id, checkpoint_id, acks)
    seal_files(connection, batch, list(files.values()))  # a condemned file refuses all acks
    segments = [
        (files[segment.path].file_id, ack.subtask, segment)
        for ack in winners
        for segment in ack.segments
    ]
    if segments:
        place_segments(connection, batch.job_id, segments)
    if winners:
        _record_acks(connection, batch.job_id, checkpoint_id, tm_id, winners)
    recorded = None
    if uploads:
        recorded = record_uploads(batch.job_id, checkpoint_id, tm_id, uploads, pool_wait_ms)
    _complete(connection, batch.job_id, checkpoint_id, recorded)


def _bind_query(connection: Connection, batch: BatchRef) -> None:
    """Locks the job against fencing for the transaction and binds it to the query."""
    # Before the shared lock: two executors that hold it would deadlock on the way to this one.
    connection.execute(
        update(Job)
        .where(
            Job.job_id == batch.job_id,
            Job.current_epoch == batch.epoch,
            Job.query_id.is_(None),
        )
        .values(query_id=batch.query_id)
    )
    job = require_epoch(connection, batch.job_id, batch.epoch)
    if job.query_id != batch.query_id:
        raise refuse_second_query(batch.job, job.query_id, batch.query_id)


def _winners(
    connection: Connection, job_id: str, checkpoint_id: int, acks: Sequence[Ack]
) -> list[Ack]:
    """Returns the acks to record, and kills the segments of those they replace."""
    rows = connection.execute(
        select(SubtaskAck.subtask, SubtaskAck.task_attempt).where(
            SubtaskAck.job_id == job_id,
            SubtaskAck.checkpoint_id == checkpoint_id,
            SubtaskAck.subtask.in_([ack.subtask for ack in acks]),
        )
    )
    recorded = {row.subtask: row.task_attempt for row in rows}
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
        of_replaced = Segment.subtask.in_(replaced)
        kill_segments(connection, and_(made_in(job_id, [checkpoint_id]), of_replaced))
    return list(newest.values())


def _record_acks(
    connection: Connection, job_id: str, checkpoint_id: int, tm_id: str, acks: Sequence[Ack]
) -> None:
    rows = [
        {
            "job_id": job_id,
            "checkpoint_id": checkpoint_id,
            "subtask": ack.subtask,
            "attempt_id": UUID(ack.attempt_id),
            "task_attempt": ack.task_attempt,
            "tm_id": tm_id,
            "input_rows": ack.input_rows,
            "late_rows": ack.late_rows,
            "max_event_ms": list(ack.max_event_ms),
            "restore_ms": ack.restore_ms,
        }
        for ack in acks
    ]
    statement = insert(SubtaskAck)
    given = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[SubtaskAck.job_id, SubtaskAck.checkpoint_id, SubtaskAck.subtask],
            set_={
                "attempt_id": given.attempt_id,
                "task_attempt": given.task_attempt,
                "tm_id": given.tm_id,
                "input_rows": given.input_rows,
                "late_rows": given.late_rows,
                "max_event_ms": given.max_event_ms,
                "restore_ms": given.restore_ms,
                "acked_at": func.now(),
            },
        ),
        rows,
    )


def _complete(
    connection: Connection, job_id: str, checkpoint_id: int, recorded: CTE | None
) -> None:
    # Counted in the statement: an earlier count would miss the acks that it has waited for.
    acked = (
        select(func.count())
        .select_from(SubtaskAck)
        .where(SubtaskAck.job_id == job_id, SubtaskAck.checkpoint_id == checkpoint_id)
        .scalar_subquery()
    )
    complete = (
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id == checkpoint_id,
            Checkpoint.status == CheckpointStatus.IN_PROGRESS,
            Checkpoint.parallelism == acked,
        )
        .values(status=CheckpointStatus.COMPLETED, completed_at=func.now())
    )
    # The statistics ride along in this statement: they may cost the batch no round trip.
    connection.execute(complete if recorded is None else complete.add_cte(recorded))
