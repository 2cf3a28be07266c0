from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from cairn.errors import BadInputError
from cairn.runtime.driver.frame_settings import frame_settings
from cairn.runtime.processing.arrow_types import arrow_schema
from cairn.runtime.processing.frames import frame_of, frames_to_batch
from cairn.runtime.processing.operator_spec import UNLIMITED, FrameSettings

SCHEMA = StructType([StructField("k", StringType()), StructField("n", LongType())])
BIG = 2**60 + 1
"""No float has this value."""


def test_a_null_in_one_frame_leaves_whole_numbers_of_others_exact() -> None:
    frames = [
        pd.DataFrame({"k": ["a"], "n": [BIG]}),
        pd.DataFrame({"k": ["b"], "n": [float("nan")]}),
        pd.DataFrame({"n": [BIG + 2], "k": ["c"]}),
    ]
    batch = frames_to_batch(frames, SCHEMA, FrameSettings())
    assert batch.to_pydict() == {"k": ["a", "b", "c"], "n": [BIG, None, BIG + 2]}


def test_frames_without_rows_are_no_rows() -> None:
    frames = [pd.DataFrame(), pd.DataFrame({"k": []})]
    assert frames_to_batch(frames, SCHEMA, FrameSettings()).num_rows == 0


def test_a_frame_that_lacks_a_column_is_refused_with_its_name() -> None:
    with pytest.raises(BadInputError, match=r"lacks the columns n; it has k"):
        frames_to_batch([pd.DataFrame({"k": ["a"]})], SCHEMA, FrameSettings())


def test_no_columns_are_chosen_from_a_frame_that_has_just_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = [pd.DataFrame({"k": [key], "n": [1]}) for key in "ab"]

    def chosen(_: pd.DataFrame, names: object) -> None:
        pytest.fail(f"columns were chosen, which copies a frame: {names}")

    monkeypatch.setattr(pd.DataFrame, "__getitem__", chosen)
    assert frames_to_batch(frames, SCHEMA, FrameSettings()).num_rows == 2


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    frame = pd.DataFrame([["a", "b", 3]], columns=["k", "k", "n"])
    with pytest.raises(BadInputError, match="two columns of one name; it has k, k, n"):
        frames_to_batch([frame], SCHEMA, FrameSettings())


def test_by_position_the_names_may_be_the_same() -> None:
    twice = StructType([StructField("n", LongType()), StructField("n", LongType())])
    frame = pd.DataFrame([[1, 2]])
    batch = frames_to_batch([frame, frame], twice, FrameSettings(by_name=False))
    assert [column.to_pylist() for column in batch.columns] == [[1, 1], [2, 2]]


def test_local_times_of_one_frame_are_local_beside_moments_of_another() -> None:
    schema = StructType([StructField("t", TimestampType())])
    local = pd.DataFrame({"t": [pd.Timestamp("2024-07-01 08:00")]})
    settings = FrameSettings(timezone="America/New_York")
    moment = pd.Timestamp("2024-07-01 12:00", tz="UTC")
    batch = frames_to_batch([local, pd.DataFrame({"t": [moment]})], schema, settings)
    assert batch.column(0).to_pylist() == [moment, moment]


def test_floats_that_are_all_null_are_null_text() -> None:
    frame = pd.DataFrame({"k": [float("nan")], "n": [1]})
    assert frames_to_batch([frame], SCHEMA, FrameSettings()).to_pydict() == {"k": [None], "n": [1]}


def test_a_frame_that_is_taken_alone_is_taken_beside_others() -> None:
    schema = StructType([StructField("n", LongType()), StructField("d", DecimalType(10, 2))])
    counted = pd.DataFrame({"n": [True], "d": [Decimal("1.50")]})
    others = pd.DataFrame({"n": pd.array([BIG], dtype="Int64"), "d": [1.25]})
    batch = frames_to_batch([counted, others], schema, FrameSettings())
    assert batch.to_pydict() == {"n": [1, BIG], "d": [Decimal("1.50"), Decimal("1.25")]}


NAIVE = datetime.datetime(2024, 7, 1, 12, 0, 0, 5)
MOMENT = NAIVE.replace(tzinfo=datetime.UTC)
LOCAL = pd.Timestamp("2024-07-01 08:00:00.000005")
POINT = StructType([StructField("x", LongType()), StructField("t", TimestampType())])
COLUMNS: dict[str, tuple[DataType, list[Any], list[Any]]] = {
    "text": (StringType(), ["a", None], ["a", None]),
    "price": (DecimalType(10, 2), [Decimal("1.50"), None], [Decimal("1.50"), None]),
    "day": (DateType(), [datetime.date(1, 1, 1), None], [datetime.date(1, 1, 1), None]),
    "moment": (TimestampType(), [MOMENT, None], [LOCAL, pd.NaT]),
    "wall": (TimestampNTZType(), [NAIVE, None], [pd.Timestamp(NAIVE), pd.NaT]),
    "length": (
        DayTimeIntervalType(),
        [datetime.timedelta(microseconds=5), None],
        [pd.Timedelta(microseconds=5), pd.NaT],
    ),
    "numbers": (ArrayType(LongType()), [[1, None], None], [[1, None], None]),
    "moments": (ArrayType(TimestampType()), [[MOMENT, None], None], [[LOCAL, pd.NaT], None]),
    "point": (POINT, [{"x": BIG, "t": MOMENT}, None], [{"x": BIG, "t": LOCAL}, None]),
    "points": (ArrayType(POINT), [[{"x": 1, "t": None}], []], [[{"x": 1, "t": None}], []]),
    "words": (MapType(StringType(), LongType()), [[("a", 1)], None], [{"a": 1}, None]),
    "times": (MapType(StringType(), TimestampType()), [[("a", MOMENT)], []], [{"a": LOCAL}, {}]),
}
"""Of each column: its type, its values in Arrow, and in a frame in New York."""


def test_frames_have_values_as_sparks_and_give_them_back_unchanged() -> None:
    schema = StructType([StructField(name, kind) for name, (kind, _, _) in COLUMNS.items()])
    settings = FrameSettings(timezone="America/New_York")
    batch = pa.RecordBatch.from_pydict(
        {name: values for name, (_, values, _) in COLUMNS.items()}, arrow_schema(schema)
    )
    frame = frame_of(pa.Table.from_batches([batch]), schema, settings)
    for name, (_, _, expected) in COLUMNS.items():
        found = [list(v) if isinstance(v, np.ndarray) else v for v in frame[name]]
        assert repr(found) == repr(expected)
    assert frames_to_batch([frame], schema, settings).equals(batch)


@pytest.mark.parametrize(
    ("data_type", "value", "message"),
    [
        (LongType(), "x", "column v: a value does not fit bigint; found a column of type object"),
        (LongType(), 1.5, "column v: a value does not fit bigint; found a column of type float64"),
        (DecimalType(10, 2), Decimal("1.555"), "column v: .* would cause data loss"),
        (DecimalType(10, 2), 5, "column v: a value does not fit decimal"),
        (DecimalType(10, 2), Decimal("sNaN"), "column v: a value does not fit decimal"),
        (VariantType(), 1, "column v: a value does not fit variant"),
        (POINT, {"z": 1}, "column v: a row has the fields z"),
        (
            TimestampType(),
            pd.Timestamp("2024-03-10 02:30"),
            "column v: .*2024-03-10 02:30:00",
        ),
    ],
)
def test_a_frame_with_a_value_that_does_not_fit_is_refused_by_column(
    data_type: DataType, value: Any, message: str
) -> None:
    schema = StructType([StructField("v", data_type)])
    settings = FrameSettings(timezone="America/New_York")
    with pytest.raises(BadInputError, match=f"output {message}"):
        frames_to_batch([pd.DataFrame({"v": [value]})], schema, settings)


def test_settings_change_what_frames_are_taken_and_how_whole_numbers_are_read() -> None:
    price = StructType([StructField("v", DecimalType(10, 2)), StructField("n", LongType())])
    frame = pd.DataFrame({"n": [5], "other": [1.5]})
    settings = FrameSettings(is_safe=False, by_name=False, ints_to_decimals=True)
    batch = frames_to_batch([frame, frame], price, settings)
    assert batch.to_pydict() == {"v": [Decimal("5.00")] * 2, "n": [1, 1]}
    with pytest.raises(BadInputError, match="has 1 columns, the output schema 2: v, n"):
        frames_to_batch([frame[["n"]]], price, settings)
    table = pa.table({"k": ["a"], "n": pa.array([None], pa.int64())})
    read = frame_of(table, SCHEMA, FrameSettings(nullable_ints=True))
    assert (str(read["n"].dtype), read["n"][0]) == ("Int64", pd.NA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", 2),
        ("268435456b", 2**28),
        ("64mb", 2**26),
        ("64m", 2**26),
        ("0", UNLIMITED),
        ("-1", UNLIMITED),
        ("9223372036854775807b", UNLIMITED),
    ],
)
def test_limits_of_frames_are_read_as_spark_writes_them(text: str, expected: int) -> None:
    given = {
        "spark.sql.session.timeZone": "Z",
        "spark.sql.execution.arrow.maxBytesPerBatch": text,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "true",
    }
    assert frame_settings(given.get) == FrameSettings(max_bytes=expected, is_safe=False)


def test_a_limit_of_frames_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadInputError, match="maxRecordsPerBatch is 'many'"):
        frame_settings({"spark.sql.execution.arrow.maxRecordsPerBatch": "many"}.get)
