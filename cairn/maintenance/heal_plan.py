"""Which key groups are made again as segments are damaged. Pure: facts in, a plan out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.catalog.job.damage import Damage, inside, way_around
from cairn.catalog.maintenance.folds import Share
from cairn.catalog.maintenance.heals import HealFacts, broken_for_next
from cairn.keygroups import KeyGroupRange


@dataclass(frozen=True, slots=True, kw_only=True)
class HealShare:
    """Key groups to make new bases of, in place of damaged segments.

    `from_checkpoints` are the older ones whose segments are read, beside what the newest reads.
    """

    share: Share
    segments: tuple[str, ...]
    from_checkpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heals:
    """What can be made again, and the damage that cannot because no other segments are there."""

    shares: tuple[HealShare, ...]
    lost: tuple[Damage, ...]


def heals_of(facts: HealFacts) -> Heals:
    """Returns what to do about damage that checkpoints to come need.

    What only older ones need stays as it is: a checkpoint that there is never changes.
    """
    as_of = max(facts.confirmed, default=0)
    shares, lost = list[HealShare](), list[Damage]()
    newest = [one for one in facts.damage if one.is_needed_by_next and one.as_of_checkpoint > as_of]
    lost += newest
    for together in _overlapping(broken_for_next(facts.damage, as_of)):
        key_groups = _whole(together)
        way = way_around(together, inside(facts.damage, key_groups), facts.confirmed)
        if way is None:
            lost += together
            continue
        shares.append(
            HealShare(
                share=Share(together[0].subtask, key_groups),
                segments=tuple(one.segment_id for one in together),
                from_checkpoints=way,
            )
        )
    return Heals(shares=tuple(shares), lost=tuple(lost))


def _overlapping(damage: Sequence[Damage]) -> Iterator[list[Damage]]:
    """Yields the damage by key groups, those together that overlap."""
    together: list[Damage] = []
    for one in sorted(damage, key=lambda one: (one.key_groups, one.as_of_checkpoint)):
        if together and one.key_groups.start >= _whole(together).end:
            yield together
            together = []
        together.append(one)
    if together:
        yield together


def _whole(together: Sequence[Damage]) -> KeyGroupRange:
    return KeyGroupRange(
        min(one.key_groups.start for one in together), max(one.key_groups.end for one in together)
    )


def to_json(heals: Heals) -> dict[str, Any]:
    """Returns the content of a plan."""
    return {
        "shares": [
            {
                "subtask": one.share.subtask,
                "first_key_group": one.share.key_groups.start,
                "end_key_group": one.share.key_groups.end,
                "segments": list(one.segments),
                "from_checkpoints": list(one.from_checkpoints),
            }
            for one in heals.shares
        ],
        "lost_segments": [one.segment_id for one in heals.lost],
    }


def of_json(content: Mapping[str, Any]) -> list[Share]:
    """Returns the shares that `to_json` was given. What they are made from is found anew."""
    return [
        Share(one["subtask"], KeyGroupRange(one["first_key_group"], one["end_key_group"]))
        for one in content["shares"]
    ]
