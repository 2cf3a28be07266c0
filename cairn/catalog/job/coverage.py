"""What bases and increments have made unnecessary: pure functions; `coverage.sql` says it in SQL.

A changelog of checkpoint c is released in a key group from the first checkpoint on that has a base
or an increment of it as of c or later (FLIP-158).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from metastore.enums import SegmentKind

COVERING = (SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Up to which checkpoint bases and increments replace the changelog, by key group."""

    until: dict[int, int]
    newest: int
    """The greatest of them; 0 if nothing is covered."""

    @classmethod
    def of(cls, handles: Iterable[SegmentHandle]) -> Coverage:
        """Returns what those of the segments cover that are bases or increments."""
        until: dict[int, int] = {}
        for handle in handles:
            if handle.kind in COVERING:
                for group in range(handle.key_groups.start, handle.key_groups.end):
                    until[group] = max(until.get(group, 0), handle.as_of_checkpoint)
        return cls(until, max(until.values(), default=0))

    def least(self, key_groups: KeyGroupRange) -> int:
        """Returns up to which checkpoint all of the key groups are covered; 0 if some are not."""
        groups = range(key_groups.start, key_groups.end)
        return min((self.until.get(group, 0) for group in groups), default=0)

    def is_needed(self, change: SegmentHandle, key_groups: KeyGroupRange) -> bool:
        """Tells whether a restore of the key groups has to replay a changelog."""
        inside = change.key_groups.intersect(key_groups)
        if change.first_checkpoint > self.newest:  # most are: no key group need be looked at
            return len(inside) > 0
        return len(inside) > 0 and self.least(inside) < change.first_checkpoint
