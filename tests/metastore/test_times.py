"""Processing time and watermark: of a batch always the same, never going back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import BatchStart
from cairn.catalog.job.group_commits import Ack
from cairn.errors import RefusedError
from tests.metastore.steps import Steps

SUBTASKS = 2
INPUTS = 2

EventTimes = tuple[int | None, ...]

event_times = st.tuples(*[st.none() | st.integers(0, 50)] * INPUTS)
delays = st.tuples(*[st.integers(0, 20)] * INPUTS)


@dataclass(frozen=True)
class Batch:
    """How a batch goes: runs that begin it in vain, then the acks that count.

    Each run in vain is its delays and what its subtask 0 acknowledged. `attempts` is by subtask,
    in the order they come; `numbers` are the task attempts of each.
    """

    in_vain: Sequence[tuple[tuple[int, ...], EventTimes]]
    attempts: Sequence[Sequence[EventTimes]]
    order: Sequence[Sequence[int]]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    attempts = [draw(st.lists(event_times, min_size=1, max_size=3)) for _ in range(SUBTASKS)]
    return Batch(
        draw(st.lists(st.tuples(delays, event_times), max_size=2)),
        attempts,
        [draw(st.permutations(range(len(of_subtask)))) for of_subtask in attempts],
    )


def acknowledge(
    steps: Steps, batch: BatchRef, checkpoint_id: int, subtask: int, seen: EventTimes, attempt: int
) -> None:
    ack = Ack(
        subtask=subtask,
        attempt_id=str(uuid4()),
        task_attempt=attempt,
        input_rows=1,
        restore_ms=0,
        max_event_ms=seen,
    )
    steps.commit(batch, checkpoint_id, [ack], None)


def begin(steps: Steps, epoch: int, batch_id: int) -> BatchStart:
    """Begins a batch, twice; the second begin gives the same."""
    start = steps.begin(steps.ref(epoch, batch_id))
    again = steps.begin(steps.ref(epoch, batch_id))
    assert times(again) == times(start)
    return start


def times(start: BatchStart) -> tuple[int, int, int]:
    return start.processing_ms, start.watermark_ms, start.late_watermark_ms


def latest(one: Sequence[int | None], other: Sequence[int | None]) -> list[int | None]:
    """Returns the greater of each input."""
    pairs = zip(one, other, strict=True)
    return [max((at for at in pair if at is not None), default=None) for pair in pairs]


def watermark(seen: Sequence[int | None], delays_ms: Sequence[int]) -> int:
    """Returns Spark's: the least over inputs, 0 while one has had no row."""
    return min(0 if at is None else at - by for at, by in zip(seen, delays_ms, strict=True))


@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first_delays=delays, stream=st.lists(batches(), min_size=1, max_size=5))
def test_times_of_a_batch_stay_and_never_decrease(
    shared_metastore_url: str,
    tmp_storage: str,
    first_delays: tuple[int, ...],
    stream: list[Batch],
) -> None:
    steps = Steps(shared_metastore_url, tmp_storage)
    delays_ms: Sequence[int] = first_delays
    epoch = steps.register(SUBTASKS, watermark_delays_ms=delays_ms)
    seen: list[int | None] = [None] * INPUTS
    before_ms, late_ms = 0, 0
    for batch_id, batch in enumerate(stream):
        watermark_ms = max(late_ms, watermark(seen, delays_ms))
        start = begin(steps, epoch, batch_id)
        first = times(start)
        assert first == (start.processing_ms, watermark_ms, late_ms)
        assert start.processing_ms >= before_ms
        for new_delays_ms, lost in batch.in_vain:
            acknowledge(steps, steps.ref(epoch, batch_id), start.checkpoint_id, 0, lost, 1)
            delays_ms = new_delays_ms
            epoch = steps.register(SUBTASKS, watermark_delays_ms=delays_ms)
            start = begin(steps, epoch, batch_id)
            assert times(start) == first
        for subtask, attempts in enumerate(batch.attempts):
            for number in batch.order[subtask]:
                ref = steps.ref(epoch, batch_id)
                acknowledge(steps, ref, start.checkpoint_id, subtask, attempts[number], number)
            seen = latest(seen, attempts[-1])
        before_ms, late_ms = start.processing_ms, watermark_ms


def run_batch(steps: Steps, epoch: int, batch_id: int, seen_ms: int) -> BatchStart:
    """Begins and completes a batch of a job with one subtask; returns its start."""
    start = begin(steps, epoch, batch_id)
    ref = steps.ref(epoch, batch_id)
    acknowledge(steps, ref, start.checkpoint_id, 0, (seen_ms,), 1)
    return start


def test_a_longer_delay_after_a_restart_does_not_take_the_watermark_back(
    shared_metastore_url: str, tmp_storage: str
) -> None:
    steps = Steps(shared_metastore_url, tmp_storage)
    epoch = steps.register(1, watermark_delays_ms=[0])
    run_batch(steps, epoch, 0, 100)
    assert run_batch(steps, epoch, 1, 0).watermark_ms == 100
    epoch = steps.register(1, watermark_delays_ms=[50])
    assert run_batch(steps, epoch, 2, 0).watermark_ms == 100


def test_a_job_downstream_has_the_watermark_of_the_job_upstream(
    shared_metastore_url: str, tmp_storage: str
) -> None:
    first = Steps(shared_metastore_url, tmp_storage)
    second = Steps(shared_metastore_url, tmp_storage)
    epoch = first.register(1, watermark_delays_ms=[10])
    follower = second.register(1, watermark_job_id=first.job_id)
    seen = [100, 50, 300]
    for batch_id, (seen_ms, watermark_ms) in enumerate(zip(seen, [0, 90, 90], strict=True)):
        assert run_batch(first, epoch, batch_id, seen_ms).watermark_ms == watermark_ms
        start = run_batch(second, follower, batch_id, 0)
        assert start.watermark_ms == watermark_ms
        assert start.late_watermark_ms == (90 if batch_id == 2 else 0)


def test_a_job_downstream_follows_the_run_upstream_that_began_the_batch_again(
    shared_metastore_url: str, tmp_storage: str
) -> None:
    first = Steps(shared_metastore_url, tmp_storage)
    second = Steps(shared_metastore_url, tmp_storage)
    epoch = first.register(1, watermark_delays_ms=[10])
    follower = second.register(1, watermark_job_id=first.job_id)
    run_batch(first, epoch, 0, 100)
    run_batch(second, follower, 0, 0)
    run_batch(first, epoch, 1, 200)
    before = run_batch(second, follower, 1, 0)
    epoch = first.register(1, watermark_delays_ms=[80])
    follower = second.register(1, watermark_job_id=first.job_id)
    run_batch(first, epoch, 1, 500)
    assert times(run_batch(second, follower, 1, 0)) == times(before)
    run_batch(first, epoch, 2, 0)
    assert run_batch(second, follower, 2, 0).watermark_ms == 420


def test_a_job_downstream_of_one_that_is_not_in_its_query_is_refused(
    shared_metastore_url: str, tmp_storage: str
) -> None:
    first = Steps(shared_metastore_url, tmp_storage)
    second = Steps(shared_metastore_url, tmp_storage)
    first.begin(first.ref(first.register(1), 0, "another query"))
    follower = second.register(1, watermark_job_id=first.job_id)
    with pytest.raises(RefusedError, match="which has not begun batch 0 of this query"):
        second.begin(second.ref(follower, 0))
