"""Arrow to the rows that processors see, and the rows they give back to Arrow."""

from __future__ import annotations

import decimal
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.errors import BadInputError

ROWS_AT_ONCE = 16_384
"""How many rows' values exist as Python objects at a time, at most."""

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


def rows_of(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """Yields a table's rows with the fields of the schema."""
    kind = row_class(tuple(schema.names))
    for first in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(first, ROWS_AT_ONCE)
        columns = [values_of(part.column(field.name), field.dataType) for field in schema.fields]
        yield from map(tuple.__new__, repeat(kind), zip(*columns, strict=True))


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Returns a class of rows with these fields, to be made by `tuple.__new__`.

    Making one takes a quarter of the time of `Row(*names)(*values)`, as there is no constructor in
    Python and no dict per row. Reading a field by its name takes a tenth: Row looks the name up in
    Python, and these have the descriptors of a named tuple.
    """
    body: dict[str, Any] = {"__fields__": list(names), "__slots__": ()}
    getters = vars(namedtuple("Fields", [f"f{place}" for place in range(len(names))]))
    for place, name in reversed([*enumerate(names)]):  # of fields with one name, the first counts
        if not hasattr(Row, name) and not name.startswith("__"):
            body[name] = getters[f"f{place}"]
    return type("Row", (Row,), body)


def values_of(column: pa.Array | pa.ChunkedArray, data_type: DataType) -> list[Any]:
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
        values_of(child, field.dataType)
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


def _ordered(rows: Sequence[tuple[Any, ...]], names: list[str]) -> Iterator[Sequence[Any]]:
    """Yields the rows' values in the order of the schema."""
    as_tuple, width = tuple(names), len(names)
    for row in rows:
        if not isinstance(row, tuple):
            raise BadInputError(f"an output row is a Row or a tuple; found {type(row).__name__}")
        fields = getattr(row, "__fields__", None)
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
