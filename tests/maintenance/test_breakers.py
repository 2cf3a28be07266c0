"""Circuit breakers speak at their limit and not below, and limits are what the environment says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError
from cairn.maintenance.breakers import (
    BYTES_VARIABLE,
    MATCH_VARIABLE,
    RATE_VARIABLE,
    SHARE_VARIABLE,
    Breaker,
    Limits,
    PlannedDeletes,
    counted_files,
    limits_of,
    max_deletes_per_s,
    spoken,
)
from cairn.maintenance.pace import Pace
from metastore.enums import MaintenanceAction

LIMITS = Limits(max_share_percent=50, max_bytes=1000, min_match_percent=50)
USUAL = PlannedDeletes(
    files=10,
    size_bytes=900,
    recent_bytes=100,
    left_files=10,
    must_leave=True,
    listed_objects=20,
    matched_objects=10,
    clock_behind_ms=60_000,
)
"""Right at every limit."""


def names(planned: PlannedDeletes, limits: Limits = LIMITS) -> set[Breaker]:
    return {one.breaker for one in spoken(planned, limits)}


def test_nothing_speaks_up_to_the_limits() -> None:
    assert names(USUAL) == set()


def test_nothing_left_although_something_has_to_be_speaks() -> None:
    nothing = replace(USUAL, left_files=0)
    assert Breaker.EMPTY_LIVE_SET in names(nothing)
    lenient = replace(LIMITS, max_share_percent=100)
    assert names(nothing, lenient) == {Breaker.EMPTY_LIVE_SET}
    assert names(replace(nothing, must_leave=False), lenient) == set()
    assert names(replace(nothing, files=0, size_bytes=0), lenient) == set()


def test_more_than_the_share_speaks() -> None:
    assert names(replace(USUAL, left_files=9)) == {Breaker.SHARE}


def test_more_bytes_than_the_limit_within_an_hour_speak() -> None:
    assert names(replace(USUAL, size_bytes=901)) == {Breaker.BYTES}
    assert names(replace(USUAL, recent_bytes=101)) == {Breaker.BYTES}
    assert names(replace(USUAL, size_bytes=0, recent_bytes=10**9)) == set()


def test_few_listed_objects_with_a_row_speak() -> None:
    assert names(replace(USUAL, matched_objects=9)) == {Breaker.MATCH_RATE}


def test_a_failed_page_speaks() -> None:
    assert names(replace(USUAL, failed_pages=1)) == {Breaker.FAILED_PAGE}


def test_a_clock_that_went_back_speaks() -> None:
    assert names(replace(USUAL, clock_behind_ms=60_001)) == {Breaker.CLOCK}


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(0, 100), st.booleans())
def test_counting_no_further_than_needed_changes_no_decision(
    files: int, left: int, percent: int, must_leave: bool
) -> None:
    limits = replace(LIMITS, max_share_percent=percent, max_bytes=10**9)
    whole = PlannedDeletes(files=files, size_bytes=1, left_files=left, must_leave=must_leave)
    counted = replace(whole, left_files=min(left, counted_files(files, limits)))
    assert names(counted, limits) == names(whole, limits)


def test_limits_are_what_the_environment_says() -> None:
    given_ = {SHARE_VARIABLE: "20", BYTES_VARIABLE: "5g", MATCH_VARIABLE: " 90 "}
    for action in MaintenanceAction:
        assert limits_of(given_, action) == Limits(
            max_share_percent=20, max_bytes=5 << 30, min_match_percent=90
        )
    assert max_deletes_per_s({RATE_VARIABLE: "7"}) == 7


def test_the_defaults_let_a_cleanup_take_nearly_all_and_other_actions_half() -> None:
    assert limits_of({}, MaintenanceAction.SUBSUMPTION).max_share_percent == 100
    assert limits_of({}, MaintenanceAction.ORPHAN_SWEEP).max_share_percent == 50
    assert limits_of({}, MaintenanceAction.ORPHAN_SWEEP).max_bytes == 1 << 40
    assert max_deletes_per_s({}) == 3_500


@pytest.mark.parametrize(
    ("name", "given_"),
    [
        (SHARE_VARIABLE, "101"),
        (SHARE_VARIABLE, "-1"),
        (SHARE_VARIABLE, "half"),
        (BYTES_VARIABLE, "many"),
        (BYTES_VARIABLE, "5"),
        (MATCH_VARIABLE, "0.5"),
    ],
)
def test_a_limit_that_is_none_is_refused_by_its_name(name: str, given_: str) -> None:
    with pytest.raises(BadInputError, match=f"{name} is '{given_}'"):
        limits_of({name: given_}, MaintenanceAction.SUBSUMPTION)


@pytest.mark.parametrize("given_", ["0", "1.5", "all", "1000001"])
def test_a_rate_that_is_none_is_refused_by_its_name(given_: str) -> None:
    with pytest.raises(BadInputError, match=f"{RATE_VARIABLE} is '{given_}'"):
        max_deletes_per_s({RATE_VARIABLE: given_})


def test_no_more_objects_are_let_through_than_the_rate_allows() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(1000, now_s=lambda: now[0], sleep=sleep)
    for _ in range(5):
        pace.wait(500)
    assert now[0] == pytest.approx(102.0)
    assert slept == pytest.approx([0.5] * 4)
    now[0] += 60
    pace.wait(500)  # time that nobody used is not saved up
    pace.wait(500)
    assert now[0] == pytest.approx(162.5)
