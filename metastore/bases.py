"""Installing materialised segments and releasing what they replace (FLIP-158)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, func, select, update

from cairn.errors import FencedError
from cairn.handles import SegmentHandle, SegmentKind
from metastore.acks import WrittenFile, add_segments, seal_files
from metastore.batches import BatchRef
from metastore.models import Job, Segment, SegmentStatus


def install_base(
    connection: Connection,
    batch: BatchRef,
    subtask: int,
    bases: Sequence[tuple[WrittenFile, SegmentHandle]],
) -> None:
    """Makes materialised segments part of every checkpoint from the next id on (FLIP-158).

    Each comes with its file, which several may share. In the same transaction, whatever the bases
    replace is released at that id: segments of the same or an older state all of whose key groups
    some base covers. `first_checkpoint` of the handles is set here; `as_of_checkpoint` must be a
    confirmed checkpoint.

    Raises:
        FencedError: a newer run has begun a batch, or a file was condemned.
    """
    job = connection.execute(
        select(Job.current_epoch, Job.next_checkpoint_id)
        .where(Job.job_id == batch.job_id)
        .with_for_update()
    ).one()
    if job.current_epoch != batch.epoch:
        raise FencedError(
            f"run {batch.epoch} was replaced by run {job.current_epoch}", job=batch.job
        )
    ids = [UUID(handle.segment_id) for _, handle in bases]
    if connection.scalar(select(Segment.segment_id).where(Segment.segment_id == ids[0])):
        return
    files = list({file.file_id: file for file, _ in bases}.values())
    seal_files(connection, batch, files)
    first = job.next_checkpoint_id
    handles = [dataclasses.replace(handle, first_checkpoint=first) for _, handle in bases]
    add_segments(connection, batch.job_id, files, [(subtask, handle) for handle in handles])
    _release_covered(connection, batch.job_id, ids, job.next_checkpoint_id)


def _release_covered(
    connection: Connection, job_id: str, new: Sequence[UUID], next_checkpoint: int
) -> None:
    base = Segment.__table__.alias("base")
    installed = Segment.__table__.alias("installed")
    covered = (
        select(func.range_agg(base.c.key_groups))
        .where(
            base.c.job_id == job_id,
            base.c.kind == SegmentKind.KEYED_FULL,
            base.c.status == SegmentStatus.LIVE,
            base.c.released_checkpoint.is_(None),
            base.c.as_of_checkpoint >= Segment.as_of_checkpoint,
            base.c.segment_id != Segment.segment_id,
        )
        .scalar_subquery()
    )
    touched = (
        select(installed.c.segment_id)
        .where(
            installed.c.segment_id.in_(new),
            installed.c.key_groups.op("&&")(Segment.key_groups),
            installed.c.as_of_checkpoint >= Segment.as_of_checkpoint,
        )
        .exists()
    )
    connection.execute(
        update(Segment)
        .where(
            Segment.job_id == job_id,
            Segment.status == SegmentStatus.LIVE,
            Segment.released_checkpoint.is_(None),
            Segment.segment_id.notin_(new),
            touched,
            Segment.key_groups.op("<@")(covered),
        )
        .values(released_checkpoint=next_checkpoint)
    )
