"""Which micro-batch of which run: what every transaction of a batch is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """A micro-batch as a task knows it: `epoch` is the run's, `batch_id` Spark's."""

    job: str
    job_id: str
    epoch: int
    query_id: str
    batch_id: int
