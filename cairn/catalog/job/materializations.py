"""Materializations: their input, what installing their segments releases (FLIP-158), their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Connection,
    Uuid,
    and_,
    bindparam,
    func,
    not_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.batch_ref import BatchRef
from cairn.catalog.cleanup.needs import any_uuid
from cairn.catalog.job.coverage import COVERING, Coverage
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.segments import (
    commits_after,
    lineage_of,
    place_segments,
    placed_segments,
    replay_order,
)
from cairn.errors import ReplacedError
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
    return replays_of(connection, job_id, checkpoint_id, [key_groups])[0]


def replays_of(
    connection: Connection, job_id: str, checkpoint_id: int, shares: Sequence[KeyGroupRange]
) -> list[Replay]:
    """Returns what `replay_of` does for each of the shares, at least one, for the price of one.

    What lies between them is read too: they had better be neighbours.
    """
    whole = KeyGroupRange(min(one.start for one in shares), max(one.end for one in shares))
    placed = placed_segments(
        connection,
        PlacedSegment.job_id == job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        PlacedSegment.released_checkpoint.is_(None),
        PlacedSegment.as_of_checkpoint <= checkpoint_id,
        PlacedSegment.key_groups.op("&&")(Range(whole.start, whole.end)),
    )
    committed = commits_after(connection, job_id, placed, whole, until=checkpoint_id)
    lineage = lineage_of(connection, job_id, checkpoint_id)
    coverage = Coverage.of(one.handle for one in placed)
    replays = []
    for share in shares:
        inside = [one.handle for one in placed if one.handle.key_groups.intersect(share)]
        inside += [one.handle for one in committed if coverage.is_needed(one.handle, share)]
        keyed = (handle for handle in inside if handle.kind in KEYED)
        replays.append(_replay(lineage, sorted(keyed, key=replay_order), share))
    return replays


def _replay(
    lineage: str | None, handles: Sequence[SegmentHandle], key_groups: KeyGroupRange
) -> Replay:
    bases = [handle for handle in handles if handle.kind is SegmentKind.KEYED_FULL]
    changes = [handle for handle in handles if handle.kind is not SegmentKind.KEYED_FULL]
    based = {group for b in bases for group in range(b.key_groups.start, b.key_groups.end)}
    return Replay(
        lineage=lineage,
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
    replaced: Replay | None = None,
) -> None:
    """Makes materialized segments part of every checkpoint from the next id on (FLIP-158).

    Each has its file, which several may share. In the same transaction, the segments that they
    replace are released at that id. For an increment these are the changes in `replaced`, which it
    was made from. For bases (None) they are all segments of the same or an older state all of whose
    key groups some base covers. `first_checkpoint` of the handles is set here; `as_of_checkpoint`
    must be a confirmed checkpoint.

    Raises:
        FencedError: a newer run has begun a batch, or a file was condemned.
        ReplacedError: another process, such as the maintenance, has materialized some of the key
            groups as of a newer checkpoint, or has replaced segments that an increment stands on;
            nothing was changed.
    """
    # Exclusive: no checkpoint may begin between reading its id and placing segments there.
    job = require_epoch(connection, batch, exclusive=True)
    ids = [UUID(handle.segment_id) for _, handle in segments]
    # The same installation again, after a commit whose answer was lost.
    if connection.scalar(
        select(PlacedSegment.segment_id).where(PlacedSegment.segment_id == ids[0])
    ):
        return
    _refuse_replaced(connection, batch, [handle for _, handle in segments], replaced)
    files = list({file.file_id: file for file, _ in segments}.values())
    seal_files(connection, files)
    # Not the checkpoint under way: its tasks may have begun from the segments that are replaced.
    first = job.next_checkpoint_id
    placed = [
        (file.file_id, subtask, dataclasses.replace(handle, first_checkpoint=first))
        for file, handle in segments
    ]
    place_segments(connection, batch.job_id, placed)
    if replaced is None:
        release_covered(connection, batch.job_id, ids, job.next_checkpoint_id)
    else:
        _release(connection, batch.job_id, replaced.changes, job.next_checkpoint_id)


def _refuse_replaced(
    connection: Connection,
    batch: BatchRef,
    new: Sequence[SegmentHandle],
    replaced: Replay | None,
) -> None:
    """Raises where somebody else has materialized what the new segments were made from."""
    start = min(handle.key_groups.start for handle in new)
    end = max(handle.key_groups.end for handle in new)
    is_placed = (
        PlacedSegment.job_id == batch.job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        PlacedSegment.released_checkpoint.is_(None),
    )
    newer = connection.scalar(
        select(PlacedSegment.as_of_checkpoint)
        .where(
            *is_placed,
            PlacedSegment.kind.in_(COVERING),
            PlacedSegment.key_groups.op("&&")(Range(start, end)),
            PlacedSegment.as_of_checkpoint > new[0].as_of_checkpoint,
        )
        .limit(1)
    )
    if newer is not None:
        raise ReplacedError(
            f"key groups {start} to {end - 1} were materialized as of checkpoint {newer} meanwhile",
            job=batch.job,
            checkpoint=new[0].as_of_checkpoint,
        )
    if replaced is None:
        return
    # Of changelog, most is in rows of group commits: it stays until bases cover it.
    read = [UUID(handle.segment_id) for handle in (*replaced.bases, *replaced.changes)]
    gone = connection.execute(
        select(PlacedSegment.segment_id).where(
            PlacedSegment.segment_id == any_uuid(read),
            not_(and_(*is_placed)),
        )
    ).first()
    if gone is not None:
        raise ReplacedError(
            f"segment {gone.segment_id}, which an increment was made on, was replaced meanwhile",
            job=batch.job,
            checkpoint=new[0].as_of_checkpoint,
        )


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


# Segments are found by their key groups: a job has as many bases as subtasks, and more changelog
# where it was restored.
_RELEASE_COVERED = text("""
    WITH new AS MATERIALIZED (
        SELECT key_groups, as_of_checkpoint FROM cairn.placed_segments
        WHERE segment_id = ANY (:new)
    ),
    touched AS MATERIALIZED (
        SELECT DISTINCT s.segment_id, s.key_groups, s.as_of_checkpoint
        FROM new JOIN cairn.placed_segments AS s ON s.key_groups && new.key_groups
        WHERE s.job_id = :job_id
          AND s.status = 'LIVE'
          AND s.released_checkpoint IS NULL
          AND s.segment_id <> ALL (:new)
          AND s.as_of_checkpoint <= new.as_of_checkpoint
    ),
    -- Not only the new ones: after a rescale several subtasks' cover one old segment.
    bases AS MATERIALIZED (
        SELECT b.segment_id, b.key_groups, b.as_of_checkpoint
        FROM cairn.placed_segments AS b
        WHERE b.job_id = :job_id
          AND b.status = 'LIVE'
          AND b.released_checkpoint IS NULL
          AND b.kind = 'keyed_full'
          AND b.key_groups && (SELECT range_agg(touched.key_groups) FROM touched)
    )
    UPDATE cairn.placed_segments AS s
    SET released_checkpoint = :next_checkpoint
    FROM touched
    WHERE s.segment_id = touched.segment_id
      AND touched.key_groups <@ (
        SELECT range_agg(bases.key_groups) FROM bases
        WHERE bases.as_of_checkpoint >= touched.as_of_checkpoint
          AND bases.segment_id <> touched.segment_id
    )
""").bindparams(bindparam("new", type_=ARRAY(Uuid())))


def release_covered(
    connection: Connection, job_id: str, new: Sequence[UUID], next_checkpoint: int
) -> None:
    """Releases the placed segments that new bases, together with older ones, replace."""
    connection.execute(
        _RELEASE_COVERED, {"job_id": job_id, "new": list(new), "next_checkpoint": next_checkpoint}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """What one materialization has written, and the bytes of the bases that count from then on."""

    kind: SegmentKind
    as_of_checkpoint: int
    segments: int
    entries: int
    size_bytes: int
    base_bytes: int

    @classmethod
    def of(
        cls, handles: Sequence[SegmentHandle], bases: Sequence[SegmentHandle] = ()
    ) -> Materialized:
        """Returns the sums over the written segments, at least one.

        `bases` are those below increments.
        """
        return cls(
            kind=handles[0].kind,
            as_of_checkpoint=handles[0].as_of_checkpoint,
            segments=len(handles),
            entries=sum(handle.entries for handle in handles),
            size_bytes=sum(handle.size_bytes for handle in handles),
            base_bytes=sum(handle.size_bytes for handle in bases or handles),
        )


def record_start(
    connection: Connection, batch: BatchRef, subtask: int, materialization_id: UUID
) -> None:
    """Adds the row of a materialization.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, batch)
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
