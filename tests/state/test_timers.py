from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cairn.errors import BadInputError
from cairn.keygroups import KeyGroupRange
from cairn.state.entries import FIRST_MS, LAST_MS, decode_time, encode_time
from cairn.state.handle import DeclaringHandle, StateHandle
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

ALL = KeyGroupRange(0, 4)
ONE, OTHER = (1, b"\x91\x01"), (1, b"\x91\x02")
TIMES = BatchTimes(TimeMode.EVENT_TIME, 1_000, 500)
TIMER_CALLS: list[Callable[[Any], Any]] = [
    lambda handle: handle.registerTimer(1),
    lambda handle: handle.deleteTimer(1),
    lambda handle: handle.listTimers(),
]


@pytest.fixture
def handle(committed: DictState) -> StateHandle:
    return StateHandle({}, Overlay(committed), times=TIMES)


def test_times_in_keys_sort_as_the_times_do() -> None:
    times = [FIRST_MS, -(2**40), -1, 0, 1, 255, 256, 2**40, LAST_MS]
    assert sorted(map(encode_time, times)) == [encode_time(time) for time in times]
    assert [decode_time(encode_time(time) + b"more") for time in times] == times


def test_timers_are_a_set_per_key_listed_in_order_of_time(handle: StateHandle) -> None:
    handle.set_key(*ONE)
    for expiry_ms in (7, -3, 300, 7, LAST_MS):
        handle.registerTimer(expiry_ms)
    handle.set_key(*OTHER)
    handle.registerTimer(8)
    handle.deleteTimer(7)
    assert list(handle.listTimers()) == [8]
    handle.set_key(*ONE)
    assert list(handle.listTimers()) == [-3, 7, 300, LAST_MS]
    handle.deleteTimer(7)
    handle.deleteTimer(7)
    assert list(handle.listTimers()) == [-3, 300, LAST_MS]


def test_listed_timers_are_those_of_the_call(handle: StateHandle) -> None:
    handle.set_key(*ONE)
    handle.registerTimer(1)
    listed = handle.listTimers()
    handle.registerTimer(2)
    handle.deleteTimer(1)
    handle.set_key(*OTHER)
    assert list(listed) == [1]


def test_due_timers_come_in_order_of_time_over_all_key_groups(committed: DictState) -> None:
    overlay = Overlay(committed)
    timers = Timers(overlay)
    for key_group, key, expiry_ms in ((3, b"a", 10), (0, b"b", 20), (0, b"a", -5), (2, b"c", 21)):
        timers.register(key_group, key, expiry_ms)
    committed.apply(overlay.changes())
    timers = Timers(Overlay(committed))
    timers.register(1, b"new", 15)
    timers.delete(3, b"a", 10)
    expected = [(-5, 0, b"a"), (15, 1, b"new"), (20, 0, b"b")]
    assert list(timers.due(ALL, 20)) == expected
    assert list(timers.due(ALL, -6)) == []
    assert list(timers.due(KeyGroupRange(1, 3), LAST_MS)) == [(15, 1, b"new"), (21, 2, b"c")]


def test_due_timers_are_those_of_the_call_whatever_their_handlers_do(committed: DictState) -> None:
    overlay = Overlay(committed)
    timers = Timers(overlay)
    timers.register(0, b"a", 1)
    timers.register(1, b"b", 2)
    committed.apply(overlay.changes())
    timers = Timers(Overlay(committed))
    timers.register(0, b"c", 3)
    due = timers.due(ALL, 10)
    timers.delete(1, b"b", 2)
    fired = []
    for expiry_ms, key_group, key in due:
        fired.append((expiry_ms, key))
        timers.register(key_group, key, expiry_ms + 1)
        timers.delete(key_group, key, expiry_ms)
    assert fired == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert timers.exists(0, b"a", 2)
    assert not timers.exists(0, b"a", 1)
    assert list(timers.of_key(0, b"c")) == [4]


def test_due_timers_cost_a_scan_per_key_group_and_what_is_due(committed: DictState) -> None:
    overlay = Overlay(committed)
    timers = Timers(overlay)
    for number in range(1_000):
        timers.register(number % 4, b"%d" % number, number)
    committed.apply(overlay.changes())
    timers = Timers(Overlay(committed))
    committed.reads.clear()
    due = timers.due(ALL, 500)
    assert [next(due)[0] for _ in range(3)] == [0, 1, 2]
    assert committed.reads == ["scan"] * 4
    assert committed.scanned == 4 + 2
    assert sum(1 for _ in due) == 498
    assert committed.scanned == 501 + 4


def test_a_timer_that_is_there_is_not_written_again(committed: DictState) -> None:
    overlay = Overlay(committed)
    Timers(overlay).register(*ONE, 5)
    committed.apply(overlay.changes())
    overlay = Overlay(committed)
    timers = Timers(overlay)
    timers.register(*ONE, 5)
    timers.delete(*ONE, 6)
    assert len(overlay.changes()) == 0
    timers.delete(*ONE, 5)
    committed.apply(overlay.changes())
    assert committed.entries == {}


@pytest.mark.parametrize("use", TIMER_CALLS)
def test_timers_in_time_mode_none_are_refused_with_the_mode(
    committed: DictState, use: Callable[[Any], Any]
) -> None:
    in_task = StateHandle({}, Overlay(committed))
    in_task.set_key(*ONE)
    for handle in (in_task, DeclaringHandle(lambda schema: {})):
        with pytest.raises(BadInputError, match=r'timeMode None.*Pass timeMode="ProcessingTime"'):
            use(handle)


@pytest.mark.parametrize("use", TIMER_CALLS)
def test_timers_in_init_are_refused(handle: StateHandle, use: Callable[[Any], Any]) -> None:
    for in_init in (handle, DeclaringHandle(lambda schema: {}, TimeMode.PROCESSING_TIME)):
        with pytest.raises(BadInputError, match="timers belong to keys"):
            use(in_init)


@pytest.mark.parametrize("expiry_ms", [True, 1.0, "1", None, LAST_MS + 1, FIRST_MS - 1])
def test_an_expiry_that_is_no_time_is_refused(handle: StateHandle, expiry_ms: Any) -> None:
    handle.set_key(*ONE)
    for call in (handle.registerTimer, handle.deleteTimer):
        with pytest.raises(BadInputError, match="a timer's expiry is"):
            call(expiry_ms)
    assert list(handle.listTimers()) == []


def test_an_expiry_may_come_from_numpy(handle: StateHandle) -> None:
    handle.set_key(*ONE)
    handle.registerTimer(np.int64(5))  # type: ignore[arg-type]  # pandas has no other integers
    assert list(handle.listTimers()) == [5]
