"""What a processor may give back, event time of its output, and operators after it."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tests.conformance.engines import Engine, with_event_time
from tests.conformance.processors import (
    ERROR_OUTPUT,
    STAMPED_OUTPUT,
    Stamped,
    Versioned,
    Without,
)
from tests.conformance.scripts import OUTPUT, InterpreterInPandas

pytestmark = pytest.mark.spark


def emit(
    engine: Engine, batches: list[tuple[int, str]], event_time_column: str = "AT"
) -> DataFrame:
    """Returns the output of Stamped: each batch has one row, at a second, and emits others."""
    for second, emitted in batches:
        engine.add_file([{"key": "a", "at_ms": second * 1000, "calls": emitted}])
    rows = with_event_time(engine.read()).withWatermark("at", "0 seconds")
    grouped = engine.group(rows, "key")
    return grouped.transformWithState(
        Stamped(), STAMPED_OUTPUT, "Append", "EventTime", eventTimeColumnName=event_time_column
    )


def seconds(rows: list[Row]) -> list[int | None]:
    return [None if row["at"] is None else int(row["at"].timestamp()) for row in rows]


def test_rows_are_taken_by_name_and_a_processor_needs_no_base_class(engine: Engine) -> None:
    engine.add_file([{"key": "a"}])
    df = engine.group(engine.read("key string"), "key").transformWithState(
        Without(), ERROR_OUTPUT, "Update", "None"
    )
    assert engine.run(df) == [[Row(key="a", n=1), Row(key="no n", n=None)]]


@pytest.mark.parametrize("output_mode", ["append", "Update", "COMPLETE"])
def test_every_output_mode_gives_what_the_processor_yields(
    engine: Engine, output_mode: str
) -> None:
    df = engine.session.createDataFrame([("a",), ("a",)], "key string")
    grouped = engine.group(df, "key")
    found = grouped.transformWithState(Without(), ERROR_OUTPUT, output_mode, "NONE").collect()
    assert found == [Row(key="a", n=2), Row(key="no n", n=None)]


def test_emitted_event_time_is_what_a_window_after_it_follows(engine: Engine) -> None:
    batches = [(25, "5 6 12 null"), (41, "30"), (59, "55"), (60, "60"), (61, "70")]
    emitted = emit(engine, batches)
    counts = emitted.groupBy(F.window("at", "10 seconds")).count()
    found = engine.run(counts.selectExpr("cast(window.end as long) as until", "count"))
    assert [sorted(map(tuple, rows)) for rows in found] == [
        [],
        [(10, 2), (20, 1)],
        [(40, 1)],
        [],
        [(60, 1)],
    ]


def test_a_second_stateful_operator_has_the_watermark_of_the_first(engine: Engine) -> None:
    batches = [(25, "26 27"), (41, "42"), (59, "60")]
    first = emit(engine, batches)
    rows = first.selectExpr("key", "at", "cast(cast(at as long) as string) as calls")
    grouped = engine.group(rows, "key", job="second")
    second = grouped.transformWithState(Stamped(), STAMPED_OUTPUT, "Append", "EventTime")
    found = engine.run(second)
    assert [seconds(rows) for rows in found] == [[26, 27], [42], [60]]
    watermarks = [{row["watermark_ms"] for row in rows} for rows in found]
    assert watermarks == [{0}, {25_000}, {41_000}]


def test_a_row_at_the_watermark_of_the_batch_before_is_too_old_to_be_emitted(
    engine: Engine,
) -> None:
    batches = [(25, "1"), (31, "25 null"), (40, "26"), (50, "32"), (51, "40")]
    with pytest.raises(Exception, match=_TOO_OLD[engine.name]) as caught:
        engine.run(emit(engine, batches))
    assert engine.is_cairn or "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED" in str(caught.value)


_TOO_OLD = {
    "spark": "eventTime=40000000 which is older than current_watermark_value=40000",
    "cairn": "older|late|watermark",
}


def test_an_event_time_column_has_to_be_one_of_the_output(engine: Engine) -> None:
    with pytest.raises(Exception, match="nope"):
        emit(engine, [(25, "26")], event_time_column="nope")


@pytest.mark.parametrize("engine", ["cairn"], indirect=True)
def test_an_event_time_column_has_to_be_a_timestamp(engine: Engine) -> None:
    """Spark finds out when the query runs, and does not name the column."""
    with pytest.raises(Exception, match=r"watermark_ms.*timestamp|timestamp.*watermark_ms"):
        emit(engine, [(25, "26")], event_time_column="watermark_ms")


def versions(engine: Engine, *runs: Versioned) -> list[dict[str, int | None]]:
    """Returns what each run found in its state variables; each goes on from the one before."""
    found = []
    for processor in runs:
        engine.add_file([{"key": "a"}])
        df = engine.group(engine.read("key string"), "key").transformWithState(
            processor, ERROR_OUTPUT, "Update", "None"
        )
        (rows,) = engine.run(df)
        found.append({row["key"]: row["n"] for row in rows})
    return found


def test_a_variable_is_kept_until_a_version_of_the_processor_deletes_it(engine: Engine) -> None:
    found = versions(
        engine,
        Versioned("kept", "dropped", "paused", deleted=("never was",)),
        Versioned("kept", deleted=("dropped",)),
        Versioned("kept", "dropped", "paused"),
    )
    assert found == [
        {"kept": None, "dropped": None, "paused": None},
        {"kept": 1},
        {"kept": 2, "dropped": None, "paused": 1},
    ]


def test_pandas_frames_are_taken_by_column_name(engine: Engine) -> None:
    rows = [("a", None, '[["list", "appendValue", [1]], ["list", "get"]]')] * 3
    df = engine.session.createDataFrame(rows, "key string, at_ms long, calls string")
    reordered = "note string, result string, key string"
    found = (
        engine.group(df, "key")
        .transformWithStateInPandas(InterpreterInPandas(), reordered, "Append", "None")
        .collect()
    )
    assert [row["result"] for row in found] == [
        "",
        "[(1,)]",
        "",
        "[(1,), (1,)]",
        "",
        "[(1,), (1,), (1,)]",
    ]
    assert {row["key"] for row in found} == {"a"}
    assert found[0].__fields__ == ["note", "result", "key"]
    assert "call string" in OUTPUT
