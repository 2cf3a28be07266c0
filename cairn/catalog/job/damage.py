"""Damage that a scrub has found, and the way around it: what else comes to the same state.

A base or an increment has the state as of some checkpoint. An older checkpoint that is retained has
that state, too, by older segments. So what a damaged segment held follows from those of the older
checkpoint and the changelog since, which is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, select, text

from cairn.catalog.job.segments import replay_order, segments_at
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from metastore.enums import KEYED, CheckpointStatus, SegmentKind
from metastore.models import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damaged segment that checkpoints need: those of `checkpoints`, and maybe all to come."""

    segment_id: str
    kind: SegmentKind
    subtask: int
    key_groups: KeyGroupRange
    as_of_checkpoint: int
    path: str
    checkpoints: frozenset[int]
    is_needed_by_next: bool


# Of the table: mostly nothing is, and then the view need not be asked.
_KNOWN = text("""
    SELECT segment_id FROM cairn.damaged_segments WHERE job_id = :job_id AND resolved_at IS NULL
""")
_DAMAGE = text("""
    SELECT
        segment_id, kind, subtask, key_groups, as_of_checkpoint, path, checkpoints,
        is_needed_by_next
    FROM cairn.v_damaged_segments
    WHERE job_id = :job_id
    ORDER BY as_of_checkpoint, segment_id
""")


def read_damage(connection: Connection, job_id: str) -> list[Damage]:
    """Returns what is damaged of the state by key of a job, oldest state first."""
    return [
        Damage(
            segment_id=str(row.segment_id),
            kind=SegmentKind(row.kind),
            subtask=row.subtask,
            key_groups=KeyGroupRange(row.key_groups.lower, row.key_groups.upper),
            as_of_checkpoint=row.as_of_checkpoint,
            path=row.path,
            checkpoints=frozenset(row.checkpoints),
            is_needed_by_next=row.is_needed_by_next,
        )
        for row in connection.execute(_DAMAGE, {"job_id": job_id})
        if row.kind in KEYED
    ]


def confirmed_checkpoints(connection: Connection, job_id: str) -> list[int]:
    """Returns the confirmed checkpoints of a job, which are retained, oldest first."""
    return list(
        connection.scalars(
            select(Checkpoint.checkpoint_id)
            .where(Checkpoint.job_id == job_id, Checkpoint.status == CheckpointStatus.CONFIRMED)
            .order_by(Checkpoint.checkpoint_id)
        )
    )


def inside(damage: Sequence[Damage], key_groups: KeyGroupRange) -> list[Damage]:
    """Returns the damage that a restore of some key groups may meet."""
    return [one for one in damage if one.key_groups.intersect(key_groups)]


def way_around(
    unreadable: Collection[Damage], damage: Collection[Damage], confirmed: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns the checkpoints whose segments replace the unreadable ones of a state; None: none do.

    All damage in the key groups of that state is given, and the confirmed checkpoints up to it. An
    older checkpoint replaces what is unreadable if it is not older than any of these: what changed
    since then is in the other segments. It may have to be replaced in part itself. Nothing is
    unreadable: no checkpoint is needed.
    """
    ways: dict[int, tuple[int, ...]] = {}
    for checkpoint in sorted(confirmed):
        way = _shortest_way([one for one in damage if checkpoint in one.checkpoints], ways)
        if way is not None:
            ways[checkpoint] = (*way, checkpoint)
    return _shortest_way(unreadable, ways)


def _shortest_way(
    unreadable: Collection[Damage], ways: dict[int, tuple[int, ...]]
) -> tuple[int, ...] | None:
    if not unreadable:
        return ()
    least = max(one.as_of_checkpoint for one in unreadable)
    fit = [way for checkpoint, way in ways.items() if checkpoint >= least]
    # Of two of a length the newer one: it has less changelog.
    return min(fit, key=lambda way: (len(way), -way[-1]), default=None)


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore reads, in order of replay, and which of that is known as damaged."""

    handles: list[SegmentHandle]
    damaged: Sequence[SegmentHandle] = ()


def restore_around(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> Restore:
    """Returns what a restore of some key groups to a checkpoint reads: nothing damaged, if it can.

    The transaction reads one instant. Where no other segments come to the state, those that are
    known as damaged are among the others: since a scrub found that, they may have been put back.
    """
    handles = segments_at(connection, job_id, checkpoint_id, key_groups)
    known = set(connection.scalars(_KNOWN, {"job_id": job_id}))
    damaged = [handle for handle in handles if UUID(handle.segment_id) in known]
    if not damaged:
        return Restore(handles)
    damage = inside(read_damage(connection, job_id), key_groups)
    unreadable = [one for one in damage if checkpoint_id in one.checkpoints]
    older = [one for one in confirmed_checkpoints(connection, job_id) if one < checkpoint_id]
    way = way_around(unreadable, damage, older)
    if way is not None:
        around = segments_around(connection, job_id, key_groups, handles, way, damage)
        if around is not None:
            return Restore(around)
    return Restore(handles, damaged)


def segments_around(
    connection: Connection,
    job_id: str,
    key_groups: KeyGroupRange,
    handles: Sequence[SegmentHandle],
    way: Sequence[int],
    damage: Collection[Damage],
) -> list[SegmentHandle] | None:
    """Returns what comes to the state of `handles` without the damaged ones, in order of replay.

    The transaction reads one instant. Segments of several checkpoints may say the same: in order
    of replay each brings the state to that of its own. None: one is damaged that the checkpoint
    before it on the way does not replace.
    """
    damaged = {one.segment_id for one in damage}
    found: dict[str, SegmentHandle] = {}
    replaced_until = 0
    for checkpoint in (*way, None):
        read = handles
        if checkpoint is not None:
            read = segments_at(connection, job_id, checkpoint, key_groups)
        for handle in read:
            if handle.segment_id not in damaged:
                found[handle.segment_id] = handle
            elif handle.as_of_checkpoint > replaced_until:
                return None
        replaced_until = checkpoint or 0
    return sorted(found.values(), key=replay_order)
