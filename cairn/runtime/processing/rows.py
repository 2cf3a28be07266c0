"""Arrow to the rows that processors see."""

from __future__ import annotations

import datetime
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from cairn.runtime.processing.arrow_types import arrow_zone

ROWS_AT_ONCE = 16_384
"""How many rows' values exist as Python objects at a time, at most."""
_AS_IN_ARROW = (NumericType, StringType, BinaryType, BooleanType, DateType)
"""Types whose values pyarrow gives as rows hold them."""


def rows_of(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """Yields a table's rows with the fields of the schema."""
    kind = row_class(tuple(schema.names))
    # In parts: all of a batch's values as objects would take many times its bytes in Arrow.
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
    # Held until its descriptors are read: the collector empties a class that nobody refers to.
    lender: type = namedtuple("Fields", [f"f{place}" for place in range(len(names))])  # type: ignore[misc]
    getters = vars(lender)
    for place, name in reversed([*enumerate(names)]):  # of fields with one name, the first counts
        if not hasattr(Row, name) and not name.startswith("__"):
            body[name] = getters[f"f{place}"]
    return type("Row", (Row,), body)


def values_of(column: pa.Array | pa.ChunkedArray, data_type: DataType) -> list[Any]:
    """Returns a column's values as rows hold them: structs as rows, maps as dicts.

    A timestamp is a datetime with the time zone of the Arrow type, which is the session's.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    for kind, read in _READERS:
        if isinstance(data_type, kind):
            return read(column, data_type)
    return _objects(column, data_type)


def _objects(column: pa.Array, data_type: Any) -> list[Any]:  # noqa: ANN401 - a user's own type
    """Returns values that are as in Arrow, or objects of the type's class."""
    if hasattr(data_type, "deserialize"):
        return _each(values_of(column, data_type.sqlType()), data_type.deserialize)
    values: list[Any] = column.to_pylist()
    if data_type.typeName() == "variant":
        return _each(values, data_type.fromInternal)
    if data_type.typeName() in ("geography", "geometry"):
        from_internal = data_type.fromInternal
        return _each(values, lambda v: from_internal({"srid": v["srid"], "bytes": v["wkb"]}))
    return values


def _each(values: list[Any], convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _structs(column: pa.StructArray, data_type: StructType) -> list[Any]:
    children = [
        values_of(child, field.dataType)
        for child, field in zip(column.flatten(), data_type.fields, strict=True)
    ]
    kind = row_class(tuple(data_type.names))
    values = zip(*children, strict=True) if children else repeat((), len(column))
    # Null rows have children too, of any value.
    return _where_valid(column, [*map(tuple.__new__, repeat(kind), values)])


def _arrays(column: pa.ListArray, data_type: ArrayType) -> list[Any]:
    if isinstance(data_type.elementType, _AS_IN_ARROW):
        lists: list[Any] = column.to_pylist()
        return lists
    bounds = column.offsets.to_pylist()
    # Of a slice, the children are still the whole column's.
    elements = column.values.slice(bounds[0], bounds[-1] - bounds[0])
    return _where_valid(column, _cut(values_of(elements, data_type.elementType), bounds))


def _maps(column: pa.MapArray, data_type: MapType) -> list[Any]:
    bounds = column.offsets.to_pylist()
    first, count = bounds[0], bounds[-1] - bounds[0]
    keys = values_of(column.keys.slice(first, count), data_type.keyType)
    values = values_of(column.items.slice(first, count), data_type.valueType)
    pairs = [*zip(keys, values, strict=True)]
    return _where_valid(column, [*map(dict, _cut(pairs, bounds))])


def _cut(values: list[Any], bounds: list[int]) -> list[Any]:
    first = bounds[0]
    return [values[start - first : end - first] for start, end in pairwise(bounds)]


def _where_valid(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _timestamps(column: pa.Array, _: DataType) -> list[Any]:
    """Converts each distinct moment once, as it costs microseconds."""
    encoded = column.cast(pa.timestamp("us", column.type.tz)).dictionary_encode()
    zone = _tzinfo(column.type.tz)
    at = datetime.datetime.fromtimestamp
    distinct = [
        at(us // 1_000_000, zone).replace(microsecond=us % 1_000_000)
        for us in encoded.dictionary.cast(pa.int64()).to_pylist()
    ]
    return [None if i is None else distinct[i] for i in encoded.indices.to_pylist()]


@cache
def _tzinfo(zone: str) -> datetime.tzinfo | None:
    """Returns the time zone object that pyarrow, and so Spark, gives datetimes."""
    moment: datetime.datetime = pa.scalar(0, pa.timestamp("us", arrow_zone(zone))).as_py()
    return moment.tzinfo


_READERS: tuple[tuple[type[DataType], Callable[[pa.Array, Any], list[Any]]], ...] = (
    (StructType, _structs),
    (ArrayType, _arrays),
    (MapType, _maps),
    (TimestampType, _timestamps),
)
