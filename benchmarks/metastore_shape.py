"""The load on the metastore as plain values, and the calls that it makes, of whatever version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_PARALLELISM = 512
SEGMENT_BYTES = 100
QUERY_ID = "query"
BATCHES_A_ROUND = 600
"""Batches between two bases of a subtask: one a second, and the default interval."""


@dataclass(frozen=True, slots=True)
class JobRef:
    """A registered run of a job."""

    name: str
    job_id: str
    epoch: int
    parallelism: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of a run."""

    job: JobRef
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The batches that a job is given without running them, all confirmed.

    Each was committed in `groups` group commits, with a changelog segment for each subtask. Those
    of the first `dead_batches`, at least one, were materialized and cleaned up; those of the
    `live_batches` after them are live and on top of one base for each subtask. The first
    `bare_batches` have no group commits.
    """

    dead_batches: int
    live_batches: int
    groups: int
    bare_batches: int = 0
    max_parallelism: int = MAX_PARALLELISM

    @property
    def batches(self) -> int:
        """How many batches there are; the newest one's checkpoint has this id."""
        return self.dead_batches + self.live_batches

    @property
    def dead_rounds(self) -> int:
        """How many times all subtasks were materialized before the bases that are live."""
        return self.dead_batches // BATCHES_A_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much load there is."""

    executors: Sequence[int] = (1, 4, 8, 16, 32)
    parallelism: int = 200
    warm_up_batches: int = 3
    batches: int = 25
    jobs: int = 100
    job_parallelism: int = 8
    job_processes: int = 4
    warm_up_s: float = 3
    seconds: float = 15
    live_segments: Sequence[int] = (24_000, 100_000)
    dead_segments: int = 1_000_000
    live_groups: int = 16
    installs: int = 5
    reads: int = 3
    growth: Sequence[Sequence[int]] = ((200, 16, 40), (4, 1, 200))
    """Of each job the parallelism, the executors, and the batches between two cleanups."""
    groups_of_12: int = 42
    group_batches: int = 5


QUICK = Sizes(
    executors=(1, 3),
    parallelism=6,
    warm_up_batches=1,
    batches=2,
    jobs=2,
    job_parallelism=2,
    job_processes=2,
    warm_up_s=0.5,
    seconds=1.5,
    live_segments=(30, 60),
    dead_segments=120,
    live_groups=2,
    installs=1,
    reads=1,
    growth=((4, 2, 6),),
    groups_of_12=2,
    group_batches=2,
)


class Calls(Protocol):
    """The catalog's calls. Times that are returned are in seconds, by transaction."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet."""

    def close(self) -> None:
        """Closes the connections."""

    def migrate(self) -> None:
        """Makes the schema."""

    def register(self, name: str, parallelism: int, storage: str) -> JobRef:
        """Registers a run."""

    def begin(self, batch: Batch, subtasks: Sequence[int]) -> int:
        """Begins a batch for the subtasks of one executor; returns its checkpoint's id."""

    def commit_group(
        self, batch: Batch, checkpoint_id: int, executor: int, subtasks: Sequence[int]
    ) -> dict[str, float]:
        """Commits one file with a changelog segment for each subtask."""

    def install_base(self, batch: Batch, subtask: int, as_of: int) -> dict[str, float]:
        """Installs a base of all of a subtask's key groups at a confirmed checkpoint."""

    def plan_cleanup(self, job: JobRef) -> None:
        """Reads what a cleanup reads, and makes its plan."""

    def cleanup(self, job: JobRef) -> None:
        """Cleans up."""

    def fill(self, job: JobRef, history: History) -> None:
        """Gives a job that has begun no batch the rows of a history, by SQL."""


def share(parallelism: int, executors: int, executor: int) -> range:
    """Returns the subtasks of one executor."""
    return range(executor * parallelism // executors, (executor + 1) * parallelism // executors)
