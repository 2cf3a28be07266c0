"""Which run, and which micro-batch of it: what every transaction of a run is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """A run as its processes know it.

    `run_id` is its identity: a metastore that has lost a run's row gives the epoch again.
    """

    job: str
    job_id: str
    epoch: int
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef(RunRef):
    """A micro-batch of a run as a task knows it: `batch_id` is Spark's."""

    query_id: str
    batch_id: int
