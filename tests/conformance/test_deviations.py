"""What docs/deviations.md says of Spark, asked of Spark: fails when a new Spark does otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from tests.conformance.asked import (
    IN_TOKYO,
    Declaring,
    Keeping,
    Looking,
    LookingInFrames,
    Timing,
    Watermarked,
)
from tests.conformance.engines import Engine
from tests.conformance.givers import Giving

ROOT = Path(__file__).parents[2]
SHOWN = "name string, kept string"
on_spark = pytest.mark.parametrize("engine", ["spark"], indirect=True)


def one_row(engine: Engine) -> DataFrame:
    return engine.session.createDataFrame([("a", 1)], "k string, n int")


def shown(df: DataFrame, processor: Giving, *key: str, mode: str = "None") -> list[tuple[str, str]]:
    rows = df.groupBy(*key or ["k"]).transformWithState(processor, SHOWN, "Update", mode)
    return [(row["name"], row["kept"]) for row in rows.collect()]


@pytest.mark.spark
@on_spark
def test_spark_keeps_in_state_what_the_document_says(engine: Engine) -> None:
    assert dict(shown(one_row(engine), Keeping(None))) == {
        "variant": '{"a":1}',
        "interval": "1 day, 0:00:00.000005",
        "key_with_array": "{}",
        "int_in_double": "None",
        "text_in_long": "None",
        "too_large": "44",
        "null": "0",
        "aware": "2024-01-01 00:00:00",
    }


@pytest.mark.spark
@on_spark
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("char", "UNSUPPORTED_DATA_TYPE_FOR_ENCODER"),
        ("time", "UNSUPPORTED_TIME_TYPE"),
        ("year-month interval", "NOT_IMPLEMENTED"),
        ("declared, then deleted", "v is not initialized"),
        ("a TTL below 0", "MUST_BE_POSITIVE"),
        ("an error", "boom in init"),
        ("text as a user key", "STRUCT_ARRAY_LENGTH_MISMATCH"),
    ],
)
def test_spark_ends_a_query_for_what_init_does_only_when_it_runs(
    engine: Engine, declared: str, message: str
) -> None:
    grouped = one_row(engine).groupBy("k")
    output = grouped.transformWithState(Declaring(declared), SHOWN, "Update", "ProcessingTime")
    with pytest.raises(Exception, match=message):
        output.collect()


@pytest.mark.spark
@on_spark
@pytest.mark.parametrize("declared", ["day-time interval", "variant"])
def test_the_state_of_sparks_streams_holds_no_interval_and_no_variant(
    engine: Engine, declared: str
) -> None:
    engine.add_file([{"k": "a"}])
    grouped = engine.read("k string").groupBy("k")
    with pytest.raises(Exception, match="Unexpected type"):
        engine.run(grouped.transformWithState(Declaring(declared), SHOWN, "Update", "None"))


@pytest.mark.spark
@on_spark
def test_spark_empties_a_variable_that_is_deleted_and_then_declared(engine: Engine) -> None:
    for _ in range(2):
        engine.add_file([{"k": "a"}])
    grouped = engine.read("k string").groupBy("k")
    processor = Declaring("deleted, then declared")
    found = engine.run(grouped.transformWithState(processor, SHOWN, "Update", "None"))
    assert [row["kept"] for rows in found for row in rows] == ["None", "None"]


@pytest.mark.spark
@on_spark
def test_spark_gives_rows_and_keys_as_the_document_says(engine: Engine) -> None:
    def of(keys: str) -> DataFrame:
        rows = engine.session.range(1).selectExpr(f"explode(array({keys})) as k")
        return rows.selectExpr("k", "struct(1 as a) as s", "map('x', 1) as m").coalesce(1)

    kinds = "['dict', 'list']"
    keys = shown(of("'b', null, 'a', 'b'"), Looking(None))
    assert keys == [
        ("(None,)", f"[{kinds}]"),
        ("('a',)", f"[{kinds}]"),
        ("('b',)", f"[{kinds}, {kinds}]"),
    ]
    assert len(shown(of("double('NaN'), double('NaN')"), Looking(None))) == 2
    with pytest.raises(Exception, match="elementType"):
        shown(of("array(1)"), Looking(None))
    frames = of("1, null, null").selectExpr("k", "1 as is").groupBy("k")
    output = frames.transformWithStateInPandas(LookingInFrames(None), SHOWN, "Update", "None")
    found = [(row["name"], row["kept"]) for row in output.collect()]
    assert found == [
        ("(nan,)", "[['k', '_1']]"),
        ("(nan,)", "[['k', '_1']]"),
        ("(1.0,)", "[['k', '_1']]"),
    ]


@pytest.mark.spark
@on_spark
def test_spark_takes_output_rows_as_the_document_says(engine: Engine) -> None:
    point = "struct<x: int, y: int>"
    columns: dict[str, tuple[str, Any, str, Any]] = {
        "in_tuple": (f"struct<p: {point}>", (Row(y=1, x=2),), "in_tuple.p.x", 1),
        "as_key": (f"map<{point}, int>", {Row(y=1, x=2): 1}, "map_keys(as_key)[0].x", 1),
        "fraction": ("int", 1.5, "fraction", 1),
        "micros": ("timestamp", 5, "unix_micros(micros)", 5),
        "wall": ("timestamp_ntz", IN_TOKYO, "cast(wall as string)", "2023-12-31 15:00:00"),
        "day": ("date", pd.NaT, "cast(day as string)", "0001-01-01"),
    }
    schema: Any = StructType.fromDDL(", ".join(f"{n} {kind}" for n, (kind, *_) in columns.items()))
    schema = StructType([*schema, StructField("empty", IntegerType(), nullable=False)])
    names = [*columns, "empty", "unknown"]
    values = [value for _, value, _, _ in columns.values()]
    given: Any = Row(*names)(*[*values, None, 5])
    output = (
        one_row(engine).groupBy("k").transformWithState(Giving(given), schema, "Update", "None")
    )
    (found,) = output.select(*[F.expr(e).alias(n) for n, (_, _, e, _) in columns.items()]).collect()
    assert found.asDict() == {name: expected for name, (_, _, _, expected) in columns.items()}
    with pytest.raises(Exception, match="asDict"):
        shown(one_row(engine), Giving(("a", "b")))


@pytest.mark.spark
@on_spark
def test_spark_takes_frames_as_the_document_says(engine: Engine) -> None:
    def taken(frame: pd.DataFrame, schema: Any) -> list[tuple[Any, ...]]:
        grouped = one_row(engine).groupBy("k")
        output = grouped.transformWithStateInPandas(Giving(frame), schema, "Update", "None")
        return [*map(tuple, output.collect())]

    assert taken(pd.DataFrame([[1, "x"]]), "a int, b string") == [(1, "x")]
    swapped = taken(pd.DataFrame({"a": [Row(y=1, x=2)]}), "a struct<x: int, y: int>")
    assert swapped == [((1, 2),)]
    not_null = StructType([StructField("a", IntegerType(), nullable=False)])
    assert len(taken(pd.DataFrame({"a": [None]}), not_null)) == 1
    by_name = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
    engine.session.conf.set(by_name, "false")
    try:
        assert taken(pd.DataFrame({"p": [1], "q": [2]}), "a int") == [(1,)]
    finally:
        engine.session.conf.unset(by_name)


@pytest.mark.spark
@on_spark
def test_spark_lists_timers_and_overflows_as_the_document_says(engine: Engine) -> None:
    found = shown(one_row(engine), Timing(None), mode="ProcessingTime")
    assert found == [("False", "None")]


@pytest.mark.spark
@on_spark
def test_spark_takes_initial_state_as_the_document_says(engine: Engine) -> None:
    session = engine.session
    many = session.range(10_001).selectExpr("'a' as k", "cast(id as int) as n").coalesce(1)

    def found(initial: DataFrame, *key: str) -> list[str]:
        output = many.groupBy("k").transformWithState(
            Declaring("nothing else"), SHOWN, "Update", "None", initial.groupBy(*key)
        )
        return [row["kept"] for row in output.collect()]

    assert found(session.createDataFrame([("a", 5)], "k string, n int"), "k") == ["(5,)", "(1,)"]
    assert found(session.createDataFrame([(1, 5)], "k long, n int"), "k")[0] == "None"
    with pytest.raises(Exception, match="implicit key"):
        found(session.createDataFrame([("a", "b", 5)], "k string, j string, n int"), "k", "j")


@pytest.mark.spark
@on_spark
@pytest.mark.parametrize(
    ("condition", "watermark_ms"),
    [
        ("k = 'kept'", 0),
        ("true", 25_000),
    ],
)
@pytest.mark.parametrize("dropped", ["", "at"])
def test_sparks_watermark_follows_rows_that_do_not_reach_the_operator(
    engine: Engine, condition: str, watermark_ms: int, dropped: str
) -> None:
    for key in ("filtered", "kept"):
        engine.add_file([{"k": key, "s": 25}])
    rows = engine.read("k string, s long").selectExpr("k", "timestamp_seconds(s) as at")
    rows = rows.withWatermark("at", "0 seconds").filter(condition).drop(dropped)
    output = rows.groupBy("k").transformWithState(Watermarked(None), SHOWN, "Update", "EventTime")
    *_, (last,) = engine.run(output)
    assert last["kept"] == str(watermark_ms)


_INIT = test_spark_ends_a_query_for_what_init_does_only_when_it_runs.__name__
_IN_STREAMS = test_the_state_of_sparks_streams_holds_no_interval_and_no_variant.__name__
_STATE = test_spark_keeps_in_state_what_the_document_says.__name__
_ROWS = test_spark_gives_rows_and_keys_as_the_document_says.__name__
_OUTPUT = test_spark_takes_output_rows_as_the_document_says.__name__
_FRAMES = test_spark_takes_frames_as_the_document_says.__name__
_TIMES = test_spark_lists_timers_and_overflows_as_the_document_says.__name__
_INITIAL = test_spark_takes_initial_state_as_the_document_says.__name__
_MARK = test_sparks_watermark_follows_rows_that_do_not_reach_the_operator.__name__
_EMPTY = "test_an_empty_list_is_an_error_for_spark_and_a_list_for_cairn"
_CALLS = "test_a_wrong_call_is_refused_and_changes_nothing"
_SETTINGS = "test_the_settings_of_pandas_are_honoured"
CHECKS = {
    "`deleteIfExists` of a variable that the same `init` declares": [
        _INIT,
        test_spark_empties_a_variable_that_is_deleted_and_then_declared.__name__,
    ],
    "`init` at plan time": [_INIT],
    "wrong arguments, state variables that do not fit": [_INIT],
    "the watermark": [_MARK],
    "the event-time column": [_MARK],
    "event time in a window column": ["test_an_event_time_that_is_a_window_is_late_by_its_end"],
    "several inputs": ["test_the_watermark_of_two_inputs_is_the_least_once_both_had_rows"],
    "`eventTimeColumnName`": ["test_an_event_time_column_has_to_be_a_timestamp"],
    "output of a stateful operator as an input of the next": [
        "test_a_second_stateful_operator_has_the_watermark_of_the_first"
    ],
    "`listTimers`": [_TIMES],
    "an expiry that is no `int` or not of 64 bits": [_CALLS],
    "a TTL so long that the expiry exceeds 2^63-1": [_TIMES],
    "`ttlDurationMs` that is negative or no `int`": [_INIT],
    "key columns of other types than the rows'": [_INITIAL],
    "another number of key columns": [_INITIAL],
    "`handleInputRows` in batch 0": [_INITIAL],
    "`ListState.put` of an empty list": [_EMPTY],
    "`ListState.appendList` of an empty list": [_EMPTY],
    "a value that does not fit its schema: another type, null where it is not nullable, another "
    "number of fields": [_STATE, _CALLS],
    "text as the user key of a map with one key column": [
        _INIT,
        "test_text_is_a_user_key_of_one_column",
    ],
    "an aware datetime for a `timestamp_ntz`": [_STATE],
    "types that state can hold": [_STATE, _INIT, _IN_STREAMS],
    "order of keys in a batch": [_ROWS],
    "structs in input rows and keys": [_ROWS],
    "maps in input rows": [_ROWS],
    "arrays in keys": [_ROWS],
    "NaN in keys": [_ROWS, "test_not_a_number_is_one_key"],
    "a plain tuple as an output row": [_OUTPUT],
    "an output row, or a row or dict in a column, with a field that the schema lacks": [_OUTPUT],
    "a `Row` in a tuple, or as the key of a map, in the output": [_OUTPUT],
    "an output value of another type": [_OUTPUT],
    "null in an output column, a field or an element that is not nullable": [_OUTPUT],
    "column names that are no Python identifiers, such as `is`": [_ROWS],
    "`preferIntExtensionDtype`": [_SETTINGS],
    "null in keys": [_ROWS],
    "an output frame whose columns have no names": [_FRAMES],
    "an output frame with more columns, with `groupedMap.assignColumnsByName=false`": [_FRAMES],
    "a `Row` in a column of the output": [_FRAMES],
    "null in an output column that is not nullable": [_FRAMES],
    "frames of `arrow.maxBytesPerBatch`": [_SETTINGS],
}
"""The tests that ask Spark, by the first cell of the line."""
NOT_ASKED_OF_SPARK = {
    "names of state variables over 255 characters, of fields over 2,000, or with control "
    "characters": "what Cairn refuses",
    "event time after a union or a join of inputs with `withWatermark`": "what Cairn refuses",
    "removing or renaming a field of a state variable, another type but a wider one": "Cairn's",
    "`spark.speculation`": "a setting of the application",
    "`asyncProgressTrackingEnabled` of the writer": "a setting of the query",
    "state that Spark wrote": "what Cairn does not read",
    "who groups": "the call itself",
    'a key that is an expression, such as `F.upper("k").alias("k")`': "what Cairn refuses",
    "a struct's field as the key, named as another column": "what Cairn refuses",
    "number of partitions": "a setting",
    "Spark tasks": "a setting",
    "the processor": "how a task is made",
    "state store settings": "what Cairn has not",
    "`spark.sql.streaming.multipleWatermarkPolicy`": "a setting",
    "how many rows were late": "a place to look",
    "batches without data": "a query that never ends",
    "timers that are due at the same time": "an order that nobody defines",
    "order of firing": "an order across partitions",
    "when it is read": "a moment",
    "when it is handed over": "a moment",
    "a streaming DataFrame": "what Cairn refuses",
    "`handle.getOperatorListState`, `handle.getUnionListState`": "what Spark lacks",
    "order of a map's iterators": "an order that nobody defines",
    "when output leaves the task": "a moment",
    "types of a frame's columns": "how pandas infers them",
    "where state is": "a place",
    "what Spark sees": "a plan",
    "a sink that reads part of a batch": "not defined",
    "moving the `checkpointLocation` back to an older batch": "what Cairn refuses",
    "a second query on the same state": "what Cairn refuses",
}
"""Why there is nothing to ask, by the first cell of the line."""


def test_each_line_about_spark_is_asked_of_spark_or_says_why_not() -> None:
    text = (ROOT / "docs/deviations.md").read_text().partition("\n## At a restart")[0]
    lines = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    assert {line for line in lines if line != "what"} == CHECKS.keys() | NOT_ASKED_OF_SPARK.keys()
    here = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    names = {name for tests in CHECKS.values() for name in tests}
    assert {name for name in names if f"def {name}(" not in here} == set()
