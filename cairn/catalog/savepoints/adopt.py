"""Giving a new job the state of a manifest: copied files, and the checkpoint that they make up.

The checkpoint stands for batch -1, so it is the parent of batch 0 of the job's first query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import RunRef
from cairn.catalog.job.begin import ADOPTED_BATCH
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.runs import begun_without_origin
from cairn.catalog.job.segments import place_segments
from cairn.handles import SegmentHandle
from cairn.manifest import Manifest
from metastore.enums import CheckpointStatus, Scope
from metastore.models import Checkpoint, Job, PhysicalFile


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of copied segments whose bytes are durable; each segment with its subtask."""

    file: WrittenFile
    segments: tuple[tuple[int, SegmentHandle], ...]


def intend_copy(connection: Connection, run: RunRef, file_id: str, path: str) -> None:
    """Records that a file of adopted segments is about to be written.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, run, may_begin=True)
    add_copy(connection, run, file_id, path, Scope.TASK_MANAGER)


def add_copy(connection: Connection, run: RunRef, file_id: str, path: str, scope: Scope) -> None:
    """Adds a file of adopted segments. The caller has checked that the run may write."""
    connection.execute(
        insert(PhysicalFile)
        .values(
            file_id=UUID(file_id),
            job_id=run.job_id,
            epoch=run.epoch,
            path=path,
            scope=scope,
        )
        .on_conflict_do_nothing(index_elements=[PhysicalFile.file_id])
    )


def adopt_checkpoint(
    connection: Connection, run: RunRef, origin: Manifest, copied: Sequence[CopiedFile]
) -> None:
    """Makes copied segments the state that a job without any starts from, CONFIRMED.

    The checkpoint keeps its id, and so do those that its segments name. If the job has such a
    checkpoint already, by another plan or by this transaction's first try, nothing changes.

    Raises:
        FencedError: a newer run has begun a batch.
        RefusedError: the job has begun batches of its own.
    """
    require_epoch(connection, run, exclusive=True, may_begin=True)
    job_id = run.job_id
    batches = connection.scalars(
        select(Checkpoint.batch_id).where(Checkpoint.job_id == job_id)
    ).all()
    # Restored already, by another plan or a first try; these copies are left to cleanup.
    if ADOPTED_BATCH in batches:
        return
    if batches:
        raise begun_without_origin(run.job)
    for each in copied:
        seal_files(connection, [each.file])
        placed = [(each.file.file_id, *segment) for segment in each.segments]
        place_segments(connection, job_id, placed)
    start = replace(
        origin,
        job_id=job_id,
        epoch=run.epoch,
        query_id="",
        batch_id=ADOPTED_BATCH,
        parent_checkpoint=None,
    )
    add_confirmed(connection, start)
    connection.execute(
        # Ids continue behind the origin's, so that its segments' intervals stay true.
        update(Job).where(Job.job_id == job_id).values(next_checkpoint_id=origin.checkpoint_id + 1)
    )


def add_confirmed(connection: Connection, made: Manifest) -> None:
    """Adds the checkpoint of a manifest, CONFIRMED. It has no acks: its segments are its state."""
    connection.execute(
        insert(Checkpoint).values(
            job_id=made.job_id,
            checkpoint_id=made.checkpoint_id,
            epoch=made.epoch,
            query_id=made.query_id,
            batch_id=made.batch_id,
            parallelism=made.parallelism,
            parent_checkpoint=made.parent_checkpoint,
            processing_ms=made.processing_ms,
            watermark_ms=made.watermark_ms,
            max_event_ms=list(made.max_event_ms),
        )
    )
    # By both steps: the status trigger knows no way from IN_PROGRESS to CONFIRMED.
    for status, moment in (
        (CheckpointStatus.COMPLETED, Checkpoint.completed_at),
        (CheckpointStatus.CONFIRMED, Checkpoint.confirmed_at),
    ):
        connection.execute(
            update(Checkpoint)
            .where(
                Checkpoint.job_id == made.job_id,
                Checkpoint.checkpoint_id == made.checkpoint_id,
            )
            .values({Checkpoint.status: status, moment: func.now()})
        )
