from __future__ import annotations

import datetime
import math
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.errors import BadInputError
from cairn.runtime.processing import rows as rows_module
from cairn.runtime.processing.grouping import distinct_keys, rows_of_key
from cairn.runtime.processing.operator_spec import KEY_HASH_COLUMN, UNLIMITED, FrameSettings
from cairn.runtime.processing.processor_io import PandasIO, RowIO, RowsOfKey
from cairn.runtime.processing.task_input import KeyedRows

TWICE_FIRST = datetime.datetime(2024, 11, 3, 5, 30, tzinfo=datetime.UTC)
"""01:30 in New York, where it is 01:30 once more an hour later."""


def make(
    columns: dict[str, tuple[DataType, list[Any]]], groups: list[int] | None = None
) -> tuple[pa.Table, StructType]:
    size = len(next(iter(columns.values()))[1])
    arrays = {
        name: pa.array(values, to_arrow_type(data_type, timezone="UTC"))
        for name, (data_type, values) in columns.items()
    }
    arrays[KEY_HASH_COLUMN] = pa.array(groups or [0] * size, pa.int32())
    schema = StructType([StructField(name, column[0]) for name, column in columns.items()])
    return pa.table(arrays), schema


def grouped(table: pa.Table, keys: list[str], schema: StructType) -> list[Any]:
    return [(number, key, list(rows)) for number, key, rows in by_key(table, keys, schema)]


def by_key(table: pa.Table, keys: list[str], schema: StructType) -> Iterator[RowsOfKey]:
    columns = [(name, schema[name].dataType) for name in keys]
    form = RowIO(schema, lambda batch: None)
    return form.by_key(KeyedRows([table], is_one_key=False), columns, schema)


def test_rows_come_by_key_in_order_of_arrival_with_their_keys_hash() -> None:
    table, schema = make(
        {"k": (StringType(), ["b", "a", None, "b", "a"]), "v": (LongType(), [1, 2, 3, 4, 5])},
        [7, 3, 9, 7, 3],
    )
    assert grouped(table, ["k"], schema) == [
        (7, ("b",), [Row(k="b", v=1), Row(k="b", v=4)]),
        (3, ("a",), [Row(k="a", v=2), Row(k="a", v=5)]),
        (9, (None,), [Row(k=None, v=3)]),
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.sampled_from("abc"),
            st.none() | st.integers(0, 2),
            st.none() | st.sampled_from([0.0, 1.5, math.inf]),
            st.none() | st.tuples(st.none() | st.integers(0, 1)),
            st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_composite_keys_group_as_in_a_dict(keys: list[tuple[Any, ...]]) -> None:
    inner = StructType([StructField("x", LongType())])
    types = [StringType(), LongType(), DoubleType(), inner, ArrayType(LongType())]
    names = ["s", "l", "d", "t", "a"]
    columns = {
        name: (data_type, [key[i] for key in keys])
        for i, (name, data_type) in enumerate(zip(names, types, strict=True))
    }
    columns["t"] = (inner, [key[3] and {"x": key[3][0]} for key in keys])
    columns["row"] = (LongType(), list(range(len(keys))))
    table, schema = make(columns)
    expected: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        expected.setdefault(repr(key), []).append(row)
    found = {
        repr((*key[:3], key[3] and tuple(key[3]), key[4])): [row.row for row in rows]
        for _, key, rows in grouped(table, names, schema)
    }
    assert found == expected


def test_nans_are_one_key_and_minus_zero_is_zero() -> None:
    other_nan = float(np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0])
    values = [0.0, math.nan, -0.0, other_nan, None]
    inner = StructType([StructField("x", DoubleType())])
    table, schema = make(
        {
            "d": (DoubleType(), values),
            "s": (inner, [{"x": value} for value in values]),
            "a": (ArrayType(DoubleType()), [[value] for value in values]),
        }
    )
    for name in ("d", "s", "a"):
        found = grouped(table, [name], schema)
        assert [len(rows) for _, _, rows in found] == [2, 2, 1]
        assert repr([key for _, (key,), _ in found]).replace("Row(x=", "[").replace(")", "]") in (
            "[0.0, nan, None]",
            "[[0.0], [nan], [None]]",
        )
    ones = [rows[1].d for _, _, rows in grouped(table, ["d"], schema)[:1]]
    assert math.copysign(1, ones[0]) == -1


def test_keys_with_more_combinations_than_an_int64_holds_stay_apart() -> None:
    size, columns = 400, 9
    table, schema = make(
        {f"k{i}": (LongType(), [row * (i + 1) for row in range(size)] * 2) for i in range(columns)}
    )
    found = grouped(table, [f"k{i}" for i in range(columns)], schema)
    assert sorted(key[0] for _, key, _ in found) == list(range(size))
    assert all(len(rows) == 2 for _, _, rows in found)


def test_unread_rows_of_a_key_do_not_leak_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ROWS_AT_ONCE", 2)
    table, schema = make({"k": (LongType(), [1, 2, 1, 2, 1, 3])})
    firsts = [next(rows).k for _, _, rows in by_key(table, ["k"], schema)]
    assert firsts == [1, 2, 3]
    assert [len(rows) for _, _, rows in grouped(table, ["k"], schema)] == [3, 2, 1]


def test_table_without_rows_has_no_keys() -> None:
    table, schema = make({"k": (LongType(), [])})
    assert grouped(table, ["k"], schema) == []


def test_grouping_by_a_map_is_refused() -> None:
    table, schema = make({"k": (MapType(StringType(), LongType()), [[("a", 1)]])})
    with pytest.raises(BadInputError, match="a key column holds maps"):
        grouped(table, ["k"], schema)


def test_rows_hold_values_as_pyspark_gives_them() -> None:
    inner = StructType([StructField("x", LongType()), StructField("t", TimestampNTZType())])
    moment = datetime.datetime(2024, 1, 1, 10, 0, tzinfo=datetime.UTC)
    naive = datetime.datetime(2024, 1, 1, 10, 0)
    table, schema = make(
        {
            "k": (LongType(), [1]),
            "ts": (TimestampType(), [moment]),
            "s": (inner, [{"x": 1, "t": naive}]),
            "m": (MapType(StringType(), LongType()), [[("a", 1)]]),
            "b": (BinaryType(), [b"\x01"]),
            "d": (DecimalType(10, 2), [Decimal("1.50")]),
            "day": (DateType(), [datetime.date(2024, 1, 1)]),
        }
    )
    ((_, _, (row,)),) = grouped(table, ["k"], schema)
    assert row == Row(
        k=1,
        ts=moment,
        s=Row(x=1, t=naive),
        m={"a": 1},
        b=b"\x01",
        d=Decimal("1.50"),
        day=datetime.date(2024, 1, 1),
    )
    assert row.s.t == naive
    assert row.asDict(recursive=True)["s"] == {"x": 1, "t": naive}
    assert pickle.loads(pickle.dumps(row)).ts == row.ts  # noqa: S301


@pytest.mark.parametrize("zone", ["America/New_York", "Z", "GMT+5", "+05:30"])
def test_timestamps_of_rows_and_keys_are_in_the_sessions_time_zone(zone: str) -> None:
    moments = [TWICE_FIRST, TWICE_FIRST + datetime.timedelta(hours=1), None]
    table, schema = make(
        {"t": (TimestampType(), moments), "a": (ArrayType(TimestampType()), [[m] for m in moments])}
    )
    in_zone = pa.timestamp("us", zone)
    for name, arrow in (("t", in_zone), ("a", pa.list_(in_zone))):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(arrow))
    for name in ("t", "a"):
        found = grouped(table, [name], schema)
        keys = [key if name == "t" else key[0] for _, key, _ in found]
        assert [k and k.astimezone(datetime.UTC) for (k,) in keys] == moments
        assert [row.a for _, _, (row,) in found] == [[row.t] for _, _, (row,) in found]
    expected = {"America/New_York": -4, "Z": 0, "GMT+5": 5, "+05:30": 5.5}[zone]
    assert keys[0][0].utcoffset() == datetime.timedelta(hours=expected)


def test_two_moments_of_one_local_time_are_two_keys() -> None:
    moments = [TWICE_FIRST, TWICE_FIRST + datetime.timedelta(hours=1)]
    table, _ = make({"t": (TimestampType(), moments)})
    table = table.set_column(0, "t", table["t"].cast(pa.timestamp("us", "America/New_York")))
    batch = table.combine_chunks().to_batches()[0]
    keys = distinct_keys(batch, [("t", TimestampType())])
    assert [rows_of_key(batch, key, [("t", TimestampType())]).num_rows for key in keys] == [1, 1]


def test_a_timestamp_key_in_the_pandas_form_is_as_in_the_frame() -> None:
    moments = [TWICE_FIRST, None]
    table, schema = make(
        {
            "t": (TimestampType(), moments),
            "w": (TimestampNTZType(), [m and m.replace(tzinfo=None) for m in moments]),
            "n": (LongType(), [1, None]),
        }
    )
    table = table.set_column(0, "t", table["t"].cast(pa.timestamp("us", "America/New_York")))
    form = PandasIO(schema, lambda batch: None, FrameSettings(timezone="America/New_York"))
    columns = [(name, schema[name].dataType) for name in "twn"]
    view = form.key_view(columns)
    assert view is not None
    part = KeyedRows([table], is_one_key=False)
    (key, row), (null_key, _) = [
        (view(key), next(frames).iloc[0]) for _, key, frames in form.by_key(part, columns, schema)
    ]
    assert key == (pd.Timestamp("2024-11-03 01:30"), pd.Timestamp("2024-11-03 05:30"), 1)
    assert key == tuple(row)
    assert null_key == (None, None, None)
    assert form.key_view(columns[2:]) is None


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "sizes"), [(2, UNLIMITED, [2, 1]), (9, 1, [1, 1, 1])]
)
@pytest.mark.parametrize("is_one_key", [False, True])
def test_frames_end_with_the_row_that_reaches_a_limit(
    max_rows: int, max_bytes: int, sizes: list[int], *, is_one_key: bool
) -> None:
    table, schema = make({"k": (LongType(), [1, 1, 1])})
    settings = FrameSettings(max_rows=max_rows, max_bytes=max_bytes)
    form = PandasIO(schema, lambda batch: None, settings)
    keys = [("k", schema["k"].dataType)]
    ((_, _, frames),) = form.by_key(KeyedRows([table], is_one_key=is_one_key), keys, schema)
    assert [*map(len, frames)] == sizes
