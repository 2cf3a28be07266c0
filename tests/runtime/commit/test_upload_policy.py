"""When an upload sends another request, and what that does to latency on a simulated store."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.runtime.commit.upload_policy import (
    FIRST_TIMEOUT_MS,
    HEDGE_BURST,
    HEDGE_SHARE,
    LEAST_HEDGE_MS,
    LEAST_OBSERVED,
    WINDOW,
    History,
    Kind,
    Limits,
    SentRequest,
    next_step,
    size_class,
)
from cairn.settings import Settings
from tests.runtime.commit.simulated_store import (
    FLIP_158,
    SIZE_BYTES,
    Latency,
    Simulation,
    heavy_tail,
    slower,
)

UPLOADS = 30_000
P999_MS = 3202
DOCUMENTS_CUT = 0.47
ADAPTIVE = Settings()
NO_HEDGES = Settings(upload_retry_policy="none")


def simulate(latency: Latency, settings: Settings = ADAPTIVE) -> Simulation:
    made = Simulation(settings)
    made.upload(UPLOADS, latency)
    return made


def test_without_hedging_the_simulated_store_has_the_documents_latencies() -> None:
    plain = simulate(FLIP_158, NO_HEDGES)
    found = [plain.quantile_ms(share) for share in (0.5, 0.9, 0.95, 0.99, 0.999)]
    assert found == pytest.approx([459, 740, 833, 1039, P999_MS], rel=0.03)
    assert plain.share_of(Kind.FIRST) == 1
    assert len(plain.kinds) == UPLOADS


def test_hedging_cuts_p999_by_60_percent_for_5_percent_more_requests() -> None:
    hedged = simulate(FLIP_158)
    assert hedged.quantile_ms(0.999) <= 0.4 * P999_MS
    assert len(hedged.kinds) <= 1.05 * UPLOADS
    assert hedged.quantile_ms(0.5) == pytest.approx(459, rel=0.01)


def test_hedging_of_a_heavy_tail_cuts_p999_by_more_than_the_documents_version() -> None:
    plain, hedged = simulate(heavy_tail, NO_HEDGES), simulate(heavy_tail)
    assert plain.quantile_ms(0.999) == pytest.approx(P999_MS, rel=0.05)
    assert hedged.quantile_ms(0.999) <= (1 - DOCUMENTS_CUT) * P999_MS
    assert len(hedged.kinds) <= 1.05 * UPLOADS


def test_a_store_that_gets_slow_for_everybody_gets_no_more_than_the_budget() -> None:
    made = Simulation(ADAPTIVE)
    made.upload(5_000, FLIP_158)
    before = len(made.kinds)
    made.upload(1_000, slower(FLIP_158, 8))
    sent = made.kinds[before:]
    assert sent.count(Kind.HEDGE) <= HEDGE_SHARE * 1_000 + HEDGE_BURST
    assert sent.count(Kind.RETRY) <= 20, "timeouts follow the store, too"
    assert made.kinds.count(Kind.HEDGE) <= HEDGE_SHARE * len(made.latencies_ms)


def test_hedges_come_back_to_a_store_that_is_quick_again() -> None:
    made = Simulation(ADAPTIVE)
    made.upload(2_000, slower(FLIP_158, 8))
    made.upload(WINDOW, FLIP_158)
    before = len(made.kinds)
    made.upload(2_000, FLIP_158)
    assert made.kinds[before:].count(Kind.HEDGE) >= 0.03 * 2_000


@given(st.lists(st.floats(0, 1e6), max_size=200), st.data())
def test_hedges_never_exceed_their_share_of_the_uploads(
    latencies_ms: list[float], data: st.DataObject
) -> None:
    history, taken = History(), 0
    for number, latency_ms in enumerate(latencies_ms, start=1):
        history.observe(SIZE_BYTES, latency_ms)
        taken += data.draw(st.booleans()) and history.take_hedge()
        assert taken <= HEDGE_SHARE * number + 1e-9


def limits(
    hedge_after_ms: float = 100,
    timeout_ms: float = 1000,
    max_attempts: int = 3,
    next_attempt_delay_ms: float = 500,
) -> Limits:
    return Limits(
        hedge_after_ms=hedge_after_ms,
        timeout_ms=timeout_ms,
        max_attempts=max_attempts,
        next_attempt_delay_ms=next_attempt_delay_ms,
    )


def test_an_upload_begins_with_one_request() -> None:
    assert next_step(limits(), [], 7) is Kind.FIRST


def test_a_hedge_is_sent_when_the_first_request_takes_longer_than_most() -> None:
    first = SentRequest(Kind.FIRST, 1000)
    assert next_step(limits(), [first], 1000) == 1100
    assert next_step(limits(), [first], 1100) is Kind.HEDGE


def test_an_upload_is_hedged_once() -> None:
    both = [SentRequest(Kind.FIRST, 0), SentRequest(Kind.HEDGE, 100)]
    assert next_step(limits(), both, 900) == 1100, "until the hedge has timed out, too"
    assert next_step(limits(), both, 1100) is Kind.RETRY


def test_after_a_failure_the_next_attempt_comes_after_the_delay() -> None:
    failed = SentRequest(Kind.FIRST, 0, failed_ms=30)
    assert next_step(limits(), [failed], 30) == 530
    assert next_step(limits(), [failed], 530) is Kind.RETRY


def test_after_a_timeout_the_next_attempt_is_sent_at_once_and_the_first_continues() -> None:
    first = SentRequest(Kind.FIRST, 0)
    no_hedge = limits(hedge_after_ms=math.inf)
    assert next_step(no_hedge, [first], 999) == 1000
    assert next_step(no_hedge, [first], 1000) is Kind.RETRY
    assert next_step(no_hedge, [first, SentRequest(Kind.RETRY, 1000)], 1001) == 2000


def test_a_hedge_takes_no_attempt_from_a_store_that_fails() -> None:
    requests = [
        SentRequest(Kind.FIRST, 0, 150),
        SentRequest(Kind.HEDGE, 100, 160),
        SentRequest(Kind.RETRY, 660, 700),
    ]
    assert next_step(limits(), requests, 1200) is Kind.RETRY
    requests.append(SentRequest(Kind.RETRY, 1200, 1300))
    assert next_step(limits(), requests, 9000) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([Kind.HEDGE, Kind.RETRY]), st.none() | st.floats(0, 1000)),
        max_size=6,
    ),
    st.floats(0, 1e5),
    st.integers(1, 4),
)
def test_an_upload_gives_up_only_when_nothing_runs_and_no_attempt_is_left(
    others: Sequence[tuple[Kind, float | None]], now_ms: float, max_attempts: int
) -> None:
    requests = [
        SentRequest(Kind.FIRST, 0),
        *(SentRequest(kind, 0, failed) for kind, failed in others),
    ]
    requests[0] = SentRequest(Kind.FIRST, 0, 5 if others else None)
    step = next_step(limits(max_attempts=max_attempts), requests, now_ms)
    attempts = sum(request.kind is not Kind.HEDGE for request in requests)
    is_running = any(request.failed_ms is None for request in requests)
    assert (step is None) is (not is_running and attempts >= max_attempts)
    if attempts >= max_attempts:
        assert step is not Kind.RETRY
    if isinstance(step, float | int):
        assert step > now_ms


def observed(number: int, latency_ms: float, size_bytes: int = SIZE_BYTES) -> History:
    history = History()
    for _ in range(number):
        history.observe(size_bytes, latency_ms)
    return history


def test_nothing_is_hedged_before_enough_was_observed_at_the_size() -> None:
    few = observed(LEAST_OBSERVED - 1, 100).limits(ADAPTIVE, SIZE_BYTES)
    assert (few.hedge_after_ms, few.timeout_ms) == (math.inf, FIRST_TIMEOUT_MS)
    enough = observed(LEAST_OBSERVED, 100)
    assert enough.limits(ADAPTIVE, SIZE_BYTES).hedge_after_ms == 100
    assert enough.limits(ADAPTIVE, 100 * SIZE_BYTES).hedge_after_ms == math.inf


def test_quick_requests_are_not_hedged_before_the_floor_nor_timed_out_before_a_second() -> None:
    quick = observed(LEAST_OBSERVED, 2).limits(ADAPTIVE, SIZE_BYTES)
    assert (quick.hedge_after_ms, quick.timeout_ms) == (LEAST_HEDGE_MS, 1000)


def test_a_given_timeout_is_flinks_and_there_are_no_hedges() -> None:
    settings = Settings(upload_timeout_ms=1000)
    fixed = observed(LEAST_OBSERVED, 100).limits(settings, SIZE_BYTES)
    assert fixed == Limits(
        hedge_after_ms=math.inf, timeout_ms=1000, max_attempts=3, next_attempt_delay_ms=500
    )


def test_the_policy_none_sends_one_request() -> None:
    once = observed(LEAST_OBSERVED, 100).limits(NO_HEDGES, SIZE_BYTES)
    assert next_step(once, [SentRequest(Kind.FIRST, 0)], 1e9) == math.inf
    assert next_step(once, [SentRequest(Kind.FIRST, 0, 10)], 1e9) is None


def test_uploads_of_like_size_are_of_one_class() -> None:
    sizes = [0, 1, 1 << 16, (1 << 16) + 1, 1 << 18, (1 << 18) + 1, 1 << 20, 1 << 30]
    assert [size_class(size) for size in sizes] == [0, 0, 0, 1, 1, 2, 2, 7]
