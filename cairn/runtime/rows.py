"""Arrow tables in, rows by key out; rows in, Arrow out."""

from __future__ import annotations

import decimal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.errors import BadInputError
from cairn.runtime.plan import KEY_GROUP_COLUMN

ROWS_AT_ONCE = 16_384
"""How many rows' values exist as Python objects at a time, at most."""

_NAN = float("nan")
_CODE_LIMIT = 2**62
_CONVERTED = (StructType, ArrayType, MapType, DecimalType, TimestampType, TimestampNTZType)
_DOES_NOT_FIT = (
    pa.ArrowException,
    TypeError,
    ValueError,
    OverflowError,
    AssertionError,
    decimal.InvalidOperation,
    PySparkTypeError,
    PySparkValueError,
)
Codes = npt.NDArray[np.int64]
RowsOfKey = tuple[int, tuple[Any, ...], Iterator[Row]]


def group_rows(
    table: pa.Table, key_columns: Sequence[str], schema: StructType
) -> Iterator[RowsOfKey]:
    """Yields `(key group, key, iterator of rows)` for each key in the table.

    Keys come in the order of their first row where there is one key column, a key's rows in the
    order of the table. Null is a key like any other; all NaNs are one key, and -0.0 is 0.0, as in
    Spark's grouping. Rows have the fields of `schema`; a key's iterator ends when the next key is
    asked for.

    Raises:
        BadInputError: a key column holds maps.
    """
    if not table.num_rows:
        return
    table = table.combine_chunks()
    codes = _codes_of_rows(table, key_columns, schema)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    counts = np.diff(starts, append=len(codes)).tolist()
    first_rows = table.take(pa.array(order[starts]))
    if np.any(order[1:] < order[:-1]):
        table = table.take(pa.array(order))
    rows = _rows(table, schema)
    key_groups = first_rows.column(KEY_GROUP_COLUMN).to_pylist()
    for key_group, key, count in zip(
        key_groups, _keys(first_rows, key_columns, schema), counts, strict=True
    ):
        rows_of_key = islice(rows, count)
        yield key_group, key, rows_of_key
        deque(rows_of_key, maxlen=0)


def rows_to_batch(rows: Sequence[tuple[Any, ...]], schema: StructType) -> pa.RecordBatch:
    """Returns rows as an Arrow record batch of the schema.

    A row with field names is taken by name, as Spark does: a field it lacks is null. A tuple
    without names is taken by position.

    Raises:
        BadInputError: a row has a field that the schema lacks, or as a tuple another number of
            fields, or a value does not fit its column; the message names the column.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    ordered = _ordered(rows, schema.names)
    columns: Sequence[Sequence[Any]] = list(zip(*ordered, strict=True)) or [()] * len(schema)
    arrays = [
        _array(values, field, arrow_schema.field(i).type)
        for i, (values, field) in enumerate(zip(columns, schema.fields, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _codes_of_rows(table: pa.Table, key_columns: Sequence[str], schema: StructType) -> Codes:
    """Returns a number for each row; equal numbers mean equal keys."""
    codes, radix = np.zeros(table.num_rows, np.int64), 1
    for name in key_columns:
        column = table.column(name).combine_chunks()
        for part, part_radix in _codes_of_column(column, schema[name].dataType):
            if radix * part_radix > _CODE_LIMIT:
                distinct, codes = np.unique(codes, return_inverse=True)
                radix = len(distinct)
            codes = codes * part_radix + part
            radix *= part_radix
    return codes


def _codes_of_column(column: pa.Array, data_type: DataType) -> Iterator[tuple[Codes, int]]:
    """Yields codes and their number for each part that tells keys apart."""
    if isinstance(data_type, StructType):
        if column.null_count:
            yield column.is_null().cast(pa.int64()).to_numpy(zero_copy_only=False), 2
        for child, field in zip(column.flatten(), data_type.fields, strict=True):
            yield from _codes_of_column(child, field.dataType)
    elif isinstance(data_type, ArrayType | MapType):
        seen: dict[Any, int] = {}
        codes = [seen.setdefault(_hashable(v), len(seen)) for v in _values(column, data_type)]
        yield np.array(codes, np.int64), len(seen)
    else:
        if isinstance(data_type, FloatType | DoubleType):
            nan = pa.scalar(_NAN, column.type)
            zero = pa.scalar(0.0, column.type)
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        encoded = column.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        yield indices.astype(np.int64), max(1, len(encoded.dictionary))


def _keys(
    table: pa.Table, key_columns: Sequence[str], schema: StructType
) -> Iterator[tuple[Any, ...]]:
    columns: list[list[Any]] = []
    for name in key_columns:
        data_type = schema[name].dataType
        values = _values(table.column(name), data_type)
        columns.append([*map(_canonical, values)] if _has_floats(data_type) else values)
    return zip(*columns, strict=True)


def _rows(table: pa.Table, schema: StructType) -> Iterator[Row]:
    new, names = tuple.__new__, schema.names
    for first in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(first, ROWS_AT_ONCE)
        columns = [_values(part.column(field.name), field.dataType) for field in schema.fields]
        for values in zip(*columns, strict=True):
            # A third of the time of Row(*names)(*values), which passes through two constructors.
            row = new(Row, values)
            row.__dict__["__fields__"] = names
            yield row


def _values(column: pa.Array | pa.ChunkedArray, data_type: DataType) -> list[Any]:
    """Returns a column's values as PySpark gives them in rows."""
    if isinstance(data_type, StructType):
        return _structs(column, data_type)
    if isinstance(data_type, TimestampType):
        return _timestamps(column)
    values: list[Any] = column.to_pylist()
    convert: Callable[[Any], Any] | None = ArrowTableToRowsConversion._create_converter(
        data_type, none_on_identity=True
    )
    return [*map(convert, values)] if convert else values


def _structs(column: pa.Array | pa.ChunkedArray, data_type: StructType) -> list[Any]:
    children = [
        _values(child, field.dataType)
        for child, field in zip(column.flatten(), data_type.fields, strict=True)
    ]
    make = Row(*data_type.names)
    rows: list[Any] = [*map(make, *children)] if children else [make()] * len(column)
    if column.null_count:
        present = column.is_valid().to_pylist()
        return [row if there else None for row, there in zip(rows, present, strict=True)]
    return rows


def _timestamps(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns naive local datetimes; converts each distinct one once, as it costs microseconds."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    distinct = [
        moment.astimezone().replace(tzinfo=None) if moment is not None else None
        for moment in encoded.dictionary.to_pylist()
    ]
    return [None if i is None else distinct[i] for i in encoded.indices.to_pylist()]


def _canonical(value: Any) -> Any:  # noqa: ANN401 - any value of a row
    """Returns the value with all NaNs the same and no -0.0."""
    if isinstance(value, float):
        return _NAN if value != value else value + 0.0  # noqa: PLR0124
    if isinstance(value, Row):
        return Row(*value.__fields__)(*map(_canonical, value))
    if isinstance(value, list):
        return [*map(_canonical, value)]
    return value


def _hashable(value: Any) -> Any:  # noqa: ANN401 - any value of a row
    if isinstance(value, dict):
        raise BadInputError("a key column holds maps; group by something else")
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return _canonical(value)


def _has_floats(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_has_floats(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _has_floats(data_type.elementType)
    return isinstance(data_type, FloatType | DoubleType)


def _ordered(rows: Sequence[tuple[Any, ...]], names: list[str]) -> Iterator[Sequence[Any]]:
    """Yields the rows' values in the order of the schema."""
    as_tuple, width = tuple(names), len(names)
    for row in rows:
        if not isinstance(row, tuple):
            raise BadInputError(f"an output row is a Row or a tuple; found {type(row).__name__}")
        fields = row.__dict__.get("__fields__") if isinstance(row, Row) else None
        if fields is None or fields in (names, as_tuple):
            if len(row) != width:
                raise BadInputError(
                    f"an output row has {len(row)} fields, the output schema {width}: "
                    f"{', '.join(names)}"
                )
            yield row
        else:
            yield _by_name(row, fields, names)


def _by_name(row: tuple[Any, ...], fields: Sequence[str], names: list[str]) -> list[Any]:
    by_name = dict(zip(fields, row, strict=True))
    if unknown := by_name.keys() - set(names):
        raise BadInputError(
            f"an output row has the fields {', '.join(sorted(unknown))}, which the output schema "
            f"lacks; it has {', '.join(names)}"
        )
    return [by_name.get(name) for name in names]


def _array(values: Sequence[Any], field: StructField, arrow_type: pa.DataType) -> pa.Array:
    if isinstance(field.dataType, IntegralType) and not all(map(_is_whole, set(map(type, values)))):
        # Arrow would cut a float's fraction off.
        raise BadInputError(
            f"output column {field.name}: {field.dataType.simpleString()} takes whole numbers; "
            f"found values of type {_type_names(values)}"
        )
    try:
        array = pa.array(_converted(values, field), arrow_type)
    except _DOES_NOT_FIT as error:
        raise BadInputError(
            f"output column {field.name}: a value does not fit {field.dataType.simpleString()}; "
            f"found values of type {_type_names(values)}. {error}"
        ) from error
    if array.null_count and not field.nullable:
        raise BadInputError(f"output column {field.name}: found null, but it is not nullable")
    return array


def _converted(values: Sequence[Any], field: StructField) -> Sequence[Any]:
    if not isinstance(field.dataType, _CONVERTED):
        return values
    convert = LocalDataToArrowConversion._create_converter(field.dataType, field.nullable)
    return [*map(convert, values)]


def _is_whole(kind: type) -> bool:
    return issubclass(kind, int | np.integer | type(None))


def _type_names(values: Sequence[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))
