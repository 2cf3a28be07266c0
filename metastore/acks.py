"""Write intents and acknowledgements: seal before ack, in one transaction per group.

Each function is the body of one transaction and may be run again with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Connection,
    Uuid,
    and_,
    column,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.errors import FencedError
from cairn.handles import DirectoryHandle, Scope, SegmentHandle
from metastore.batches import OPEN, BatchRef
from metastore.checkpoints import kill_segments
from metastore.directories import claim_directories
from metastore.models import (
    Checkpoint,
    CheckpointStatus,
    FileStatus,
    Job,
    PhysicalFile,
    Segment,
    SubtaskAck,
)
from metastore.runs import refuse_second_query
from metastore.uploads import UploadStats, record_uploads


@dataclass(frozen=True, slots=True)
class Ack:
    """One subtask's acknowledgement. `segment` is None if it changed nothing."""

    subtask: int
    attempt_id: str
    task_attempt: int
    input_rows: int
    restore_ms: int
    segment: SegmentHandle | None
    late_rows: int = 0
    max_event_ms: tuple[int | None, ...] = ()
    """Latest event time in its rows by input, in ms since 1970; None: no row of that input."""


@dataclass(frozen=True, slots=True)
class IntendedFile:
    """A physical file that is about to be written; `path` is its key below the job's storage.

    `batch_id` is the batch whose acks alone may seal it, if that is so. `retry_of` is the file of
    the first request, if this is another one for the same bytes.
    """

    file_id: str
    path: str
    scope: Scope
    batch_id: int | None = None
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A physical file whose bytes are durable up to `size_bytes`, its end."""

    file_id: str
    size_bytes: int


def intend_files(
    connection: Connection,
    batch: BatchRef,
    files: Sequence[IntendedFile],
    claims: Sequence[DirectoryHandle] = (),
) -> None:
    """Records that physical files are about to be written, before their first byte.

    `claims` are the directories that the run writes to for the first time.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, batch)
    _add_files(connection, batch.job_id, batch.epoch, files, claims)


def intend_initial_rows(
    connection: Connection, job_id: str, epoch: int, file: IntendedFile, claim: DirectoryHandle
) -> None:
    """Records that a file of initial state rows is about to be written, before its run begins."""
    _add_files(connection, job_id, epoch, [file], [claim])


def _add_files(
    connection: Connection,
    job_id: str,
    epoch: int,
    files: Sequence[IntendedFile],
    claims: Sequence[DirectoryHandle],
) -> None:
    if claims:
        claim_directories(connection, job_id, epoch, claims)
    rows = [
        {
            "file_id": UUID(file.file_id),
            "job_id": job_id,
            "epoch": epoch,
            "path": file.path,
            "scope": file.scope,
            "batch_id": file.batch_id,
            "retry_of": UUID(file.retry_of) if file.retry_of else None,
        }
        for file in files
    ]
    statement = insert(PhysicalFile).on_conflict_do_nothing(index_elements=[PhysicalFile.file_id])
    connection.execute(statement, rows)


def require_epoch(connection: Connection, batch: BatchRef) -> str | None:
    """Keeps newer runs from beginning until the transaction ends; returns the job's query.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    job = connection.execute(
        select(Job.current_epoch, Job.query_id)
        .where(Job.job_id == batch.job_id)
        .with_for_update(read=True)
    ).one()
    if job.current_epoch != batch.epoch:
        raise FencedError(
            f"run {batch.epoch} was replaced by run {job.current_epoch}", job=batch.job
        )
    query_id: str | None = job.query_id
    return query_id


def acknowledge(
    connection: Connection,
    batch: BatchRef,
    *,
    checkpoint_id: int,
    tm_id: str,
    acks: Sequence[Ack],
    files: Mapping[str, WrittenFile],
    uploads: Sequence[UploadStats] = (),
) -> None:
    """Seals a group's files, adds their segments and acks, and completes the checkpoint if whole.

    `files` are by the path that their segments have. A later attempt of a subtask replaces an
    earlier one's ack and kills its segment; an ack that is older than the one recorded is passed
    over; one that is already recorded changes nothing. The first ack ever binds the job to its
    query. `uploads` is what writing the files was like; it is recorded as part of a statement that
    is needed anyway.

    Raises:
        FencedError: the checkpoint is no longer open to this run, or a file was condemned.
        RefusedError: the job belongs to another query.
    """
    _bind_query(connection, batch)
    checkpoint = connection.execute(
        select(Checkpoint.status, Checkpoint.epoch)
        .where(Checkpoint.job_id == batch.job_id, Checkpoint.checkpoint_id == checkpoint_id)
        .with_for_update()
    ).one()
    if checkpoint.epoch != batch.epoch or checkpoint.status not in OPEN:
        raise FencedError(
            f"the checkpoint is {checkpoint.status.value}; acks of run {batch.epoch} are refused",
            job=batch.job,
            checkpoint=checkpoint_id,
        )
    winners = _winners(connection, batch.job_id, checkpoint_id, acks)
    seal_files(connection, batch, list(files.values()))
    segments = [
        (files[ack.segment.path].file_id, ack.subtask, ack.segment)
        for ack in winners
        if ack.segment is not None
    ]
    if segments:
        place_segments(connection, batch.job_id, segments)
    if winners:
        _record_acks(connection, batch.job_id, checkpoint_id, tm_id, winners)
    recorded = record_uploads(batch.job_id, checkpoint_id, tm_id, uploads) if uploads else None
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
    bound = require_epoch(connection, batch)
    if bound != batch.query_id:
        raise refuse_second_query(batch.job, str(bound), batch.query_id)


def _winners(
    connection: Connection, job_id: str, checkpoint_id: int, acks: Sequence[Ack]
) -> list[Ack]:
    """Returns the acks to record, and kills the segments of those they replace."""
    rows = connection.execute(
        select(
            SubtaskAck.subtask,
            SubtaskAck.attempt_id,
            SubtaskAck.task_attempt,
            SubtaskAck.segment_id,
        ).where(
            SubtaskAck.job_id == job_id,
            SubtaskAck.checkpoint_id == checkpoint_id,
            SubtaskAck.subtask.in_([ack.subtask for ack in acks]),
        )
    )
    recorded = {row.subtask: row for row in rows}
    newest: dict[int, Ack] = {}
    for ack in acks:
        known = recorded.get(ack.subtask)
        if known is not None and known.task_attempt >= ack.task_attempt:
            continue
        if ack.subtask not in newest or newest[ack.subtask].task_attempt < ack.task_attempt:
            newest[ack.subtask] = ack
    replaced = [recorded[i].segment_id for i in newest if i in recorded and recorded[i].segment_id]
    if replaced:
        kill_segments(connection, Segment.segment_id.in_(replaced))
    return list(newest.values())


def seal_files(connection: Connection, batch: BatchRef, files: Sequence[WrittenFile]) -> None:
    """Marks physical files whole up to their size; one that is sealed already grows to it.

    Doing it again changes nothing.

    Raises:
        FencedError: maintenance has condemned a file, or another writer has continued it.
    """
    if not files:
        return
    sizes = {UUID(file.file_id): file.size_bytes for file in files}
    written = (
        func.unnest(
            literal(list(sizes), ARRAY(Uuid())), literal(list(sizes.values()), ARRAY(BigInteger))
        )
        .table_valued(column("file_id", Uuid()), column("size_bytes", BigInteger), name="written")
        .render_derived()
    )
    sealed = connection.execute(
        update(PhysicalFile)
        .where(
            PhysicalFile.file_id == written.c.file_id,
            or_(
                PhysicalFile.status == FileStatus.WRITING,
                and_(
                    PhysicalFile.status == FileStatus.SEALED,
                    PhysicalFile.size_bytes < written.c.size_bytes,
                ),
            ),
        )
        .values(
            status=FileStatus.SEALED,
            size_bytes=written.c.size_bytes,
            sealed_at=func.coalesce(PhysicalFile.sealed_at, func.now()),
        )
    )
    if sealed.rowcount != len(sizes):
        _require_sealed(connection, batch, sizes)


def _require_sealed(connection: Connection, batch: BatchRef, sizes: Mapping[UUID, int]) -> None:
    for known in connection.execute(
        select(
            PhysicalFile.file_id, PhysicalFile.status, PhysicalFile.path, PhysicalFile.size_bytes
        ).where(PhysicalFile.file_id.in_(sizes))
    ):
        if (known.status, known.size_bytes) != (FileStatus.SEALED, sizes[known.file_id]):
            raise FencedError(
                f"the physical file is {known.status.value} with {known.size_bytes} bytes; "
                "nothing may point into it",
                job=batch.job,
                file=known.path,
                offset=sizes[known.file_id],
            )


def add_segments(
    connection: Connection,
    job_id: str,
    file_id: str,
    segments: Sequence[tuple[int, SegmentHandle]],
) -> None:
    """Inserts segments, each with its subtask, into a sealed file; known ids are passed over."""
    place_segments(connection, job_id, [(file_id, *segment) for segment in segments])


def place_segments(
    connection: Connection, job_id: str, segments: Sequence[tuple[str, int, SegmentHandle]]
) -> None:
    """Inserts segments, each with its sealed file's id and its subtask, in one statement."""
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
        }
        for file_id, subtask, handle in segments
    ]
    connection.execute(
        insert(Segment).values(rows).on_conflict_do_nothing(index_elements=[Segment.segment_id])
    )


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
            "segment_id": UUID(ack.segment.segment_id) if ack.segment else None,
            "input_rows": ack.input_rows,
            "late_rows": ack.late_rows,
            "max_event_ms": list(ack.max_event_ms),
            "restore_ms": ack.restore_ms,
        }
        for ack in acks
    ]
    statement = insert(SubtaskAck).values(rows)
    given = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[SubtaskAck.job_id, SubtaskAck.checkpoint_id, SubtaskAck.subtask],
            set_={
                "attempt_id": given.attempt_id,
                "task_attempt": given.task_attempt,
                "tm_id": given.tm_id,
                "segment_id": given.segment_id,
                "input_rows": given.input_rows,
                "late_rows": given.late_rows,
                "max_event_ms": given.max_event_ms,
                "restore_ms": given.restore_ms,
                "acked_at": func.now(),
            },
        )
    )


def _complete(
    connection: Connection, job_id: str, checkpoint_id: int, recorded: CTE | None
) -> None:
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
    connection.execute(complete if recorded is None else complete.add_cte(recorded))
