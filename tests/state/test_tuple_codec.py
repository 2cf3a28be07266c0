from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from cairn.errors import BadInputError, CorruptSegmentError
from cairn.state.codec import TupleCodec

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)).filter(
    # Where clocks go forward, some local times do not exist.
    lambda moment: moment.astimezone(datetime.UTC).astimezone().replace(tzinfo=None) == moment
)
SCALARS: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), text),
    (CharType(5), text),
    (VarcharType(5), text),
    (BinaryType(), st.binary(max_size=8)),
    (NullType(), st.none()),
    (DateType(), st.dates()),
    (TimestampType(), moments),
    (TimestampNTZType(), st.datetimes()),
    (TimeType(), st.times()),
    (DecimalType(10, 2), st.decimals("-99999999.99", "99999999.99", places=2)),
    (DecimalType(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (
        DayTimeIntervalType(),
        st.timedeltas(datetime.timedelta(days=-(10**8)), datetime.timedelta(days=10**8)),
    ),
]
KEYS = [pair for pair in SCALARS if not isinstance(pair[0], NullType)]


def nested(
    inner: st.SearchStrategy[tuple[DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[DataType, st.SearchStrategy[Any]]]:
    def array(pair: tuple[DataType, st.SearchStrategy[Any]]) -> Any:
        return ArrayType(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def struct(pairs: list[tuple[DataType, st.SearchStrategy[Any]]]) -> Any:
        fields = [StructField(f"f{i}", pair[0]) for i, pair in enumerate(pairs)]
        return StructType(fields), st.tuples(*(st.none() | pair[1] for pair in pairs))

    def mapping(key: Any, value: Any) -> Any:
        values = st.dictionaries(key[1], st.none() | value[1], max_size=3)
        return MapType(key[0], value[0]), values

    return (
        inner.map(array)
        | st.lists(inner, min_size=1, max_size=3).map(struct)
        | st.builds(mapping, st.sampled_from(KEYS), inner)
    )


@st.composite
def schema_and_value(draw: st.DrawFn) -> tuple[StructType, tuple[Any, ...]]:
    types = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4)
    pairs = draw(st.lists(types, min_size=1, max_size=4))
    fields = [StructField(f"f{i}", pair[0]) for i, pair in enumerate(pairs)]
    return StructType(fields), draw(st.tuples(*(st.none() | pair[1] for pair in pairs)))


def codec(ddl_fields: list[StructField] | DataType, **options: Any) -> TupleCodec:
    fields = ddl_fields if isinstance(ddl_fields, list) else [StructField("f", ddl_fields)]
    return TupleCodec(StructType(fields).jsonValue(), name="state variable x", **options)


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@settings(deadline=None)
@given(schema_and_value())
def test_what_is_decoded_equals_what_was_encoded(case: tuple[StructType, tuple[Any, ...]]) -> None:
    schema, value = case
    coder = TupleCodec(schema.jsonValue(), name="state variable x")
    data = coder.encode(value)
    assert coder.decode(data) == value
    assert coder.encode(coder.decode(data)) == data
    assert list(json.loads(json.dumps(coder.to_json(data)))) == list(schema.names)


def test_rows_lists_and_numpy_scalars_have_the_bytes_of_the_plain_tuple() -> None:
    coder = codec([StructField("n", LongType()), StructField("s", StringType())])
    expected = coder.encode((5, "a"))
    same: Any
    for same in (Row(n=5, s="a"), [5, "a"], (np.int64(5), np.str_("a")), (np.uint8(5), "a")):
        assert coder.encode(same) == expected
    assert codec(DoubleType()).encode((np.float64(1.5),)) == codec(DoubleType()).encode((1.5,))
    assert codec(BooleanType()).encode((np.bool_(True),)) == codec(BooleanType()).encode((True,))
    assert codec(ArrayType(LongType())).decode(
        codec(ArrayType(LongType())).encode((np.array([1, 2]),))
    ) == ([1, 2],)


def test_pandas_times_are_taken_as_python_ones(new_york: None) -> None:
    moment = datetime.datetime(2024, 7, 1, 12, 30, 0, 5)
    for data_type in (TimestampType(), TimestampNTZType()):
        coder = codec(data_type)
        assert coder.encode((pd.Timestamp(moment),)) == coder.encode((moment,))
    interval = codec(DayTimeIntervalType())
    assert interval.decode(interval.encode((pd.Timedelta(seconds=3),)))[0].seconds == 3


@pytest.mark.parametrize("data_type", [TimestampType(), TimestampNTZType(), DateType()])
def test_not_a_time_is_refused(data_type: DataType) -> None:
    with pytest.raises(BadInputError, match="field f"):
        codec(data_type).encode((pd.NaT,))


def test_equal_values_have_equal_bytes() -> None:
    maps = codec(MapType(StringType(), LongType()))
    assert maps.encode(({"a": 1, "b": 2},)) == maps.encode(({"b": 2, "a": 1},))
    decimals = codec(DecimalType(10, 2))
    assert decimals.encode((Decimal("1"),)) == decimals.encode((Decimal("1.00"),))
    assert decimals.encode((Decimal("-0"),)) == decimals.encode((Decimal("0.00"),))


def test_timestamps_are_kept_in_utc_and_come_back_local(new_york: None) -> None:
    coder = codec(TimestampType())
    local = datetime.datetime(2024, 7, 1, 8, 0)
    aware = datetime.datetime(2024, 7, 1, 12, 0, tzinfo=datetime.UTC)
    assert coder.encode((local,)) == coder.encode((aware,))
    assert coder.decode(coder.encode((aware,))) == (local,)
    assert coder.to_json(coder.encode((local,))) == {"f": "2024-07-01T12:00:00Z"}


def test_the_second_of_two_equal_local_hours_comes_back_as_such(new_york: None) -> None:
    coder = codec(TimestampType())
    first = datetime.datetime(2024, 11, 3, 1, 30)
    second = first.replace(fold=1)
    assert coder.encode((first,)) != coder.encode((second,))
    assert coder.decode(coder.encode((second,)))[0].fold == 1


def test_decimals_are_rounded_half_up_as_by_spark() -> None:
    coder = codec(DecimalType(5, 1))
    assert coder.decode(coder.encode((Decimal("1.25"),))) == (Decimal("1.3"),)


def test_float_is_kept_in_single_precision() -> None:
    coder = codec(FloatType())
    assert coder.decode(coder.encode((0.1,))) == (float(np.float32(0.1)),)


def test_struct_is_taken_from_row_tuple_list_or_dict() -> None:
    inner = StructType([StructField("a", LongType()), StructField("b", StringType())])
    coder = codec(inner)
    expected = coder.encode(((1, None),))
    for same in (Row(a=1, b=None), [1, None], {"a": 1}, {"b": None, "a": 1}):
        assert coder.encode((same,)) == expected
    assert coder.decode(expected) == ((1, None),)
    with pytest.raises(BadInputError, match="expected struct, found dict"):
        coder.encode(({"c": 1},))


def test_row_factory_gives_nested_structs_their_field_names() -> None:
    inner = StructType([StructField("a", LongType())])
    coder = codec(ArrayType(inner), row_factory=Row)
    (rows,) = coder.decode(coder.encode(([(7,)],)))
    assert rows[0].a == 7


def test_nan_and_infinity_are_kept_and_shown_as_text() -> None:
    coder = codec(DoubleType())
    data = coder.encode((math.nan,))
    assert math.isnan(coder.decode(data)[0])
    assert coder.to_json(data) == {"f": "nan"}
    assert coder.to_json(coder.encode((-math.inf,))) == {"f": "-inf"}


def test_json_form_of_every_kind_of_value() -> None:
    fields = {
        "d": (DateType(), datetime.date(2024, 2, 29), "2024-02-29"),
        "n": (TimestampNTZType(), datetime.datetime(2024, 1, 1, 2, 3), "2024-01-01T02:03:00"),
        "e": (DecimalType(20, 10), Decimal("0.0000000001"), "0.0000000001"),
        "b": (BinaryType(), b"\x00\xff", "AP8="),
        "i": (DayTimeIntervalType(), datetime.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
        "s": (StructType([StructField("a", DateType())]), (datetime.date(1970, 1, 1),), None),
        "m": (MapType(StringType(), DecimalType(4, 1)), {"k": Decimal("1.5")}, {"k": "1.5"}),
        "l": (MapType(LongType(), LongType()), {2: 3}, [{"key": 2, "value": 3}]),
        "a": (ArrayType(DateType()), [None, datetime.date(1970, 1, 1)], [None, "1970-01-01"]),
        "z": (LongType(), None, None),
    }
    coder = codec([StructField(name, field[0]) for name, field in fields.items()])
    shown = coder.to_json(coder.encode(tuple(field[1] for field in fields.values())))
    expected = {name: field[2] for name, field in fields.items()}
    assert shown == expected | {"s": {"a": "1970-01-01"}}


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (LongType(), "abc", "expected long, found str 'abc'"),
        (LongType(), True, "expected long, found bool True"),
        (LongType(), 1.0, "expected long, found float 1.0"),
        (LongType(), 2**63, "expected long, found int 9223372036854775808"),
        (IntegerType(), 2**31, "expected integer, found int 2147483648"),
        (ShortType(), -(2**15) - 1, "expected short, found int -32769"),
        (ByteType(), 128, "expected byte, found int 128"),
        (BooleanType(), 1, "expected boolean, found int 1"),
        (DoubleType(), 1, "expected double, found int 1"),
        (FloatType(), 1e39, "expected float, found float"),
        (StringType(), b"abc", "expected string, found bytes"),
        (StringType(), "\ud800", "expected string, found str"),
        (BinaryType(), "abc", "expected binary, found str"),
        (DateType(), "2024-01-01", "expected date, found str"),
        (TimestampType(), datetime.date(2024, 1, 1), "expected timestamp, found date"),
        (
            TimestampNTZType(),
            datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
            "expected timestamp_ntz, found datetime",
        ),
        (DecimalType(4, 2), Decimal("100"), r"expected decimal\(4,2\), found Decimal"),
        (DecimalType(4, 2), Decimal("NaN"), r"expected decimal\(4,2\), found Decimal"),
        (DecimalType(4, 2), 1, r"expected decimal\(4,2\), found int 1"),
        (DayTimeIntervalType(), datetime.timedelta.max, "expected interval day to second"),
        (NullType(), 0, "expected void, found int 0"),
        (ArrayType(LongType()), "abc", "expected array, found str"),
        (ArrayType(LongType()), ["a"], "element: expected long, found str 'a'"),
        (ArrayType(LongType(), False), [None], "element: expected long not null, found null"),
        (MapType(StringType(), LongType()), {1: 1}, "key: expected string not null"),
        (MapType(StringType(), LongType()), {"a": "b"}, "value: expected long"),
        (StructType([StructField("a", LongType())]), (1, 2), "expected struct, found tuple"),
    ],
)
def test_value_of_another_type_is_refused_by_variable_field_and_type(
    data_type: DataType, value: Any, expected: str
) -> None:
    with pytest.raises(BadInputError, match=rf"^state variable x, field f.*{expected}"):
        codec(data_type).encode((value,))


def test_null_in_a_field_that_is_not_nullable_is_refused() -> None:
    for data_type in (LongType(), DateType()):
        with pytest.raises(BadInputError, match=r"field f: expected .* not null, found null"):
            codec([StructField("f", data_type, nullable=False)]).encode((None,))


@pytest.mark.parametrize("data_type", [LongType(), DateType()])
def test_another_number_of_fields_is_refused(data_type: DataType) -> None:
    with pytest.raises(BadInputError, match=r"state variable x: expected 1 fields \(f\), found 2"):
        codec(data_type).encode((None, None))


@pytest.mark.parametrize("value", ["a", b"a", {"f": 1}, {1}])
def test_what_is_no_tuple_is_refused(value: Any) -> None:
    with pytest.raises(BadInputError, match="expected a tuple"):
        codec(LongType()).encode(value)


@pytest.mark.parametrize("value", [None, 5])
def test_none_and_numbers_raise_type_error_as_in_spark(value: Any) -> None:
    with pytest.raises(TypeError):
        codec(LongType()).encode(value)


@pytest.mark.parametrize(
    "data_type",
    [
        VariantType(),
        YearMonthIntervalType(),
        ArrayType(VariantType()),
        StructType([StructField("v", VariantType())]),
        MapType(ArrayType(LongType()), LongType()),
        StringType("UTF8_LCASE"),
    ],
)
def test_type_that_state_cannot_hold_is_refused_when_declared(data_type: DataType) -> None:
    with pytest.raises(BadInputError, match=r"state variable x, field f.*: state cannot hold"):
        codec(data_type)


def test_decoding_with_another_number_of_fields_never_succeeds() -> None:
    one, two = (
        codec(DateType()),
        codec([StructField("a", LongType()), StructField("b", DateType())]),
    )
    with pytest.raises(CorruptSegmentError, match="zip"):
        one.decode(two.encode((None, None)))
    flat = codec([StructField("a", LongType()), StructField("b", LongType())])
    with pytest.raises(CorruptSegmentError, match="length 2"):
        flat.decode(one.encode((None,)))
