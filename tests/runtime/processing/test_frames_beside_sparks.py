"""Frames are those that Spark's own code makes of the same rows, to the type of each element."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.runtime.processing.arrow_types import arrow_schema
from cairn.runtime.processing.frames import frame_of
from cairn.runtime.processing.operator_spec import FrameSettings

BIG = 2**60 + 1
"""No float has this value."""
DAY, WALL = datetime.date(2024, 2, 29), datetime.datetime(2024, 3, 31, 2, 30)
MOMENT = datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=datetime.UTC)
PRICE = Decimal("1.50")
FLAT: dict[str, tuple[DataType, list[Any]]] = {
    "byte": (ByteType(), [100, 27]),
    "short": (ShortType(), [30_000, -1]),
    "int": (IntegerType(), [2**31 - 1, 0]),
    "long": (LongType(), [BIG, 3]),
    "float": (FloatType(), [0.1, 2.5]),
    "double": (DoubleType(), [0.1, float("nan")]),
    "flag": (BooleanType(), [True, False]),
    "text": (StringType(), ["ä", ""]),
    "data": (BinaryType(), [b"x", b""]),
    "day": (DateType(), [DAY, DAY]),
    "moment": (TimestampType(), [MOMENT, MOMENT]),
    "wall": (TimestampNTZType(), [WALL, WALL]),
    "price": (DecimalType(10, 2), [PRICE, PRICE]),
}
_STRUCT = StructType(
    [
        StructField("a", IntegerType()),
        StructField("at", TimestampType()),
        StructField("all", ArrayType(LongType())),
    ]
)
NESTED: dict[str, tuple[DataType, list[Any]]] = {
    "flags": (ArrayType(BooleanType()), [[True], [None, True], []]),
    "ints": (ArrayType(IntegerType()), [[1, 2], [1, None], []]),
    "longs": (ArrayType(LongType()), [[BIG], [BIG, None], []]),
    "floats": (ArrayType(FloatType()), [[0.1], [0.1, None], []]),
    "texts": (ArrayType(StringType()), [["ä"], ["ä", None], []]),
    "datas": (ArrayType(BinaryType()), [[b"x"], [None], []]),
    "days": (ArrayType(DateType()), [[DAY], [None], []]),
    "moments": (ArrayType(TimestampType()), [[MOMENT], [MOMENT, None], []]),
    "walls": (ArrayType(TimestampNTZType()), [[WALL], [WALL, None], []]),
    "lengths": (ArrayType(DayTimeIntervalType()), [[datetime.timedelta(seconds=1)], [None], []]),
    "prices": (ArrayType(DecimalType(10, 2)), [[PRICE], [None], []]),
    "grid": (ArrayType(ArrayType(IntegerType())), [[[1], None], [[1, None], []], []]),
    "map": (MapType(StringType(), IntegerType()), [[("b", 1), ("a", None)], [], [("c", 2)]]),
    "times": (
        MapType(TimestampType(), TimestampType()),
        [[(MOMENT, MOMENT)], [(MOMENT, None)], []],
    ),
    "lists": (
        MapType(StringType(), ArrayType(IntegerType())),
        [[("a", [1, None])], [("a", None)], []],
    ),
    "struct": (
        _STRUCT,
        [
            {"a": 1, "at": MOMENT, "all": [1, None]},
            {"a": None, "at": None, "all": None},
            {"a": 2, "at": MOMENT, "all": []},
        ],
    ),
    "structs": (ArrayType(_STRUCT), [[{"a": 1, "at": MOMENT, "all": [1]}, None], [None], []]),
}


def both(columns: dict[str, tuple[DataType, list[Any]]], zone: str) -> list[pd.DataFrame]:
    """Returns the frame of Spark's code, and Cairn's."""
    schema = StructType([StructField(name, kind) for name, (kind, _) in columns.items()])
    rows = [values for _, values in columns.values()]
    # Moments come in the session's zone to Spark's workers.
    [batch] = _table(rows, to_arrow_schema(schema, timezone=zone)).to_batches()
    series = ArrowBatchTransformer.to_pandas(batch, timezone=zone)
    by_spark = pd.DataFrame([*pd.concat(series, axis=1).itertuples(index=False)])
    table = _table(rows, arrow_schema(schema))
    return [by_spark, frame_of(table, schema, FrameSettings(timezone=zone))]


def _table(rows: list[list[Any]], schema: pa.Schema) -> pa.Table:
    arrays = [pa.array(values, field.type) for values, field in zip(rows, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@pytest.mark.parametrize("nulls", [0, 1, 2])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_the_columns_of_a_frame_have_the_types_that_spark_gives_them(zone: str, nulls: int) -> None:
    """Numbers are Python's, so that a sum of two bytes is not one."""
    by_spark, ours = both(
        {name: (kind, [*values[nulls:], *[None] * nulls]) for name, (kind, values) in FLAT.items()},
        zone,
    )
    assert ours.dtypes.astype(str).to_dict() == by_spark.dtypes.astype(str).to_dict()
    pd.testing.assert_frame_equal(ours, by_spark)
    if not nulls:
        assert (ours["byte"] + ours["byte"]).tolist() == [200, 54]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_nested_values_of_a_frame_are_those_that_spark_gives(zone: str) -> None:
    with_null = {name: (kind, [*values, None]) for name, (kind, values) in NESTED.items()}
    by_spark, ours = both(with_null, zone)
    for name in NESTED:
        assert [*map(shown, ours[name])] == [*map(shown, by_spark[name])], name


def shown(value: Any) -> str:
    """Returns text that is equal for equal values of equal types."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {[*map(shown, value)]}"
    if isinstance(value, dict):
        return str({shown(key): shown(item) for key, item in value.items()})
    return f"{type(value).__name__} {value!r}"
