"""What is wrong is an error in both engines, and Cairn's says what it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.conformance.engines import Engine, frame
from tests.conformance.processors import ERROR_OUTPUT, Faulty
from tests.conformance.reference import ScriptRow
from tests.conformance.scripts import OUTPUT, Call, Interpreter

pytestmark = pytest.mark.spark

ANYTHING = "(?s).*"


class Fault(NamedTuple):
    """A fault, and what the messages say. Spark's own worker often dies without a reason."""

    name: str
    spark: str
    cairn: str
    mode: str = "ProcessingTime"
    in_pandas: bool = False
    has_initial: bool = False

    def __str__(self) -> str:
        return f"{self.name}, {self.mode}"


# One of each kind; what Cairn says of the others is in test_faults.py, without Spark.
FAULTS = [
    Fault("raise in rows", "boom in rows", "boom in rows"),
    Fault("raise in initial state", "boom in initial", "boom in initial", has_initial=True),
    Fault("ttl", "Cannot use TTL for state=other in timeMode=NoTime", "ttlDurationMs", "None"),
    Fault("text for a long", "ArrowInvalid|ArrowTypeError", "output column n"),
    Fault("frame of other types", "column 'n'", "column n|column 'n'", in_pandas=True),
]
# What the driver says when it builds the plan. Spark's driver worker dies of most of these.
IN_INIT = [
    Fault("raise in init", "", "boom in init"),
    Fault("ttl below 1", "", "ttlDurationMs is -1"),
    Fault("ttl", "", "ttlDurationMs is 1000 in timeMode eventtime", "EventTime"),
    Fault("declared twice", "", "known already exists"),
    Fault("schema that is none", "", "n lonk|UNSUPPORTED_DATATYPE"),
    Fault("timer in init", "", "registerTimer was called outside of a key"),
    Fault("state in init", "", "state variable known was used outside of a key"),
    Fault("ttl of text", "", "ttlDurationMs is '1'"),
]


def run(engine: Engine, fault: Fault) -> None:
    """Runs a batch DataFrame, which is quick."""
    df = engine.session.createDataFrame([("a", 1)], "key string, n long")
    grouped = engine.group(df, "key")
    initial = engine.group(df, "key", job="initial") if fault.has_initial else None
    pandas, rows = grouped.transformWithStateInPandas, grouped.transformWithState
    transform = pandas if fault.in_pandas else rows
    transform(Faulty(fault.name), ERROR_OUTPUT, "Append", fault.mode, initial).collect()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_what_is_wrong_ends_the_query(engine: Engine, fault: Fault) -> None:
    with pytest.raises(Exception, match=fault.cairn if engine.is_cairn else fault.spark):
        run(engine, fault)


@pytest.mark.parametrize("engine", ["cairn"], indirect=True)
@pytest.mark.parametrize("fault", IN_INIT, ids=str)
def test_the_message_says_what_is_wrong_in_init(engine: Engine, fault: Fault) -> None:
    with pytest.raises(Exception, match=fault.cairn):
        run(engine, fault)


@pytest.mark.parametrize(
    ("arguments", "by_spark", "by_cairn"),
    [
        (("key string, n long", "Nope", "None"), "STREAMING_OUTPUT_MODE.INVALID", "'Nope'"),
        (("key string", "Append", "Nope"), "STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE", "'Nope'"),
        (("key strink", "Append", "None"), "UNSUPPORTED_DATATYPE", "UNSUPPORTED_DATATYPE"),
        (("string", "Append", "None"), ANYTHING, "StructType"),
    ],
    ids=["output mode", "time mode", "output type", "output that is no struct"],
)
def test_wrong_arguments_are_refused_when_the_plan_is_built(
    engine: Engine, arguments: tuple[str, str, str], by_spark: str, by_cairn: str
) -> None:
    df = engine.session.createDataFrame([("a",)], "key string")
    with pytest.raises(Exception, match=by_cairn if engine.is_cairn else by_spark):
        engine.group(df, "key").transformWithState(Faulty(""), *arguments)


def test_initial_state_has_to_be_grouped(engine: Engine) -> None:
    df = engine.session.createDataFrame([("a",)], "key string")
    with pytest.raises(Exception, match="initialState" if engine.is_cairn else ANYTHING):
        engine.group(df, "key").transformWithState(Faulty(""), ERROR_OUTPUT, "Append", "None", df)


class Wrong(NamedTuple):
    """A wrong call, and what the error names; in Spark None where it takes the call."""

    call: Call
    spark: str | None
    cairn: str


# What Spark's Python refuses, or takes: it stores null, or the text of the number.
IN_PYTHON = [
    Wrong(["value", "update", None], "TypeError", "NoneType"),
    Wrong(["value", "update", 5], "TypeError", "state variable value|int"),
    Wrong(["list", "appendValue", None], "TypeError", "NoneType"),
    Wrong(["list", "put", None], "TypeError", "NoneType"),
    Wrong(["map", "updateValue", None, [1]], "TypeError", "NoneType"),
    Wrong(["map", "updateValue", ["a", 1], None], "TypeError", "NoneType"),
    Wrong(["value", "update", ["one", "a"]], None, "value, field n: .* long, found str 'one'"),
    Wrong(["value", "update", [1.5, "a"]], None, "value, field n: .* long, found float 1.5"),
    Wrong(["value", "update", [True, "a"]], None, "value, field n: .* long, found bool True"),
    Wrong(["value", "update", [2**63, "a"]], None, "value, field n: expected long"),
    Wrong(["list", "appendValue", ["x"]], None, "list, field n: expected long, found str 'x'"),
    Wrong(["map", "updateValue", [1, 1], [1]], None, "map, field a: .* string, found int 1"),
    Wrong(["handle", "registerTimer", "5"], "TypeError", "expiry is '5'"),
    Wrong(["handle", "registerTimer", 5.0], "TypeError", "expiry is 5.0"),
    Wrong(["handle", "registerTimer", True], "TypeError", "expiry is True"),
    Wrong(["handle", "registerTimer", 2**63], "ValueError", "expiry is 9223372036854775808"),
    Wrong(["handle", "deleteTimer", "5"], "TypeError", "expiry is '5'"),
]
# What Spark's JVM refuses: it closes the connection, so the query ends even if the error is caught.
_ENDS_SPARK = [
    Wrong(["value", "update", [1]], "STRUCT_ARRAY_LENGTH_MISMATCH", "state variable value"),
    Wrong(["map", "getValue", ["a"]], "STRUCT_ARRAY_LENGTH_MISMATCH", "state variable map"),
    Wrong(["handle", "getValueState", "late", "n int"], "INVALID_HANDLE_STATE", "in init"),
    Wrong(["handle", "deleteIfExists", "value"], "INVALID_HANDLE_STATE", "variable value"),
]
_IN_NO_TIME = [
    Wrong(["handle", "registerTimer", 5], "INVALID_TIME_MODE", "timeMode None"),
    Wrong(["handle", "deleteTimer", 5], "INVALID_TIME_MODE", "timeMode None"),
]
_LIST_TIMERS = Wrong(["handle", "listTimers"], ANYTHING, "timeMode None")
IN_JVM = [*_ENDS_SPARK, *_IN_NO_TIME, _LIST_TIMERS]


def check_refused(engine: Engine, wrong: Sequence[Wrong], mode: str) -> None:
    """Each call on a key of its own, which has state before it and shows its state after it."""
    before: list[Call] = [["value", "update", [7, "kept"]], ["list", "put", [[7]]]]
    after: list[Call] = [["value", "get"], ["list", "get"], ["map", "iterator"]]
    scripts = [[*before, ["try", one.call], *after] for one in wrong]
    df = frame(engine, [ScriptRow(str(number), script) for number, script in enumerate(scripts)])
    grouped = engine.group(df, "key")
    output = grouped.transformWithState(Interpreter(), OUTPUT, "Append", mode).collect()
    surprises = []
    for number, one in enumerate(wrong):
        _, _, tried, *others = [row for row in output if row["key"] == str(number)]
        results = [row["result"] for row in others]
        expected = one.cairn if engine.is_cairn else one.spark
        if expected is None:
            is_right = tried["result"] == ""
        else:
            is_right = re.search(expected, tried["note"]) is not None
            is_right = is_right and results == ["(7, 'kept',)", "[(7,)]", "[]"]
        if not is_right:
            surprises.append((one, tried["result"], tried["note"], results))
    assert surprises == []


def test_a_wrong_call_is_refused_and_changes_nothing(engine: Engine) -> None:
    check_refused(engine, IN_PYTHON, "ProcessingTime")


@pytest.mark.parametrize("engine", ["cairn"], indirect=True)
def test_calls_at_the_wrong_time_are_refused_and_change_nothing(engine: Engine) -> None:
    check_refused(engine, IN_JVM, "None")


@pytest.mark.parametrize("engine", ["spark"], indirect=True)
@pytest.mark.parametrize("wrong", [_ENDS_SPARK[0], _IN_NO_TIME[0]], ids=str)
def test_the_same_calls_end_a_query_of_spark(engine: Engine, wrong: Wrong) -> None:
    df = frame(engine, [ScriptRow("a", [wrong.call])])
    grouped = engine.group(df, "key")
    with pytest.raises(Exception, match=wrong.spark):
        grouped.transformWithState(Interpreter(), OUTPUT, "Append", "None").collect()


def test_an_empty_list_is_an_error_for_spark_and_a_list_for_cairn(engine: Engine) -> None:
    append: list[Call] = [["list", "appendList", [[1], [2]]], ["list", "appendList", []]]
    put: list[Call] = [["list", "get"], ["list", "put", []], ["list", "exists"]]
    df = frame(engine, [ScriptRow("a", append + put)])
    grouped = engine.group(df, "key").transformWithState(Interpreter(), OUTPUT, "Update", "None")
    if engine.is_cairn:
        assert [r["result"] for r in grouped.collect()] == ["", "", "[(1,), (2,)]", "", "False"]
    else:
        with pytest.raises(Exception, match="EMPTY_LIST_VALUE"):
            grouped.collect()
