from __future__ import annotations

import datetime
import math
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
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
from cairn.runtime.processing.operator_spec import KEY_HASH_COLUMN
from cairn.runtime.processing.processor_io import RowIO, RowsOfKey
from cairn.runtime.processing.rows import rows_to_batch
from cairn.runtime.processing.task_input import KeyedRows


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
        ts=moment.astimezone().replace(tzinfo=None),
        s=Row(x=1, t=naive),
        m={"a": 1},
        b=b"\x01",
        d=Decimal("1.50"),
        day=datetime.date(2024, 1, 1),
    )
    assert row.s.t == naive
    assert row.asDict(recursive=True)["s"] == {"x": 1, "t": naive}
    assert pickle.loads(pickle.dumps(row)).ts == row.ts  # noqa: S301


OUTPUT = StructType([StructField("k", StringType()), StructField("n", LongType())])


def test_output_rows_are_taken_by_name_and_tuples_by_position() -> None:
    nameless: Any = Row(*["d", 4])
    rows = [Row(n=1, k="a"), Row("k", "n")("b", 2), ("c", 3), nameless, Row(k="e")]
    assert rows_to_batch(rows, OUTPUT).to_pydict() == {
        "k": ["a", "b", "c", "d", "e"],
        "n": [1, 2, 3, 4, None],
    }


def test_no_output_rows_make_an_empty_batch_of_the_schema() -> None:
    batch = rows_to_batch([], OUTPUT)
    assert (batch.num_rows, batch.schema.names) == (0, ["k", "n"])


def test_nested_and_temporal_output_keeps_its_value() -> None:
    inner = StructType([StructField("x", LongType())])
    schema = StructType(
        [
            StructField("s", inner),
            StructField("a", ArrayType(inner)),
            StructField("m", MapType(StringType(), LongType())),
            StructField("t", TimestampType()),
            StructField("d", DecimalType(10, 2)),
        ]
    )
    local = datetime.datetime(2024, 7, 1, 12)
    batch = rows_to_batch([(Row(x=1), [(2,)], {"a": 3}, local, Decimal("1.5"))], schema)
    assert batch.to_pylist() == [
        {
            "s": {"x": 1},
            "a": [{"x": 2}],
            "m": [("a", 3)],
            "t": local.astimezone(datetime.UTC),
            "d": Decimal("1.50"),
        }
    ]


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (LongType(), "1"),
        (LongType(), 1.5),
        (LongType(), True),
        (LongType(), 2**63),
        (IntegerType(), 2**31),
        (BooleanType(), "true"),
        (DoubleType(), "1"),
        (StringType(), 1),
        (DateType(), "2024-01-01"),
        (TimestampType(), "2024-01-01"),
        (DecimalType(4, 1), Decimal("12345.6")),
        (StructType([StructField("x", LongType())]), (1, 2)),
        (ArrayType(LongType()), ["a"]),
        (MapType(StringType(), LongType()), [1]),
    ],
)
def test_output_that_does_not_fit_is_refused_by_column(data_type: DataType, value: Any) -> None:
    schema = StructType([StructField("result", data_type)])
    with pytest.raises(BadInputError, match=r"^output column result: .*found values of type"):
        rows_to_batch([(value,)], schema)


def test_null_in_an_output_column_that_is_not_nullable_is_refused() -> None:
    schema = StructType([StructField("result", LongType(), nullable=False)])
    with pytest.raises(BadInputError, match="output column result: found null"):
        rows_to_batch([(None,)], schema)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(k="a", m=1), "has the fields m, which the output schema lacks; it has k, n"),
        (("a",), "has 1 fields, the output schema 2: k, n"),
        ({"k": "a"}, "found dict"),
    ],
)
def test_output_row_of_another_shape_is_refused(row: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        rows_to_batch([row], OUTPUT)
