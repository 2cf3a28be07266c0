"""Key groups and which subtask owns them (Flink's KeyGroupRangeAssignment)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

MAX_PARALLELISM = 1 << 15
"""The most key groups that a job may have, as in Flink."""


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """Key groups `start <= g < end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a key-group range: [{self.start}, {self.end})")

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group < self.end

    def __len__(self) -> int:
        return self.end - self.start

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange:
        """Returns the key groups in both; an empty range where there are none."""
        if other.start <= self.start and self.end <= other.end:
            return self
        start = max(self.start, other.start)
        return KeyGroupRange(start, max(start, min(self.end, other.end)))


def default_max_parallelism(parallelism: int) -> int:
    """Returns the key groups of a new job that names none: Flink's computeDefaultMaxParallelism.

    One and a half times `parallelism`, rounded up to a power of two, at least 128 and at most
    `MAX_PARALLELISM`.
    """
    power_of_two = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(power_of_two, 128), MAX_PARALLELISM)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Returns the subtask, 0 to `parallelism` - 1, that owns a key group."""
    return key_group * parallelism // max_parallelism


@lru_cache(maxsize=MAX_PARALLELISM)
def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Returns the key groups that a subtask owns: `[ceil(i*K/P), ceil((i+1)*K/P))`."""
    return KeyGroupRange(
        -(-subtask * max_parallelism // parallelism),
        -(-(subtask + 1) * max_parallelism // parallelism),
    )
