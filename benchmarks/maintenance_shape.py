"""How much the maintenance benchmark does, and what it measures, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_MEMORY_MB = 500
MOST_TRANSACTION_MS = 1_000
LEAST_COPY_SHARE = 0.8


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
    listed_objects: int = 500_000
    executors: int = 10
    """Whose directories have nearly all objects that are listed; the subtasks have the others."""
    rounds: int = 3
    """Of a copy by Cairn and a plain one, or of batches with maintenance beside and without."""
    compacted_files: int = 32
    segment_bytes: int = 16 << 20
    """Of a base in such a file, which has four of which one is live."""
    folded: Sequence[Sequence[int]] = ((1_000, 200_000), (100, 400_000))
    """Of each state that is folded the bytes of an entry, and the entries."""
    stream_keys: int = 200_000
    stream_rows: int = 10_000
    """A second, and so in a batch."""
    stream_batches: int = 25
    """Of a round."""
    materialize_s: int = 10


QUICK = Sizes(
    live_segments=(200, 400),
    parallelism=4,
    groups=2,
    dead_batches=3,
    repetitions=1,
    deleted_files=1_500,
    delay_ms=1,
    listed_objects=3_000,
    executors=2,
    rounds=1,
    compacted_files=2,
    segment_bytes=5 << 20,
    folded=((100, 2_000),),
    stream_keys=1_000,
    stream_rows=1_000,
    stream_batches=3,
    materialize_s=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a workload runs: a metastore with its schema, an empty directory, and how much it does.

    `is_quick`: an S3 server that is a Python module is enough, as no figure means anything.
    """

    url: str
    directory: Path
    sizes: Sizes
    is_quick: bool


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


def memory_figure(workload: str, name: str, memory_mb: float) -> Figure:
    """Returns the figure of a process's peak memory."""
    return Figure(
        workload=workload,
        name=f"{name}: memory",
        value=memory_mb,
        unit="MB",
        wanted=MOST_MEMORY_MB,
        at_least=False,
    )


def transaction_figure(workload: str, name: str, longest_ms: float) -> Figure:
    """Returns the figure of the longest transaction of a process."""
    return Figure(
        workload=workload,
        name=f"{name}: longest transaction",
        value=longest_ms,
        unit="ms",
        wanted=MOST_TRANSACTION_MS,
        at_least=False,
    )
