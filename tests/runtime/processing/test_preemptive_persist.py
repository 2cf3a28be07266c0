"""When a batch gives its changes so far to the changelog, and what looking at their size costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange
from cairn.runtime.processing.preemptive_persist import PreemptivePersist
from cairn.runtime.processing.processor_io import io_of
from cairn.runtime.processing.processor_run import Share, process
from cairn.runtime.processing.task_input import KeyedRows
from cairn.state.handle import StateDeclaration
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.view import Changes, NoState, Overlay
from tests.runtime.processing.operators import MAX_PARALLELISM, Committed, batch_of, operator_of

THRESHOLD_BYTES = 10_000


class Log:
    """A log that keeps what it is given."""

    def __init__(self) -> None:
        self.appended: list[Changes] = []
        self.preempted = 0

    def append(self, changes: Changes) -> None:
        self.appended.append(changes)

    def preempt(self) -> None:
        self.preempted += 1


class Looked(Overlay):
    """Counts how often its size is looked at."""

    looks = 0

    @property
    def size_bytes(self) -> int:
        self.looks += 1
        return super().size_bytes


def work(sizes: list[int], threshold_bytes: int = THRESHOLD_BYTES) -> tuple[Looked, Log]:
    """Changes so many bytes with each key."""
    overlay, log = Looked(NoState()), Log()
    persist = PreemptivePersist(overlay, log, threshold_bytes)
    seen = []
    for key, size_bytes in persist.after_each(enumerate(sizes)):
        overlay.put(key.to_bytes(8, "big"), b"x" * (size_bytes - 8))
        seen.append(key)
    assert seen == list(range(len(sizes)))
    return overlay, log


def size_of(changes: Changes) -> int:
    return sum(map(len, changes.keys)) + sum(len(value or b"") for value in changes.values)


@given(
    sizes=st.lists(st.integers(8, 20_000), max_size=200),
    threshold_bytes=st.integers(1, 100_000),
)
def test_every_item_is_yielded_once_and_every_change_is_in_one_segment(
    sizes: list[int], threshold_bytes: int
) -> None:
    overlay, log = work(sizes, threshold_bytes)
    committed = Committed()
    for changes in (*log.appended, overlay.changes()):
        committed.apply(changes)
    assert len(committed.entries) == sum(map(len, log.appended)) + len(overlay.changes())
    assert sorted(committed.entries) == [n.to_bytes(8, "big") for n in range(len(sizes))]
    assert log.preempted == len(log.appended)


def test_changes_below_the_threshold_stay_in_one_segment_and_are_hardly_looked_at() -> None:
    overlay, log = work([100] * 99)
    assert log.appended == []
    many, log = work([100] * 50_000, 100 * 50_001)
    assert log.appended == []
    assert (overlay.looks, many.looks) == (2, 4)


@pytest.mark.parametrize("size_bytes", [10, 1000, 50_000])
def test_a_segment_ends_about_where_the_threshold_is_reached(size_bytes: int) -> None:
    keys = 3 * max(1, THRESHOLD_BYTES // size_bytes)
    overlay, log = work([size_bytes] * keys)
    assert len(log.appended) == 2 or size_bytes > THRESHOLD_BYTES
    for changes in log.appended:
        assert THRESHOLD_BYTES <= size_of(changes) <= max(1.1 * THRESHOLD_BYTES, 2 * size_bytes)
    assert overlay.looks <= 16


@pytest.mark.parametrize("sizes", [[10] * 1000 + [3000] * 100, [3000] * 100 + [10] * 20_000])
def test_keys_that_grow_or_shrink_make_no_segment_much_too_large(sizes: list[int]) -> None:
    overlay, log = work(sizes)
    assert log.appended
    largest = max(size_of(changes) for changes in log.appended)
    assert largest <= max(4 * THRESHOLD_BYTES, sum(sizes) / 2)
    assert overlay.looks < 100


def test_however_much_a_batch_changes_it_has_tens_of_segments_and_walks_all_a_few_times() -> None:
    keys = 200_000
    overlay, log = work([100] * keys, 1024)
    assert 10 < len(log.appended) < 60
    walked, before = 0, 0
    for changes in log.appended:
        before += len(changes)
        walked += before
    assert walked < 6 * keys
    assert len(overlay.changes()) < keys / 4
    assert overlay.looks < 20 * math.log2(keys)


def test_several_sources_of_items_share_the_threshold() -> None:
    overlay, log = Overlay(NoState()), Log()
    persist = PreemptivePersist(overlay, log, THRESHOLD_BYTES)

    def keys(first: int) -> Iterator[int]:
        yield from range(first, first + 60)

    for first in range(0, 300, 60):
        for key in persist.after_each(keys(first)):
            overlay.put(key.to_bytes(8, "big"), b"x" * 92)
    assert 2 <= len(log.appended) <= 3
    assert sum(map(len, log.appended)) + len(overlay.changes()) == 300


class Ringing(StatefulProcessor):
    """Keeps the last value of a key, and sets a timer that forgets it and rings once more."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", StructType().add("n", "long"))
        self._all = handle.getListState("all", StructType().add("n", "long"))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._last.update((row.value,))
            self._all.appendValue((row.value,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self._last.clear()
        self._all.put([(1,), (2,)])
        return iter(())


N = StructType().add("n", "long").jsonValue()
RINGING = operator_of(
    Ringing(),
    StateDeclaration(name="last", kind="value", value_schema=N),
    StateDeclaration(name="all", kind="list", value_schema=N),
    time_mode=TimeMode.PROCESSING_TIME,
)


@pytest.mark.parametrize("threshold_bytes", [1, 500, 1 << 30])
def test_rows_and_timers_make_segments_that_lead_to_the_same_state(threshold_bytes: int) -> None:
    """The timers of all keys change what earlier segments have."""
    states = []
    for paces in (False, True):
        committed, log = Committed(), Log()
        rows = batch_of([(f"key-{n}", n, None, n * 7, 0) for n in range(50)])
        overlay = process(
            RINGING,
            Share(KeyGroupRange(0, MAX_PARALLELISM), MAX_PARALLELISM),
            committed,
            BatchTimes(TimeMode.PROCESSING_TIME, 1000, 0),
            initial=[],
            rows=[KeyedRows([pa.Table.from_batches([rows])], is_one_key=False)],
            io=io_of(RINGING, lambda batch: None),
            persist=partial(PreemptivePersist, log=log, threshold_bytes=threshold_bytes)
            if paces
            else None,
        )
        for changes in (*log.appended, overlay.changes()):
            committed.apply(changes)
        assert (len(log.appended) > 1) == (paces and threshold_bytes < 1 << 30)
        states.append(committed.entries)
    assert states[0] == states[1]
    assert len(states[0]) == 2 * 50
