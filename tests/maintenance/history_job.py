"""A job with history of every kind, and what the views count of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from cairn.catalog.job.materializations import Materialized, record_end, record_start
from tests.metastore.steps import MAX_PARALLELISM, Steps

NEXT_BATCH = 16
TRIMMED_CHECKPOINTS, TRIMMED_FILES = 13, 17


def job_with_history(metastore_url: str, storage: str) -> Steps:
    """Returns a job with all that can be trimmed: sixteen batches in two runs, cleaned up.

    Batch 3 was aborted once. Batches 13 to 15 are retained; they need the changelog of batch 12.
    """
    job = Steps(metastore_url, storage)
    first = job.register()
    for batch_id in range(3):
        job.whole_batch(first, batch_id)
    job.begin(job.ref(first, 3))
    job.intend(job.ref(first, 3))
    second = job.register()
    for batch_id in range(3, 8):
        checkpoint_id = job.whole_batch(second, batch_id)
        if batch_id in (4, 6):
            materialize(job, second, batch_id, as_of=checkpoint_id - 1)
    batch = job.ref(second, 8)
    begun = job.begin(batch)
    lost = job.intend(batch)
    won = job.intend(batch, retry_of=lost)
    acks, _ = job.group(batch, begun.checkpoint_id, [0, 1])
    job.commit(batch, begun.checkpoint_id, acks, replace(won, size_bytes=200))
    job.let_writes_end()
    for batch_id in range(9, 13):
        checkpoint_id = job.whole_batch(second, batch_id)
    materialize(job, second, 12, as_of=checkpoint_id - 1)
    for batch_id in range(13, NEXT_BATCH):
        job.whole_batch(second, batch_id)
    job.clean()
    return job


def materialize(job: Steps, epoch: int, batch_id: int, as_of: int) -> None:
    """Makes a base of the whole state."""
    batch, made = job.ref(epoch, batch_id), uuid4()
    job.run(lambda c: record_start(c, batch, 0, made))
    base = job.base(batch, as_of, (0, MAX_PARALLELISM))
    job.install(batch, base)
    job.run(lambda c: record_end(c, made, Materialized.of([base[1]]), None))


def newest(job: Steps) -> int:
    return max(job.statuses())


def continue_with(job: Steps, batch_id: int = NEXT_BATCH) -> int:
    return job.whole_batch(2, batch_id)


def totals(job: Steps) -> dict[str, Any]:
    """Returns every number of the views that count what has been."""
    found: dict[str, Any] = {}
    for view in ("v_native_comparison", "v_jobs"):
        found |= row(job, f"SELECT to_jsonb(v) FROM cairn.{view} AS v")  # noqa: S608 - fixed names
    for day, numbers in job.sql(
        "SELECT day, to_jsonb(v) - '{trimmed_checkpoints,trimmed_files}'::text[]"
        " FROM cairn.v_history_by_day AS v WHERE job_id = :job"
    ):
        found[str(day)] = numbers
    for subtask, numbers in job.sql(
        "SELECT subtask, to_jsonb(v) FROM cairn.v_materialization AS v WHERE job_id = :job"
    ):
        found[f"subtask {subtask}"] = numbers
    for name, value in job.sql(
        "SELECT concat_ws(' ', metric, tm_id, subtask, kind, quantile), value"
        " FROM cairn.v_metrics WHERE job_id = :job AND kind IN ('counter', 'sum', 'count')"
    ):
        found[name] = value
    return found


def row(job: Steps, query: str) -> dict[str, Any]:
    [(found,)] = job.sql(query)
    return dict(found)
