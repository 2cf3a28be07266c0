"""Which subtasks of a job are due to be folded. Pure: facts in, a plan out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.catalog.maintenance.fold_facts import FoldFacts, ShareFacts
from cairn.catalog.maintenance.folds import Share
from cairn.keygroups import KeyGroupRange

LIGHT_BYTES = 64 << 20
"""Bytes that a restore may read on top of bases of any size before the interval has passed."""
HEAVY_SHARE = 0.25
"""Most bytes on top of the bases before that, as a share of the bases' bytes."""
TOGETHER = 16
"""Shares that are read and installed with one transaction each, which holds the job's lock."""
TOGETHER_BYTES = 64 << 20
"""About how many bytes they have together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueShare:
    """The key groups of one subtask to fold, and about how many bytes that reads."""

    share: Share
    base_bytes: int
    change_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.base_bytes + self.change_bytes


def due_shares(facts: FoldFacts) -> tuple[DueShare, ...]:
    """Returns the subtasks that are due, in the order of their key groups.

    Those with changelog whose newest base is as old as the job's interval of materialization, or on
    top of whose bases a restore would read too much.
    """
    return tuple(
        DueShare(
            share=one.share,
            base_bytes=one.base_bytes,
            change_bytes=one.increment_bytes + one.changelog_bytes,
        )
        for one in facts.shares
        if one.changelog_bytes and (one.age_ms >= facts.interval_ms or _is_heavy(one))
    )


def _is_heavy(one: ShareFacts) -> bool:
    most_bytes = max(LIGHT_BYTES, HEAVY_SHARE * one.base_bytes)
    return one.increment_bytes + one.changelog_bytes > most_bytes


def to_json(due: Sequence[DueShare]) -> dict[str, Any]:
    """Returns the content of a plan."""
    return {
        "shares": [
            {
                "subtask": one.share.subtask,
                "first_key_group": one.share.key_groups.start,
                "end_key_group": one.share.key_groups.end,
                "base_bytes": one.base_bytes,
                "change_bytes": one.change_bytes,
            }
            for one in due
        ]
    }


def of_json(content: Mapping[str, Any]) -> list[DueShare]:
    """Returns what `to_json` was given."""
    return [
        DueShare(
            share=Share(
                one["subtask"], KeyGroupRange(one["first_key_group"], one["end_key_group"])
            ),
            base_bytes=one["base_bytes"],
            change_bytes=one["change_bytes"],
        )
        for one in content["shares"]
    ]


def together(due: Iterable[DueShare]) -> Iterator[list[DueShare]]:
    """Yields the shares, those together that are folded with one transaction of each kind."""
    some: list[DueShare] = []
    size_bytes = 0
    for one in due:
        if some and (len(some) == TOGETHER or size_bytes + one.size_bytes > TOGETHER_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(one)
        size_bytes += one.size_bytes
    if some:
        yield some
