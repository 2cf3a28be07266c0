"""Folds: what each is made from, and the transaction in which its bases take the place of that."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.materializations import Materialized, release_covered, replays_of
from cairn.catalog.job.segments import place_segments, read_one_instant, replay_order
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import require_lease
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from metastore.enums import KEYED, CheckpointStatus, SegmentStatus
from metastore.models import Checkpoint, Materialization, PlacedSegment


@dataclass(frozen=True, slots=True)
class Share:
    """The key groups of one subtask."""

    subtask: int
    key_groups: KeyGroupRange


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldInput:
    """What the state of a share as of a confirmed checkpoint is folded from, in order of replay.

    `changes` of them are changelog and increments; without any there is nothing to fold. `replaces`
    are the placed segments of the share that checkpoints to come need: all that the fold takes the
    place of, read or not. `read_at` is the database's time.
    """

    share: Share
    as_of_checkpoint: int
    handles: Sequence[SegmentHandle]
    changes: int
    replaces: frozenset[UUID]
    read_at: datetime

    @property
    def size_bytes(self) -> int:
        """Bytes that the fold reads, and more than those that it writes."""
        return sum(handle.size_bytes for handle in self.handles)


@dataclass(frozen=True, slots=True)
class Folded:
    """The bases of a share that were written, each with its file."""

    input: FoldInput
    bases: Sequence[tuple[WrittenFile, SegmentHandle]]


def read_inputs(connection: Connection, job_id: str, shares: Sequence[Share]) -> list[FoldInput]:
    """Returns what folds of some shares, neighbours at best, read as of the newest checkpoint.

    It is the newest that Spark has committed. None of them if there is none.
    """
    read_one_instant(connection)
    as_of = connection.scalar(
        select(func.max(Checkpoint.checkpoint_id)).where(
            Checkpoint.job_id == job_id, Checkpoint.status == CheckpointStatus.CONFIRMED
        )
    )
    if as_of is None or not shares:
        return []
    read_at = connection.scalars(select(func.now())).one()
    replays = replays_of(connection, job_id, as_of, [share.key_groups for share in shares])
    return [
        FoldInput(
            share=share,
            as_of_checkpoint=as_of,
            handles=sorted([*replay.bases, *replay.changes], key=replay_order),
            changes=len(replay.changes),
            replaces=placed_in(connection, job_id, share.key_groups),
            read_at=read_at,
        )
        for share, replay in zip(shares, replays, strict=True)
    ]


def install_folded(
    connection: Connection, lease: LeaseRef, folds: Sequence[Folded]
) -> list[FoldInput]:
    """Makes folded bases part of every checkpoint from the next id on; returns those refused.

    What they replace is released at that id. A fold is refused, and changes nothing, if what it was
    made from is not exactly what a restore would read below newer changelog: a stream or another
    fold has materialized the share meanwhile, or segments were moved. Files whose folds are all
    refused are not sealed.

    Raises:
        FencedError: the process does not hold the lease any more, the job was dropped, or a file
            was condemned.
    """
    # Exclusive: no checkpoint may begin between reading its id and placing segments there.
    job = lock_job(connection, lease.job_id, exclusive=True)
    require_lease(connection, lease.run_id, lease.holder)
    # The same installation again, after a commit whose answer was lost.
    known = _known(connection, folds)
    new = [fold for fold in folds if UUID(fold.bases[0][1].segment_id) not in known]
    # All of them before any is placed: neighbours may replace the same older segments.
    fits = [_stands(connection, lease.job_id, fold.input) for fold in new]
    accepted = [fold for fold, is_right in zip(new, fits, strict=True) if is_right]
    if accepted:
        _place(connection, lease.job_id, accepted, int(job.next_checkpoint_id))
        _record(connection, lease.job_id, int(job.current_epoch), accepted)
    return [fold.input for fold, is_right in zip(new, fits, strict=True) if not is_right]


def _known(connection: Connection, folds: Sequence[Folded]) -> set[UUID]:
    firsts = [UUID(fold.bases[0][1].segment_id) for fold in folds]
    return set(
        connection.scalars(
            select(PlacedSegment.segment_id).where(PlacedSegment.segment_id.in_(firsts))
        )
    )


def placed_in(connection: Connection, job_id: str, key_groups: KeyGroupRange) -> frozenset[UUID]:
    """Returns the placed segments in some key groups that checkpoints to come need."""
    return frozenset(
        connection.scalars(
            select(PlacedSegment.segment_id).where(
                PlacedSegment.job_id == job_id,
                PlacedSegment.status == SegmentStatus.LIVE,
                PlacedSegment.released_checkpoint.is_(None),
                PlacedSegment.kind.in_(KEYED),
                PlacedSegment.key_groups.op("&&")(Range(key_groups.start, key_groups.end)),
            )
        )
    )


def _stands(connection: Connection, job_id: str, made_from: FoldInput) -> bool:
    """Tells whether what is placed in a share is what was there when it was read.

    Changelog of group commits is not looked at: that of a confirmed checkpoint stays as it is until
    bases cover it, which are placed.
    """
    if placed_in(connection, job_id, made_from.share.key_groups) != made_from.replaces:
        return False
    is_confirmed = connection.scalar(
        select(Checkpoint.checkpoint_id).where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id == made_from.as_of_checkpoint,
            Checkpoint.status.in_([CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED]),
        )
    )
    return is_confirmed is not None


def _place(
    connection: Connection, job_id: str, folds: Sequence[Folded], next_checkpoint: int
) -> None:
    files = {file.file_id: file for fold in folds for file, _ in fold.bases}
    seal_files(connection, list(files.values()))
    # Not the checkpoint under way: its tasks may have begun from the segments that are replaced.
    placed = [
        (
            file.file_id,
            fold.input.share.subtask,
            dataclasses.replace(handle, first_checkpoint=next_checkpoint),
        )
        for fold in folds
        for file, handle in fold.bases
    ]
    place_segments(connection, job_id, placed)
    ids = [UUID(handle.segment_id) for _, _, handle in placed]
    release_covered(connection, job_id, ids, next_checkpoint)


def _record(connection: Connection, job_id: str, epoch: int, folds: Sequence[Folded]) -> None:
    """Adds rows as the stream's own materializations have: what metrics show is the same."""
    rows = []
    for fold in folds:
        made = Materialized.of([handle for _, handle in fold.bases])
        rows.append(
            {
                "materialization_id": uuid.uuid4(),
                "job_id": job_id,
                "epoch": epoch,
                "subtask": fold.input.share.subtask,
                "started_at": fold.input.read_at,
                "finished_at": func.clock_timestamp(),
                "kind": made.kind,
                "as_of_checkpoint": made.as_of_checkpoint,
                "segments": made.segments,
                "entries": made.entries,
                "size_bytes": made.size_bytes,
            }
        )
    connection.execute(insert(Materialization).values(rows))
