"""What a batch does to state beyond what its processor does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange
from cairn.runtime.processing.operator_spec import OperatorSpec
from cairn.runtime.processing.processor_io import io_of
from cairn.runtime.processing.processor_run import Share, process
from cairn.runtime.processing.task_input import KeyedRows
from cairn.state.entries import split
from cairn.state.handle import StateDeclaration
from cairn.state.times import BatchTimes, TimeMode
from tests.runtime.processing.operators import MAX_PARALLELISM, Committed, batch_of, operator_of

N = StructType().add("n", "long").jsonValue()
TTL_MS = 100
DECLARED = {
    "kept": StateDeclaration(name="kept", kind="value", value_schema=N),
    "listed": StateDeclaration(name="listed", kind="list", value_schema=N),
    "expiring": StateDeclaration(name="expiring", kind="value", value_schema=N, ttl_ms=TTL_MS),
}


class Fill(StatefulProcessor):
    """Sets the value states it declares and appends to the lists."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def init(self, handle: Any) -> None:
        n = StructType().add("n", "long")
        self._values = [
            handle.getValueState(name, n, DECLARED[name].ttl_ms)
            for name in self._names
            if DECLARED[name].kind == "value"
        ]
        self._lists = [
            handle.getListState(name, n) for name in self._names if DECLARED[name].kind == "list"
        ]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for value in self._values:
                value.update((row.value,))
            for listed in self._lists:
                listed.appendValue((row.value,))
        return iter(())


class Ring(StatefulProcessor):
    """Sets a timer at each row, and gives the key of each timer that fires."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], n=expiredTimerInfo.getExpiryTimeInMs())


def operator_with(*names: str, dropped: Sequence[int] = ()) -> OperatorSpec:
    """Returns an operator with some of the variables, whose ids are their places in `DECLARED`."""
    full = operator_of(Fill(names), *DECLARED.values(), time_mode=TimeMode.PROCESSING_TIME)
    states = {name: full.states[name] for name in names}
    return replace(full, states=states, dropped_state_ids=tuple(dropped))


def run_batch(operator: OperatorSpec, committed: Committed, now_ms: int, *keys: str) -> list[str]:
    """Applies a batch of a row for each key; returns the keys of the output."""
    output: list[pa.RecordBatch] = []
    rows = batch_of([(key, i, None, i * 7, 0) for i, key in enumerate(keys)])
    io = io_of(operator, output.append)
    overlay = process(
        operator,
        Share(KeyGroupRange(0, MAX_PARALLELISM), MAX_PARALLELISM),
        committed,
        BatchTimes(TimeMode.PROCESSING_TIME, now_ms, 0),
        initial=[],
        rows=[KeyedRows([pa.Table.from_batches([rows])], is_one_key=False)] if keys else [],
        io=io,
    )
    io.flush()
    committed.apply(overlay.changes())
    return [key for batch in output for key in batch.column("key").to_pylist()]


def state_ids(committed: Committed) -> set[int]:
    return {split(key).state_id for key in committed.entries}


def test_all_entries_of_a_dropped_variable_go_in_the_next_batch_and_no_others() -> None:
    committed = Committed()
    run_batch(operator_with("kept", "listed"), committed, 1000, *"abcdefgh")
    kept = {key: value for key, value in committed.entries.items() if split(key).state_id == 0}
    assert len(kept) == 8
    assert state_ids(committed) == {0, 1}
    run_batch(operator_with("kept", dropped=[1]), committed, 2000)
    assert committed.entries == kept


@pytest.mark.parametrize("others", [(), ("kept",)])
def test_a_dropped_variable_with_ttl_leaves_no_index(others: Sequence[str]) -> None:
    committed = Committed()
    run_batch(operator_with(*others, "expiring"), committed, 1000, *"abc")
    run_batch(operator_with(*others, dropped=[2]), committed, 1000 + TTL_MS)
    assert state_ids(committed) == ({0} if others else set())


def test_a_timer_fires_once_and_leaves_nothing() -> None:
    operator = operator_of(Ring(), time_mode=TimeMode.PROCESSING_TIME)
    committed = Committed()
    assert run_batch(operator, committed, 1000, *"abc") == []
    assert committed.entries
    assert sorted(run_batch(operator, committed, 1001)) == ["a", "b", "c"]
    assert committed.entries == {}
    assert run_batch(operator, committed, 1002) == []
