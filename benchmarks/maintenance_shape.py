"""How much the maintenance benchmark does, and what it measures, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is to plan and to delete; `delay_ms` is what each request waits."""

    live_segments: Sequence[int] = (100_000, 10_000_000)
    parallelism: int = 200
    groups: int = 10
    """Files of a batch: each has `parallelism / groups` segments."""
    dead_batches: int = 50
    """What there is to plan: each of them has `groups` files that nothing needs any more."""
    repetitions: int = 5
    deleted_files: int = 60_000
    delay_ms: float = 20


QUICK = Sizes(
    live_segments=(200, 400),
    parallelism=4,
    groups=2,
    dead_batches=3,
    repetitions=1,
    deleted_files=1_500,
    delay_ms=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was measured. `wanted` is None where nothing was asked for."""

    workload: str
    name: str
    value: float
    unit: str
    wanted: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        """Whether it is as wanted."""
        if self.wanted is None:
            return None
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted
