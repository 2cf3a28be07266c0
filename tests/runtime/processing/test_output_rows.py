"""Values that processors give back, as Arrow: what is taken, and what is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
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
    UserDefinedType,
    VariantType,
    VariantVal,
)

from cairn.errors import BadInputError
from cairn.runtime.processing.output_rows import rows_to_batch
from cairn.runtime.processing.rows import rows_of

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
            "t": local.replace(tzinfo=datetime.UTC),
            "d": Decimal("1.50"),
        }
    ]


POINT = StructType([StructField("x", LongType()), StructField("y", LongType())])
NAIVE = datetime.datetime(2024, 7, 1, 12)
NEW_YORK = ZoneInfo("America/New_York")


def one(data_type: DataType, value: Any) -> Any:
    """Returns what Arrow has of one value."""
    batch = rows_to_batch([(value,)], StructType([StructField("result", data_type)]))
    return batch.column(0).to_pylist()[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Row(y=1, x=2), {"x": 2, "y": 1}),
        (Row(x=2), {"x": 2, "y": None}),
        ({"y": 1}, {"x": None, "y": 1}),
        ((1, 2), {"x": 1, "y": 2}),
        (None, None),
    ],
)
def test_a_nested_row_is_taken_by_name_wherever_it_is(value: Any, expected: Any) -> None:
    outer = StructType([StructField("p", POINT)])
    assert one(POINT, value) == expected
    assert one(outer, Row(p=value)) == {"p": expected}
    assert one(ArrayType(POINT), [value, None]) == [expected, None]
    assert one(MapType(StringType(), POINT), {"k": value}) == [("k", expected)]
    if value is not None:
        assert one(MapType(POINT, StringType()), [(value, "v")]) == [(expected, "v")]


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (ArrayType(StringType()), ("x", None), ["x", None]),
        (ArrayType(StringType()), np.array(["x"], dtype=object), ["x"]),
        (ArrayType(LongType()), {1}, [1]),
        (ArrayType(LongType()), np.array([1, 2], dtype=np.int8), [1, 2]),
        (ArrayType(DoubleType()), np.array([0.5], dtype=np.float32), [0.5]),
        (ArrayType(ArrayType(LongType())), np.array([[1], [2]]), [[1], [2]]),
        (
            ArrayType(TimestampNTZType()),
            np.array(["2024-07-01T12", "NaT"], dtype="datetime64[ns]"),
            [NAIVE, None],
        ),
        (MapType(StringType(), LongType()), [("a", 1), ("b", None)], [("a", 1), ("b", None)]),
        (TimestampType(), NAIVE, NAIVE.replace(tzinfo=datetime.UTC)),
        (TimestampType(), pd.Timestamp(NAIVE), NAIVE.replace(tzinfo=datetime.UTC)),
        (
            TimestampType(),
            datetime.datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=NEW_YORK),
            datetime.datetime(2024, 11, 3, 6, 30, tzinfo=datetime.UTC),
        ),
        (DecimalType(10, 2), 5, Decimal("5.00")),
        (DecimalType(10, 2), Decimal("1.500"), Decimal("1.50")),
        (LongType(), np.int8(3), 3),
        (DoubleType(), 1, 1.0),
    ],
)
def test_what_loses_nothing_is_taken(data_type: DataType, value: Any, expected: Any) -> None:
    assert one(data_type, value) == expected


@pytest.mark.parametrize(
    ("data_type", "value", "found"),
    [
        (LongType(), "1", "str '1'"),
        (LongType(), 1.5, "float 1.5"),
        (LongType(), True, "bool True"),
        (LongType(), 2**63, "int 9223372036854775808"),
        (IntegerType(), 2**31, "int 2147483648"),
        (BooleanType(), "true", "str 'true'"),
        (DoubleType(), "1", "str '1'"),
        (StringType(), 1, "int 1"),
        (DateType(), "2024-01-01", "str '2024-01-01'"),
        (DateType(), pd.NaT, "NaTType NaT"),
        (TimestampType(), "2024-01-01", "str '2024-01-01'"),
        (TimestampType(), 5, "int 5"),
        (TimestampType(), pd.NaT, "NaTType NaT"),
        (TimestampNTZType(), NAIVE.replace(tzinfo=NEW_YORK), "datetime .*it has a time zone"),
        (DecimalType(4, 1), Decimal("12345.6"), r"Decimal Decimal\('12345.6'\)"),
        (DecimalType(10, 2), Decimal("1.555"), r"Decimal Decimal\('1.555'\)"),
        (DecimalType(10, 2), Decimal("NaN"), r"Decimal Decimal\('NaN'\)"),
        (DecimalType(10, 2), 5.0, "float 5.0"),
        (ArrayType(LongType()), "a", "str 'a'"),
        (ArrayType(StringType()), "ab", "str 'ab'"),
        (ArrayType(LongType()), np.array(5), r"ndarray array\(5\)"),
        (ArrayType(LongType()), Row(x=1), r"Row Row\(x=1\)"),
        (MapType(StringType(), LongType()), [1], "int 1"),
        (MapType(StringType(), LongType()), [("a", 1, 2)], "tuple"),
        (POINT, [1, 2], r"list \[1, 2\]"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_column_type_and_value(
    data_type: DataType, value: Any, found: str
) -> None:
    nested = StructType([StructField("p", ArrayType(data_type))])
    for schema, given_value, path in (
        (data_type, value, "result"),
        (nested, Row(p=[value]), "result.p.element"),
    ):
        with pytest.raises(
            BadInputError, match=rf"^output column {path}: .* fit .*; found {found}"
        ):
            one(schema, given_value)


@pytest.mark.parametrize("value", [Row(x=2, z=3), {"z": 3}])
def test_a_nested_field_that_the_schema_lacks_is_refused(value: Any) -> None:
    with pytest.raises(BadInputError, match=r"column result\.element: a row has the fields z"):
        one(ArrayType(POINT), [value])


@pytest.mark.parametrize(
    ("data_type", "value", "path"),
    [
        (ArrayType(LongType(), containsNull=False), [None], "result.element"),
        (MapType(StringType(), LongType(), valueContainsNull=False), {"a": None}, "result.value"),
        (MapType(StringType(), LongType()), [(None, 1)], "result.key"),
        (StructType([StructField("x", LongType(), nullable=False)]), Row(x=None), "result.x"),
    ],
)
def test_a_nested_null_is_refused_only_where_a_value_has_to_be(
    data_type: DataType, value: Any, path: str
) -> None:
    with pytest.raises(BadInputError, match=f"output column {path}: found null"):
        one(data_type, value)
    assert one(data_type, None) is None
    assert one(ArrayType(data_type), [None, None]) == [None, None]


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


BYTES = st.binary(max_size=3)
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
SCALARS: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (StringType(), st.text(max_size=3)),
    (BinaryType(), BYTES),
    (BooleanType(), st.booleans()),
    (DoubleType(), st.floats(allow_nan=False)),
    (DateType(), st.dates()),
    (DecimalType(10, 2), st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n) / 100)),
    (TimestampNTZType(), MOMENTS),
    (TimestampType(), st.builds(datetime.datetime.astimezone, MOMENTS, st.just(NEW_YORK))),
]
Typed = tuple[DataType, st.SearchStrategy[Any]]


def arrays(of: Typed) -> Typed:
    return ArrayType(of[0]), st.lists(st.none() | of[1], max_size=3)


def maps(of: Typed) -> Typed:
    return MapType(BinaryType(), of[0]), st.dictionaries(BYTES, st.none() | of[1], max_size=3)


def structs(of: list[Typed]) -> Typed:
    names = [f"f{place}" for place in range(len(of))]
    schema = StructType([StructField(n, kind) for n, (kind, _) in zip(names, of, strict=True)])
    return schema, st.builds(Row(*names), *(st.none() | values for _, values in of))


TYPED: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(arrays), inner.map(maps), st.lists(inner, min_size=1, max_size=3).map(structs)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(["UTC", "America/New_York", "+05:30"]), st.integers(0, 2))
def test_what_is_read_as_rows_and_given_back_is_unchanged(
    data: st.DataObject, zone: str, skipped: int
) -> None:
    data_type, values = data.draw(TYPED)
    schema = StructType([StructField("v", data_type)])
    rows = data.draw(st.lists(st.tuples(st.none() | values), max_size=6))
    batch = rows_to_batch(rows, schema)
    table = pa.Table.from_batches([batch])
    arrow = in_zone(table.schema.field("v").type, zone)
    table = table.set_column(0, "v", table.column("v").cast(arrow)).slice(skipped)
    read = [*rows_of(table, schema)]
    assert rows_to_batch(read, schema).equals(batch.slice(skipped))
    if "timestamp" not in data_type.simpleString():  # where clocks are set back, none is equal
        assert [tuple(row) for row in read] == rows[skipped:]


def in_zone(arrow: pa.DataType, zone: str) -> pa.DataType:
    """Returns the type with its timestamps in a session's time zone."""
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_field, arrow.item_field.with_type(in_zone(arrow.item_type, zone)))
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(in_zone(arrow.value_type, zone)))
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(in_zone(field.type, zone)) for field in arrow])
    return pa.timestamp("us", zone) if pa.types.is_timestamp(arrow) and arrow.tz else arrow


class Pair:
    """A class that a user's own type holds."""

    def __init__(self, x: float, y: float) -> None:
        self.both = (x, y)


class PairType(UserDefinedType):
    """A user's own type."""

    @classmethod
    def sqlType(cls) -> DataType:
        return ArrayType(DoubleType(), containsNull=False)

    def serialize(self, obj: Pair) -> list[float]:
        return [*obj.both]

    def deserialize(self, datum: list[float]) -> Pair:
        return Pair(*datum)


def test_objects_are_read_and_given_back() -> None:
    schema = StructType(
        [
            StructField("pair", PairType()),
            StructField("pairs", ArrayType(PairType())),
            StructField("variant", VariantType()),
        ]
    )
    variant = VariantVal.parseJson('{"a": 1}')
    batch = rows_to_batch([(Pair(1, 2), [Pair(3, 4), None], variant), (None,) * 3], schema)
    first, second = rows_of(pa.Table.from_batches([batch]), schema)
    assert (first.pair.both, first.pairs[0].both, first.pairs[1]) == ((1, 2), (3, 4), None)
    assert first.variant.toPython() == {"a": 1}
    assert tuple(second) == (None, None, None)
    with pytest.raises(BadInputError, match="column variant: a value does not fit variant"):
        rows_to_batch([(None, None, 5)], schema)
