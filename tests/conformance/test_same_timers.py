"""Timers in both time modes, the times that a processor sees, and rows that come late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tests.conformance.engines import Batches, Engine, Grouped, by_key, times, with_event_time
from tests.conformance.generated import calls, sample, scripts
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import OUTPUT, Call, Interpreter, InterpreterInPandas, dump

pytestmark = pytest.mark.spark

FAR_MS = 4_102_444_800_000
START_MS = 1_704_067_200_000
PROBE: list[Call] = [["times"]]
LIST: list[Call] = [["handle", "listTimers"]]
# Spark's own timers do not depend on the form; its pandas form is in the tests of state calls.
FORMS = [
    pytest.param("spark", False, id="spark-rows"),
    pytest.param("cairn", False, id="cairn-rows"),
    pytest.param("cairn", True, id="cairn-pandas"),
]


def register(expiry_ms: int) -> Call:
    return ["handle", "registerTimer", expiry_ms]


def delete(expiry_ms: int) -> Call:
    return ["handle", "deleteTimer", expiry_ms]


PROCESSING_TIME: dict[str, list[list[Call]]] = {
    "order": [[*map(register, (1000, -5, 500, FAR_MS, 500, 0)), *LIST], LIST, LIST],
    "deleted": [
        [register(10), delete(10), register(20), delete(20), register(20), delete(99), *LIST],
        LIST,
        LIST,
    ],
    "own time": [[["in", -1], ["in", 0], ["in", 1], ["in", 10**9]], [], []],
    "registers while it fires": [
        [register(500), ["on", 500, [register(300), register(700), register(FAR_MS), *LIST]]],
        [],
        LIST,
    ],
    "registers itself": [[register(500), ["on", 500, [register(500), *LIST]]], LIST, LIST],
    "deletes a due one": [
        [register(500), register(600), ["on", 500, [delete(600), *LIST]], ["on", 600, LIST]],
        LIST,
        [],
    ],
    "deletes itself": [[register(500), ["on", 500, [delete(500), *LIST]]], LIST, []],
    "uses state": [
        [
            ["value", "update", [1, "set by rows"]],
            register(500),
            ["on", 500, [["value", "get"], ["value", "clear"], ["list", "appendValue", [5]]]],
        ],
        [],
        [],
    ],
    "many": [[*map(register, range(1000, 1250)), ["on", 1000, [delete(1240)]], *LIST], [], LIST],
    "moves on": [[register(FAR_MS)], [delete(FAR_MS), register(FAR_MS + 1)], LIST],
}


def transform(
    engine: Engine, mode: str, *, in_pandas: bool = False, parallelism: int = 2
) -> Callable[[DataFrame], DataFrame]:
    def of(df: DataFrame) -> DataFrame:
        grouped = engine.group(df, "key", parallelism=parallelism)
        if in_pandas:
            return grouped.transformWithStateInPandas(InterpreterInPandas(), OUTPUT, "Append", mode)
        return grouped.transformWithState(Interpreter(), OUTPUT, "Append", mode)

    return of


def with_watermark(of: Callable[[DataFrame], DataFrame], delay: str) -> Callable[..., DataFrame]:
    return lambda df: of(df.withWatermark("at", delay))


def batches_of(
    handwritten: dict[str, list[list[Call]]], expiries: Sequence[int], generated: int
) -> list[list[ScriptRow]]:
    of_keys = {key: [[batch] if batch else [] for batch in b] for key, b in handwritten.items()}
    drawn = calls(timers=st.sampled_from(expiries))
    for number, found in enumerate(sample(scripts(drawn, batches=3), generated)):
        of_keys[f"generated {number}"] = found
    return [
        [
            ScriptRow("clock", PROBE),
            *[ScriptRow(k, row) for k, b in of_keys.items() for row in b[n]],
        ]
        for n in range(3)
    ] + [[ScriptRow("clock", PROBE), *[ScriptRow(key, dump(timers=True)) for key in of_keys]]]


def fired(rows: Sequence[Row]) -> list[int]:
    return [int(row["result"]) for row in rows if row["call"] == "fired"]


def check_processing_time(batches: Sequence[Sequence[ScriptRow]], found: Batches) -> None:
    reference = Reference(Interpreter, "processingtime")
    moments = [times(rows) for rows in found]
    assert all(earlier[0] < later[0] for earlier, later in pairwise(moments))
    expected = [
        reference.run(rows, processing_ms)
        for rows, (processing_ms, _) in zip(batches, moments, strict=True)
    ]
    assert [by_key(rows) for rows in found] == expected


@pytest.mark.parametrize(("engine", "in_pandas"), FORMS, indirect=["engine"])
def test_processing_time_timers_fire_the_same(engine: Engine, *, in_pandas: bool) -> None:
    generated = 8 if in_pandas else 25
    batches = batches_of(PROCESSING_TIME, [-1, 5, 6, 7, FAR_MS, FAR_MS + 1], generated)
    found = engine.run_scripts(batches, transform(engine, "ProcessingTime", in_pandas=in_pandas))
    check_processing_time(batches, found)
    assert sum(len(fired(rows)) for rows in found) > len(PROCESSING_TIME)


def test_timers_of_all_keys_of_a_partition_fire_by_expiry_after_all_its_rows(
    engine: Engine,
) -> None:
    scripts_of = [[register(n * 7 % 50) for n in range(key, 50, 5)] for key in range(5)]
    rows = [ScriptRow(f"key {key}", script) for key, script in enumerate(scripts_of)]
    df = transform(engine, "ProcessingTime", parallelism=1)
    (output,) = engine.run_scripts([rows], lambda rows: df(rows.coalesce(1)))
    assert fired(output) == sorted(fired(output))
    assert [row["call"] == "fired" for row in output] == [False] * 50 + [True] * 50


# Batch by batch, the event times of two rows; the watermark's delay is 2 s.
EVENT_TIMES = [(0, 10_000), (7_000, 8_000), (8_000, 30_000), (28_000, 28_001), (28_001, 60_000)]


def event_time_batches(generated: int) -> list[list[ScriptRow]]:
    """Timers around the watermarks 0, 8 s and 28 s; rows before, at and after them."""
    offsets = [0, 7_999, 8_000, 8_001, 27_999, 28_000, 28_001, 57_999]
    expiries = [0, 1, -1, *[START_MS + offset for offset in offsets]]
    found = sample(scripts(calls(timers=st.sampled_from(expiries)), batches=5), generated)
    batches = []
    for number, (early, late) in enumerate(EVENT_TIMES):
        at = [START_MS + early, START_MS + late]
        rows = [
            ScriptRow("clock", PROBE, at[1]),
            ScriptRow("early", PROBE, at[0]),
            ScriptRow("no time", PROBE),
            ScriptRow("timers", [*map(register, expiries), *LIST] if number == 0 else LIST, at[1]),
        ]
        for n, script in enumerate(found):
            rows += [ScriptRow(f"generated {n}", row, at[n % 2]) for row in script[number]]
        batches.append(rows)
    last = [ScriptRow("clock", PROBE, START_MS + 90_000), ScriptRow("timers", LIST)]
    return [*batches, last]


@pytest.mark.parametrize(("engine", "in_pandas"), FORMS, indirect=["engine"])
def test_event_time_timers_fire_and_late_rows_are_dropped_the_same(
    engine: Engine, *, in_pandas: bool
) -> None:
    batches = event_time_batches(generated=8 if in_pandas else 25)
    of = transform(engine, "EventTime", in_pandas=in_pandas)
    found = engine.run_scripts(batches, with_watermark(of, "2 seconds"))
    reference = Reference(Interpreter, "eventtime", delay_ms=2_000)
    expected = [
        reference.run(rows, times(output)[0]) for rows, output in zip(batches, found, strict=True)
    ]
    assert [by_key(rows) for rows in found] == expected
    watermarks = [times(rows)[1] for rows in found]
    assert watermarks == [0, *[START_MS + ms for ms in (8_000, 8_000, 28_000, 28_000, 58_000)]]
    assert ["early" in by_key(rows) for rows in found] == [True, True, False, True, True, False]


@pytest.mark.parametrize("mode", ["None", "ProcessingTime"])
def test_no_row_is_late_in_other_time_modes(engine: Engine, mode: str) -> None:
    batches = [[ScriptRow("clock", PROBE, START_MS + ms)] for ms in (10_000, 5_000)]
    found = engine.run_scripts(batches, with_watermark(transform(engine, mode), "0 seconds"))
    assert [len(rows) for rows in found] == [1, 1]
    watermarks = [times(rows)[1] for rows in found]
    known = [0, START_MS + 10_000]
    assert watermarks == ([-1, -1] if mode == "None" else known)
    assert all((times(rows)[0] == -1) == (mode == "None") for rows in found)


def test_event_time_without_a_watermark_never_passes(engine: Engine) -> None:
    script = [*PROBE, register(0), register(1)]
    batches = [[ScriptRow("clock", script, START_MS)], [ScriptRow("clock", PROBE, START_MS)]]
    found = engine.run_scripts(batches, transform(engine, "EventTime"))
    assert [times(rows)[1] for rows in found] == [0, 0]
    assert [fired(rows) for rows in found] == [[0], []]


def test_an_event_time_that_is_a_window_is_late_by_its_end(engine: Engine) -> None:
    def windowed(df: DataFrame) -> DataFrame:
        rows = df.withWatermark("at", "0 seconds")
        rows = rows.withColumn("window", F.window("at", "10 seconds")).drop("at")
        return transform(engine, "EventTime")(rows)

    batches = [[ScriptRow("clock", PROBE, START_MS + ms)] for ms in (25_000, 31_000)]
    late = [("10", 9_000), ("20", 11_000), ("30", 21_000)]
    batches.append([ScriptRow(end, PROBE, START_MS + ms) for end, ms in late])
    found = engine.run_scripts(batches, windowed)
    assert [sorted(by_key(rows), key=str) for rows in found] == [["clock"], ["clock"], ["30"]]


def test_the_watermark_of_two_inputs_is_the_least_once_both_had_rows(engine: Engine) -> None:
    for number, (left, right) in enumerate([(20, None), (21, None), (22, 23), (24, 24)]):
        for source, second in (("left", left), ("right", right)):
            at_ms = None if second is None else START_MS + second * 1000
            calls_of = '[["times"]]' if source == "left" else "[]"
            row = {"key": source, "at_ms": at_ms, "calls": calls_of, "number": number}
            engine.add_file([row], source)
    inputs = [
        with_event_time(engine.read(source=source)).withWatermark("at", delay)
        for source, delay in (("left", "0 seconds"), ("right", "5 seconds"))
    ]
    united = inputs[0].unionByName(inputs[1])
    grouped: Grouped = united.groupBy("key")
    if engine.is_cairn:
        grouped = engine.job().groupBy(inputs, "key")
    found = engine.run(grouped.transformWithState(Interpreter(), OUTPUT, "Append", "EventTime"))
    watermarks = [times(rows)[1] for rows in found]
    assert watermarks == [0, 0, 0, START_MS + 18_000]
