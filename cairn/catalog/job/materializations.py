"""Materializations: their input, what installing their segments releases (FLIP-158), their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import CTE, Connection, Select, Update, and_, func, select, update
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.batch_ref import BatchRef
from cairn.catalog.cleanup.needs import any_uuid
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.segments import (
    commits_after,
    lineage_of,
    place_segments,
    placed_segments,
    replay_order,
)
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from metastore.enums import KEYED, SegmentKind, SegmentStatus
from metastore.models import Materialization, PlacedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The segments that a restore of some key groups reads, in order of replay.

    `lineage` is the id of the run that made the checkpoint; None if Spark has not committed it.
    `changes` are changelog and increments. `is_based` tells whether bases cover all of the key
    groups and the changes lie in them, so that an increment can replace all of the changes.
    """

    lineage: str | None
    bases: Sequence[SegmentHandle]
    changes: Sequence[SegmentHandle]
    is_based: bool

    @property
    def share(self) -> float:
        """The bytes of the changes, and of as much changelog again, as a share of the bases'.

        This is what will be on top of the bases when the next materialization is due, if this one
        leaves them and the next interval brings as much changelog as the last one.
        """
        base_bytes = sum(base.size_bytes for base in self.bases)
        change_bytes = sum(change.size_bytes for change in self.changes)
        changelog = (c for c in self.changes if c.kind is SegmentKind.CHANGELOG)
        return (change_bytes + sum(c.size_bytes for c in changelog)) / max(1, base_bytes)


def replay_of(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> Replay:
    """Returns what newer checkpoints, too, replay up to the state of a confirmed one.

    The transaction reads one instant.
    """
    placed = placed_segments(
        connection,
        PlacedSegment.job_id == job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        PlacedSegment.released_checkpoint.is_(None),
        PlacedSegment.as_of_checkpoint <= checkpoint_id,
        PlacedSegment.key_groups.op("&&")(Range(key_groups.start, key_groups.end)),
    )
    stored = [
        *placed,
        *commits_after(connection, job_id, placed, key_groups, until=checkpoint_id),
    ]
    keyed = (one.handle for one in stored if one.handle.kind in KEYED)
    handles = sorted(keyed, key=replay_order)
    bases = [handle for handle in handles if handle.kind is SegmentKind.KEYED_FULL]
    changes = [handle for handle in handles if handle.kind is not SegmentKind.KEYED_FULL]
    based = {group for b in bases for group in range(b.key_groups.start, b.key_groups.end)}
    return Replay(
        lineage=lineage_of(connection, job_id, checkpoint_id),
        bases=bases,
        changes=changes,
        is_based=based.issuperset(range(key_groups.start, key_groups.end))
        # A changelog of another parallelism reaches into other subtasks: bases alone can replace
        # it.
        and all(change.key_groups.intersect(key_groups) == change.key_groups for change in changes),
    )


def install(
    connection: Connection,
    batch: BatchRef,
    subtask: int,
    segments: Sequence[tuple[WrittenFile, SegmentHandle]],
    replaced: Sequence[SegmentHandle] | None = None,
) -> None:
    """Makes materialized segments part of every checkpoint from the next id on (FLIP-158).

    Each has its file, which several may share. In the same transaction, the segments that they
    replace are released at that id. For an increment these are the `replaced` segments, which it
    was made from. For bases (None) they are all segments of the same or an older state all of whose
    key groups some base covers. `first_checkpoint` of the handles is set here; `as_of_checkpoint`
    must be a confirmed checkpoint.

    Raises:
        FencedError: a newer run has begun a batch, or a file was condemned.
    """
    # Exclusive: no checkpoint may begin between reading its id and placing segments there.
    job = require_epoch(connection, batch.job_id, batch.epoch, exclusive=True)
    ids = [UUID(handle.segment_id) for _, handle in segments]
    # The same installation again, after a commit whose answer was lost.
    if connection.scalar(
        select(PlacedSegment.segment_id).where(PlacedSegment.segment_id == ids[0])
    ):
        return
    files = list({file.file_id: file for file, _ in segments}.values())
    seal_files(connection, batch, files)
    # Not the checkpoint under way: its tasks may have begun from the segments that are replaced.
    first = job.next_checkpoint_id
    placed = [
        (file.file_id, subtask, dataclasses.replace(handle, first_checkpoint=first))
        for file, handle in segments
    ]
    place_segments(connection, batch.job_id, placed)
    if replaced is None:
        connection.execute(release_covered(batch.job_id, ids, job.next_checkpoint_id))
    else:
        _release(connection, batch.job_id, replaced, job.next_checkpoint_id)


def _release(
    connection: Connection, job_id: str, replaced: Sequence[SegmentHandle], next_checkpoint: int
) -> None:
    connection.execute(
        update(PlacedSegment)
        .where(
            PlacedSegment.job_id == job_id,
            PlacedSegment.segment_id == any_uuid([UUID(handle.segment_id) for handle in replaced]),
            PlacedSegment.status == SegmentStatus.LIVE,
            PlacedSegment.released_checkpoint.is_(None),
        )
        .values(released_checkpoint=next_checkpoint)
    )


def release_covered(job_id: str, new: Sequence[UUID], next_checkpoint: int) -> Update:
    """Returns the statement that releases what new bases, together with older ones, replace.

    It reads the unreleased segments of the job once, and compares those alone with the bases that
    lie in the key groups of the new ones.
    """
    unreleased = and_(
        PlacedSegment.job_id == job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        PlacedSegment.released_checkpoint.is_(None),
    )
    columns = (PlacedSegment.segment_id, PlacedSegment.key_groups, PlacedSegment.as_of_checkpoint)
    # Materialized: folded into the update, the aggregate below would run for every segment of the
    # job before the cheap conditions have left out all but a few.
    bases = _materialized(
        select(*columns).where(unreleased, PlacedSegment.kind == SegmentKind.KEYED_FULL), "bases"
    )
    touched = _materialized(
        select(*columns).where(
            unreleased,
            PlacedSegment.segment_id.notin_(new),
            select(bases.c.segment_id)
            .where(
                bases.c.segment_id.in_(new),
                bases.c.key_groups.op("&&")(PlacedSegment.key_groups),
                bases.c.as_of_checkpoint >= PlacedSegment.as_of_checkpoint,
            )
            .exists(),
        ),
        "touched",
    )
    # All bases, not only the new ones: after a rescale several subtasks' cover one old segment.
    covered = (
        select(func.range_agg(bases.c.key_groups))
        .where(
            bases.c.as_of_checkpoint >= touched.c.as_of_checkpoint,
            bases.c.segment_id != touched.c.segment_id,
        )
        .scalar_subquery()
    )
    return (
        update(PlacedSegment)
        .where(
            PlacedSegment.segment_id == touched.c.segment_id,
            touched.c.key_groups.op("<@")(covered),
        )
        .values(released_checkpoint=next_checkpoint)
    )


def _materialized(query: Select[UUID, Range[int], int], name: str) -> CTE:
    return query.cte(name).prefix_with("MATERIALIZED", dialect="postgresql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """What one materialization has written."""

    kind: SegmentKind
    as_of_checkpoint: int
    segments: int
    entries: int
    size_bytes: int

    @classmethod
    def of(cls, handles: Sequence[SegmentHandle]) -> Materialized:
        """Returns the sums over the written segments, at least one."""
        return cls(
            kind=handles[0].kind,
            as_of_checkpoint=handles[0].as_of_checkpoint,
            segments=len(handles),
            entries=sum(handle.entries for handle in handles),
            size_bytes=sum(handle.size_bytes for handle in handles),
        )


def record_start(
    connection: Connection, batch: BatchRef, subtask: int, materialization_id: UUID
) -> None:
    """Adds the row of a materialization.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, batch.job_id, batch.epoch)
    connection.execute(
        insert(Materialization)
        .values(
            materialization_id=materialization_id,
            job_id=batch.job_id,
            epoch=batch.epoch,
            subtask=subtask,
        )
        .on_conflict_do_nothing(index_elements=[Materialization.materialization_id])
    )


def record_end(
    connection: Connection, materialization_id: UUID, made: Materialized | None, error: str | None
) -> None:
    """Says how a materialization ended; `made` is None if there was nothing to write."""
    # No fence: the row is a statistic, and right for a run that was replaced, too.
    values: dict[str, object] = {"finished_at": func.clock_timestamp(), "error": error}
    if made is not None:
        values |= {
            "kind": made.kind,
            "as_of_checkpoint": made.as_of_checkpoint,
            "segments": made.segments,
            "entries": made.entries,
            "size_bytes": made.size_bytes,
        }
    connection.execute(
        update(Materialization)
        .where(Materialization.materialization_id == materialization_id)
        .values(**values)
    )
