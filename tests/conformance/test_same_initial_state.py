"""Initial state: who gets it, when, and in which order."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import DataFrame

from tests.conformance.engines import Engine, by_key, times
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import OUTPUT, Call, Interpreter, InterpreterInPandas, dump

pytestmark = pytest.mark.spark

CLOCK = ScriptRow("clock", [["times"]])


def append(number: int) -> Call:
    return ["list", "appendValue", [number]]


def timer(expiry_ms: int) -> Call:
    return ["handle", "registerTimer", expiry_ms]


INITIAL: list[tuple[str | None, list[Call]]] = [
    ("both", [append(1), timer(5)]),
    ("both", [append(2)]),
    ("initial only", [append(3), timer(7), ["on", 7, [["list", "get"]]]]),
    (None, [append(4)]),
    ("both", [append(0)]),
]
BATCHES = [
    [CLOCK, ScriptRow("both", [["list", "get"], append(5)]), ScriptRow("rows only", dump())],
    [CLOCK, *[ScriptRow(key, [["list", "get"]]) for key in ("both", "initial only", None)]],
]


def initial_rows(engine: Engine) -> DataFrame:
    rows = [(key, json.dumps(calls), "x") for key, calls in INITIAL]
    return engine.session.createDataFrame(rows, "name string, calls string, more string")


@pytest.mark.parametrize(
    ("engine", "in_pandas"),
    # Spark's own pandas form is in the tests of batch frames.
    [("spark", False), ("cairn", False), ("cairn", True)],
    indirect=["engine"],
)
def test_initial_state_comes_once_before_the_rows_of_the_first_batch(
    engine: Engine, *, in_pandas: bool
) -> None:
    initial = engine.group(initial_rows(engine).coalesce(1), "name", job="initial")

    def transform(df: DataFrame) -> DataFrame:
        grouped = engine.group(df, "key")
        if in_pandas:
            return grouped.transformWithStateInPandas(
                InterpreterInPandas(), OUTPUT, "Append", "ProcessingTime", initial
            )
        return grouped.transformWithState(
            Interpreter(), OUTPUT, "Append", "ProcessingTime", initialState=initial
        )

    found = engine.run_scripts(BATCHES, transform)
    reference = Reference(Interpreter, "processingtime")
    given = [(key, {"calls": json.dumps(calls)}) for key, calls in INITIAL]
    expected = [
        reference.run(BATCHES[0], times(found[0])[0], given),
        reference.run(BATCHES[1], times(found[1])[0]),
    ]
    assert [by_key(rows) for rows in found] == expected
    assert ("fired", "7") in expected[0]["initial only"]


@pytest.mark.parametrize("engine", ["cairn"], indirect=True)
def test_initial_state_of_keys_of_another_type_is_refused(engine: Engine) -> None:
    """Spark takes it; which keys then get it is chance."""
    initial = engine.group(initial_rows(engine).selectExpr("7 as number", "calls"), "number")
    engine.add_file([])
    grouped = engine.group(engine.read(), "key")
    with pytest.raises(ValueError, match="other types than the rows: number"):
        grouped.transformWithState(Interpreter(), OUTPUT, "Append", "None", initial)
