"""Values that processors give back, settings of pandas, and moments that pass through."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tests.conformance.engines import Engine
from tests.conformance.givers import Framed, Giving, Keyed, Passing

pytestmark = pytest.mark.spark

POINT = "struct<x: int, y: int>"
NAIVE = datetime.datetime(2024, 1, 2, 3)
MOMENT_US = 1_704_164_400_000_000
"""03:00 UTC on 2 January 2024."""
TOKYO = ZoneInfo("Asia/Tokyo")
TOKYO_US = MOMENT_US - 9 * 3600 * 1_000_000
TAKEN: list[tuple[str, Any, str, Any]] = [
    (f"p {POINT}", Row(y=1, x=2), "p", Row(x=2, y=1)),
    (f"missing {POINT}", Row(x=2), "missing", Row(x=2, y=None)),
    (f"by_dict {POINT}", {"y": 1}, "by_dict", Row(x=None, y=1)),
    (f"ps array<{POINT}>", [Row(y=1, x=2), None], "ps", [Row(x=2, y=1), None]),
    (f"mp map<string, {POINT}>", {"k": Row(y=1, x=2)}, "mp", {"k": Row(x=2, y=1)}),
    (f"deep struct<p: {POINT}>", Row(p=Row(y=1, x=2)), "deep", Row(p=Row(x=2, y=1))),
    ("words array<string>", ("x", "y"), "words", ["x", "y"]),
    ("objects array<string>", np.array(["x"], dtype=object), "objects", ["x"]),
    ("numbers array<int>", np.array([1, 2]), "numbers", [1, 2]),
    ("members array<int>", {1}, "members", [1]),
    ("pairs map<string, int>", [("x", 1)], "pairs", {"x": 1}),
    ("naive timestamp", NAIVE, "unix_micros(naive)", MOMENT_US),
    ("aware timestamp", NAIVE.replace(tzinfo=TOKYO), "unix_micros(aware)", TOKYO_US),
    ("stamp timestamp", pd.Timestamp(NAIVE), "unix_micros(stamp)", MOMENT_US),
    ("moments array<timestamp>", [NAIVE], "unix_micros(moments[0])", MOMENT_US),
    ("wall timestamp_ntz", NAIVE, "cast(wall as string)", "2024-01-02 03:00:00"),
    ("whole decimal(10,2)", 5, "whole", Decimal("5.00")),
    ("price decimal(10,2)", Decimal("1.500"), "price", Decimal("1.50")),
]  # fmt: skip
"""An output column, what is given for it, an expression of it, and its value."""


def one_row(engine: Engine) -> DataFrame:
    return engine.session.createDataFrame([("a", 1)], "k string, n int")


@contextmanager
def settings(session: SparkSession, **values: str) -> Iterator[None]:
    before = {name: session.conf.get(name) for name in values}
    for name, given in values.items():
        session.conf.set(name, given)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, str(value))


def test_the_same_values_are_taken_and_mean_the_same(engine: Engine) -> None:
    names = [column.split()[0] for column, _, _, _ in TAKEN]
    given = Row(*names)(*[value for _, value, _, _ in TAKEN])
    schema = ", ".join(column for column, _, _, _ in TAKEN)
    grouped = engine.group(one_row(engine), "k")
    output = grouped.transformWithState(Giving(given), schema, "Update", "None")
    shown = [F.expr(show).alias(names[i]) for i, (_, _, show, _) in enumerate(TAKEN)]
    (found,) = output.select(*shown).collect()
    expected = [value for _, _, _, value in TAKEN]
    assert dict(zip(names, found, strict=True)) == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("column", "value", "by_spark", "by_cairn"),
    [
        ("d decimal(10,2)", Decimal("1.555"), "would cause data loss", "column d: .*1.555"),
        ("a array<string>", [5], "Expected bytes", "column a.element: .* string; found int 5"),
    ],
)
def test_the_same_values_are_refused(
    engine: Engine, column: str, value: Any, by_spark: str, by_cairn: str
) -> None:
    grouped = engine.group(one_row(engine), "k")
    given = Row(column.split(maxsplit=1)[0])(value)
    with pytest.raises(Exception, match=by_cairn if engine.is_cairn else by_spark):
        grouped.transformWithState(Giving(given), column, "Update", "None").collect()


@pytest.mark.parametrize("in_pandas", [False, True], ids=["rows", "pandas"])
@pytest.mark.parametrize("zone", ["America/New_York", "+05:30"])
def test_a_moment_passes_through_unchanged(engine: Engine, zone: str, *, in_pandas: bool) -> None:
    seconds = [0, 1, 1_704_164_400, -1_000_000_000, 1_710_053_999, 1_710_054_000]
    if not in_pandas:  # pandas has no time zone to tell which of two hours this is
        seconds += [1_730_612_000, 1_730_615_600]
    with settings(engine.session, **{"spark.sql.session.timeZone": zone}):
        df = engine.session.createDataFrame([*enumerate(seconds)], "id int, s long").selectExpr(
            "id", "timestamp_seconds(s) + interval 7 microseconds as at", "array(at, null) as ats"
        )
        grouped = engine.group(df, "at")
        transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
        output = transform(
            Passing(), "id int, at timestamp, ats array<timestamp>", "Update", "None"
        )
        found = output.selectExpr(
            "id", "unix_micros(at)", "unix_micros(ats[0])", "ats[1]"
        ).collect()
    micros = [s * 1_000_000 + 7 for s in seconds]
    assert sorted(map(tuple, found)) == [(i, us, us, None) for i, us in enumerate(micros)]


def test_text_is_a_user_key_of_one_column(engine: Engine) -> None:
    """Spark takes one character only."""
    grouped = engine.group(one_row(engine), "k")
    output = grouped.transformWithState(Keyed("0"), "kept string", "Update", "None")
    assert [*map(tuple, output.collect())] == [("[(('0',), (1,))]",)]


def test_the_settings_of_pandas_are_honoured(engine: Engine) -> None:
    execution = "spark.sql.execution"
    df = engine.session.range(5, numPartitions=1).selectExpr("'a' as k", "cast(id as int) as n")
    given = {
        f"{execution}.arrow.maxBytesPerBatch": "2",
        f"{execution}.pandas.convertToArrowArraySafely": "false",
        f"{execution}.pythonUDF.pandas.intToDecimalCoercionEnabled": "true",
        f"{execution}.pythonUDF.pandas.preferIntExtensionDtype": "true",
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false",
    }
    schema = "price decimal(10,2), whole int, frames int, kind string"
    with settings(engine.session, **given):
        grouped = engine.group(df, "k")
        output = grouped.transformWithStateInPandas(Framed(None), schema, "Update", "None")
        kind = "Int32" if engine.is_cairn else "int32"  # Spark infers types of a frame's rows again
        assert [*map(tuple, output.collect())] == [(Decimal("12345.00"), 1, 5, kind)]
