"""Batch DataFrames: one run over all rows, whose state is not kept."""

from __future__ import annotations

import json

import pytest

from tests.conformance.engines import Engine, by_key, frame, times
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import OUTPUT, Interpreter, InterpreterInPandas, dump

pytestmark = pytest.mark.spark

TIMERS = [["handle", "registerTimer", expiry] for expiry in (-1, -2, 0, 5, 4_102_444_800_000)]
ROWS = [
    ScriptRow("clock", [["times"]]),
    ScriptRow("a", [["list", "appendValue", [1]], ["value", "update", [1, "x"]]]),
    ScriptRow("b", [["map", "updateValue", ["b", 1], [2]], *dump()]),
    ScriptRow(None, [["list", "get"]]),
    ScriptRow("a", dump()),
]
INITIAL = [("a", {"calls": json.dumps([["list", "appendValue", [0]]])})]


@pytest.mark.parametrize("mode", ["None", "ProcessingTime", "EventTime"])
@pytest.mark.parametrize("in_pandas", [False, True], ids=["rows", "pandas"])
def test_a_batch_frame_runs_once_with_times_timers_and_initial_state(
    engine: Engine, mode: str, *, in_pandas: bool
) -> None:
    timers = [] if mode == "None" else [ScriptRow("b", [*TIMERS, ["handle", "listTimers"]])]
    rows = ROWS + timers
    initial = engine.session.createDataFrame(
        [("a", INITIAL[0][1]["calls"])], "k string, calls string"
    )
    grouped = engine.group(frame(engine, rows), "key")
    state = engine.group(initial, "k", job="initial")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    processor = InterpreterInPandas() if in_pandas else Interpreter()
    found = transform(processor, OUTPUT, "Append", mode, state).collect()
    processing_ms, watermark_ms = times(found)
    assert watermark_ms == -1
    assert (processing_ms == -1) == (mode == "None")
    reference = Reference(Interpreter, mode.lower(), watermark_ms=-1)
    assert by_key(found) == reference.run(rows, processing_ms, INITIAL)


def test_a_second_run_of_a_batch_frame_starts_without_state(engine: Engine) -> None:
    script = [["list", "appendValue", [1]], ["list", "get"], ["value_ttl", "exists"]]
    df = frame(engine, [ScriptRow("a", script)])
    grouped = engine.group(df, "key").transformWithState(
        Interpreter(1000), OUTPUT, "Append", "ProcessingTime"
    )
    for _ in range(2):
        assert [row["result"] for row in grouped.collect()] == ["", "[(1,)]", "False"]
