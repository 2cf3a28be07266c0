"""What time a batch has: processing time and watermark, the same whenever the batch runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from cairn.errors import RefusedError
from metastore.group_commits import SubtaskAck
from metastore.models import Checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointTimes:
    """Times of one checkpoint in ms since 1970; `max_event_ms` is by input, None: no row yet."""

    processing_ms: int
    watermark_ms: int
    max_event_ms: list[int | None]


BEFORE_ALL = CheckpointTimes(0, 0, [])


def times_of(connection: Connection, job_id: str, checkpoint_id: int | None) -> CheckpointTimes:
    """Returns a checkpoint's times; those before all batches where there is no checkpoint."""
    if checkpoint_id is None:
        return BEFORE_ALL
    row = connection.execute(
        select(Checkpoint.processing_ms, Checkpoint.watermark_ms, Checkpoint.max_event_ms).where(
            Checkpoint.job_id == job_id, Checkpoint.checkpoint_id == checkpoint_id
        )
    ).one()
    return CheckpointTimes(*row)


def next_times(
    connection: Connection,
    run: Row[*tuple[Any, ...]],
    query_id: str,
    batch_id: int,
    parent_id: int | None,
    parent: CheckpointTimes,
) -> CheckpointTimes:
    """Returns the times of the batch that follows a checkpoint with these times.

    The watermark is Spark's: the least over the inputs of the latest event time seen minus the
    input's delay, as of the end of the parent, and never less than the parent's. A batch that an
    older run began keeps its times, whatever the delays are now, as Spark's offset log keeps them.

    Raises:
        RefusedError: the watermark is another job's, which has not begun this batch.
    """
    seen = _seen_in(connection, run.job_id, parent_id) if parent_id is not None else []
    max_event_ms = latest(parent.max_event_ms, *seen)
    begun = _begun(connection, run.job_id, query_id, batch_id)
    # The same times whenever it runs again: timers must fire in the batch they fired in.
    if begun is not None:
        return CheckpointTimes(begun.processing_ms, begun.watermark_ms, max_event_ms)
    if run.watermark_job_id is None:
        watermark_ms = _watermark_ms(max_event_ms, run.watermark_delays_ms)
    else:
        watermark_ms = _watermark_of_job(connection, run.watermark_job_id, query_id, batch_id)
    return CheckpointTimes(
        # The clock of another server, as after a failover, may be behind.
        max(parent.processing_ms, _now_ms(connection)),
        # A longer delay after a restart must not take the watermark back.
        max(parent.watermark_ms, watermark_ms),
        max_event_ms,
    )


def latest(*by_input: Sequence[int | None]) -> list[int | None]:
    """Returns the greatest of each input; shorter lists lack the later inputs."""
    longest = max(map(len, by_input), default=0)
    padded = [[*times, *[None] * (longest - len(times))] for times in by_input]
    return [
        max((time for time in times if time is not None), default=None)
        for times in zip(*padded, strict=True)
    ]


def _watermark_ms(max_event_ms: Sequence[int | None], delays_ms: Sequence[int]) -> int:
    padded = [*max_event_ms, *[None] * len(delays_ms)]
    return min(
        (
            # An input without rows yet holds the watermark back, as in Spark.
            0 if seen is None else seen - delay
            for seen, delay in zip(padded[: len(delays_ms)], delays_ms, strict=True)
        ),
        default=0,
    )


def _seen_in(connection: Connection, job_id: str, checkpoint_id: int) -> list[list[int | None]]:
    return list(
        connection.scalars(
            select(SubtaskAck.max_event_ms).where(
                SubtaskAck.job_id == job_id, SubtaskAck.checkpoint_id == checkpoint_id
            )
        )
    )


def _begun(
    connection: Connection, job_id: str, query_id: str, batch_id: int
) -> Row[int, int] | None:
    """Returns processing time and watermark of a batch that was begun before."""
    return connection.execute(
        select(Checkpoint.processing_ms, Checkpoint.watermark_ms)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.query_id == query_id,
            Checkpoint.batch_id == batch_id,
        )
        .limit(1)
    ).one_or_none()


def _now_ms(connection: Connection) -> int:
    now_ms = func.floor(func.extract("epoch", func.now()) * 1000)
    return int(connection.execute(select(now_ms)).scalar_one())


def _watermark_of_job(connection: Connection, job_id: str, query_id: str, batch_id: int) -> int:
    begun = _begun(connection, job_id, query_id, batch_id)
    if begun is None:
        raise RefusedError(
            f"the watermark follows job {job_id}, which has not begun batch {batch_id} of this "
            "query: both jobs have to be in one query and use one metastore",
            job=job_id,
        )
    watermark_ms: int = begun.watermark_ms
    return watermark_ms
