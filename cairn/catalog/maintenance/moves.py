"""Moving bases and increments to other files: copies take their place for checkpoints to come."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Text, cast, exists, select, update

from cairn.catalog.cleanup.needs import any_uuid
from cairn.catalog.job.coverage import COVERING
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.group_commits import StoredSegment
from cairn.catalog.job.segments import place_segments, placed_segments
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import require_lease
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from metastore.enums import SegmentStatus
from metastore.models import DamagedSegment, PlacedSegment


def movable_segments(
    connection: Connection, job_id: str, file_ids: Sequence[UUID]
) -> list[StoredSegment]:
    """Returns what is whole of the bases and increments in files that checkpoints to come need."""
    return placed_segments(
        connection, *_are_movable(job_id), PlacedSegment.file_id == any_uuid(file_ids)
    )


def _are_movable(job_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        PlacedSegment.job_id == job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        PlacedSegment.released_checkpoint.is_(None),
        # No changelog: a moved one is part of the next checkpoint, in the place of its own, so it
        # collides with that, or is replaced by a second attempt of its batch.
        PlacedSegment.kind.in_(COVERING),
        # A copy of what is damaged is damage that nobody knows of: nothing is kept to heal it from.
        ~exists().where(
            DamagedSegment.file_id == PlacedSegment.file_id,
            DamagedSegment.segment_id == PlacedSegment.segment_id,
            DamagedSegment.resolved_at.is_(None),
        ),
    )


def swap_in(
    connection: Connection,
    lease: LeaseRef,
    file: WrittenFile,
    copies: Sequence[tuple[StoredSegment, SegmentHandle]],
) -> bool:
    """Makes copies part of every checkpoint from the next id on, in the place of their originals.

    All of them or none: returns False, and changes nothing, if an original is not as it was when it
    was copied, because a base has replaced it, it is elsewhere, or it was found damaged. Older
    checkpoints keep the originals. The same call again, after a lost answer, changes nothing.

    Raises:
        FencedError: the process does not hold the maintenance run any more, or the file was
            condemned.
    """
    # Exclusive: no checkpoint may begin between reading its id and placing segments there.
    job_id = lease.job_id
    job = lock_job(connection, job_id, exclusive=True)
    require_lease(connection, lease.run_id, lease.holder)
    ids = [UUID(copy.segment_id) for _, copy in copies]
    if connection.scalar(
        select(PlacedSegment.segment_id).where(PlacedSegment.segment_id == ids[0])
    ):
        return True
    originals = [UUID(original.handle.segment_id) for original, _ in copies]
    if _still_there(connection, job_id, originals) != _expected(copies):
        return False
    seal_files(connection, [file])
    first = job.next_checkpoint_id
    placed = [
        (file.file_id, original.subtask, dataclasses.replace(copy, first_checkpoint=first))
        for original, copy in copies
    ]
    place_segments(connection, job_id, placed)
    released = connection.execute(
        update(PlacedSegment)
        .where(PlacedSegment.job_id == job_id, PlacedSegment.segment_id == any_uuid(originals))
        .values(released_checkpoint=first)
    ).rowcount
    if released != len(originals):
        raise RefusedError(
            f"{released} of {len(originals)} segments could be replaced by their copies, so none "
            "was; they changed under the job's lock. Run the compaction again",
            job=job.name,
        )
    return True


def _still_there(connection: Connection, job_id: str, originals: Sequence[UUID]) -> dict[str, str]:
    """Returns the files of the originals that checkpoints to come still need."""
    rows = connection.execute(
        select(
            cast(PlacedSegment.segment_id, Text).label("segment_id"),
            cast(PlacedSegment.file_id, Text).label("file_id"),
        ).where(*_are_movable(job_id), PlacedSegment.segment_id == any_uuid(originals))
    )
    return {row.segment_id: row.file_id for row in rows}


def _expected(copies: Sequence[tuple[StoredSegment, SegmentHandle]]) -> dict[str, str]:
    return {original.handle.segment_id: original.file_id for original, _ in copies}
