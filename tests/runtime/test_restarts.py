"""When a query that has failed is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError
from cairn.runtime.driver.restarts import RestartPolicy, Restarts


def test_the_delay_doubles_up_to_its_highest() -> None:
    policy = RestartPolicy(first_delay_ms=1_000, max_delay_ms=5_000)
    assert [policy.delay_ms(restarts) for restarts in range(5)] == [1000, 2000, 4000, 5000, 5000]


@given(st.integers(0, 10**9), st.floats(1, 1e6))
def test_the_delay_stays_in_its_bounds_however_often_it_failed(
    restarts: int, multiplier: float
) -> None:
    delay_ms = RestartPolicy(multiplier=max(multiplier, 1.01)).delay_ms(restarts)
    assert delay_ms is not None
    assert 1_000 <= delay_ms <= 60_000


def test_after_the_last_restart_there_is_no_delay() -> None:
    restarts = Restarts(policy=RestartPolicy(max_restarts=2))
    assert [restarts.next_delay_ms() for _ in range(3)] == [1000, 2000, None]


def test_a_query_that_ran_long_enough_starts_soon_again() -> None:
    now_s = 0.0
    restarts = Restarts(policy=RestartPolicy(reset_after_ms=10_000), clock_s=lambda: now_s)
    restarts.started()
    assert [restarts.next_delay_ms() for _ in range(3)] == [1000, 2000, 4000]
    now_s = 9.0
    assert restarts.next_delay_ms() == 8000
    restarts.started()
    now_s += 10.0
    assert restarts.next_delay_ms() == 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_delay_ms": 0},
        {"first_delay_ms": 2, "max_delay_ms": 1},
        {"multiplier": 0.5},
        {"reset_after_ms": 0},
        {"max_restarts": -1},
    ],
)
def test_a_policy_out_of_its_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInputError, match=r"allowed|at least"):
        RestartPolicy(**wrong)
