"""The rows that processors give back, as Arrow: column by column, each checked against its type."""

from __future__ import annotations

import array
import datetime
import reprlib
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.errors import BadInputError
from cairn.runtime.processing.arrow_types import OBJECT_TYPES, arrow_schema, arrow_type

DOES_NOT_FIT = (
    pa.ArrowException,
    ArithmeticError,
    AssertionError,
    AttributeError,
    TypeError,
    ValueError,
)
"""The errors of pyarrow, pandas and Spark's types for a value that is not of a type."""
_NOT_AN_ARRAY = (str, bytes, bytearray, memoryview, Row)


def rows_to_batch(rows: Sequence[tuple[Any, ...]], schema: StructType) -> pa.RecordBatch:
    """Returns rows as an Arrow record batch of the schema.

    A row with field names is taken by name, as Spark does: a field it lacks is null. A tuple
    without names is taken by position. So are rows in structs, where a dict may stand for a row.
    A naive datetime in a timestamp is UTC, as in Spark.

    Raises:
        BadInputError: a row has a field that the schema lacks, or as a tuple another number of
            fields, or a value does not fit its column; the message names the column.
    """
    # By class and not by row: many rows have few classes.
    for kind in set(map(type, rows)):
        if not issubclass(kind, tuple):
            raise BadInputError(f"an output row is a Row or a tuple; found {kind.__name__}")
    arrays = _fields(rows, schema, "an output row", "", nulls=0)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def _fields(
    rows: Sequence[Any], schema: StructType, subject: str, path: str, *, nulls: int
) -> list[pa.Array]:
    """Returns the fields' values of rows, of which `nulls` are null."""
    columns: Sequence[Sequence[Any]] = list(
        zip(*in_order(rows, schema.names, subject), strict=True)
    )
    return [
        _column(values, field.dataType, f"{path}{field.name}", nullable=field.nullable, nulls=nulls)
        for values, field in zip(columns or [()] * len(schema), schema.fields, strict=True)
    ]


def in_order(rows: Sequence[Any], names: list[str], subject: str) -> Iterator[Sequence[Any]]:
    """Yields the values of rows, tuples and dicts in the order of the names."""
    as_tuple, width = tuple(names), len(names)
    for row in rows:
        fields = getattr(row, "__fields__", None)
        if fields is not None and fields not in (names, as_tuple):
            yield _by_name(dict(zip(fields, row, strict=True)), names, subject)
        elif isinstance(row, tuple):
            if len(row) != width:
                raise BadInputError(
                    f"{subject} has {len(row)} fields, the output schema {width}: "
                    f"{', '.join(names)}"
                )
            yield row
        elif row is None:
            # A null struct: Arrow wants values under it, which its mask hides.
            yield (None,) * width
        else:
            yield _by_name(row, names, subject)


def _by_name(by_name: dict[str, Any], names: list[str], subject: str) -> list[Any]:
    if unknown := by_name.keys() - set(names):
        raise BadInputError(
            f"{subject} has the fields {', '.join(sorted(map(str, unknown)))}, which the output "
            f"schema lacks; it has {', '.join(names)}"
        )
    return [by_name.get(name) for name in names]


def _column(
    values: Sequence[Any], data_type: DataType, path: str, *, nullable: bool, nulls: int = 0
) -> pa.Array:
    """Returns values as Arrow; `nulls` of them stand in null rows, where null always fits."""
    if isinstance(data_type, StructType):
        column = _structs(values, data_type, path)
    elif isinstance(data_type, ArrayType):
        column = _arrays(values, data_type, path)
    elif isinstance(data_type, MapType):
        column = _maps(values, data_type, path)
    else:
        column = _scalars(values, data_type, path)
    if column.null_count > nulls and not nullable:
        raise BadInputError(f"output column {path}: found null, but it is not nullable")
    return column


def _structs(values: Sequence[Any], data_type: StructType, path: str) -> pa.Array:
    _check_kinds(values, (tuple, dict), (), data_type, path)
    null = _nulls(values)
    if not data_type.fields:
        return pa.array([None if value is None else {} for value in values], pa.struct([]))
    return pa.StructArray.from_arrays(
        _fields(
            values,
            data_type,
            f"output column {path}: a row",
            f"{path}.",
            nulls=null.true_count if null else 0,
        ),
        fields=[*arrow_type(data_type)],
        mask=null,
    )


def _arrays(values: Sequence[Any], data_type: ArrayType, path: str) -> pa.Array:
    taken = (Sequence, Set, np.ndarray, array.array)
    kinds = _check_kinds(values, taken, _NOT_AN_ARRAY, data_type, path)
    lists = values if kinds <= {list, tuple} else [_elements(v, data_type, path) for v in values]
    elements = _column(
        [*chain.from_iterable(lists)],
        data_type.elementType,
        f"{path}.element",
        nullable=data_type.containsNull,
    )
    return pa.ListArray.from_arrays(
        _offsets(lists), elements, type=arrow_type(data_type), mask=_nulls(values)
    )


def _elements(value: Any, data_type: DataType, path: str) -> Any:  # noqa: ANN401 - any collection
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            raise _misfit(value, data_type, path, "it has no dimension")
        if value.dtype.kind in "mM":  # of times in numpy, only those in microseconds are Python's
            value = value.astype(f"{value.dtype.kind}8[us]")
        return value.tolist()
    return () if value is None else value


def _maps(values: Sequence[Any], data_type: MapType, path: str) -> pa.Array:
    kinds = _check_kinds(values, (dict, Sequence, Set), _NOT_AN_ARRAY, data_type, path)
    lists = [value.items() if isinstance(value, dict) else value or () for value in values]
    pairs = [*chain.from_iterable(lists)]
    # A dict's items are pairs already: no look at each.
    if kinds != {dict}:
        _check_pairs(pairs, data_type, path)
    return pa.MapArray.from_arrays(
        _offsets(lists),
        _column([key for key, _ in pairs], data_type.keyType, f"{path}.key", nullable=False),
        _column(
            [value for _, value in pairs],
            data_type.valueType,
            f"{path}.value",
            nullable=data_type.valueContainsNull,
        ),
        type=arrow_type(data_type),
        mask=_nulls(values),
    )


def _check_pairs(pairs: Sequence[Any], data_type: DataType, path: str) -> None:
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2:
            raise _misfit(pair, data_type, path, "a map is a dict, or pairs of key and value")


def _scalars(values: Sequence[Any], data_type: Any, path: str) -> pa.Array:  # noqa: ANN401
    if hasattr(data_type, "serialize"):  # a user's own type
        values = [None if value is None else data_type.serialize(value) for value in values]
        return _column(values, data_type.sqlType(), path, nullable=True)
    if isinstance(data_type, IntegralType):  # Arrow would cut a float's fraction off
        _check_kinds(values, (int, np.integer), (), data_type, path)
    elif isinstance(data_type, TimestampType | TimestampNTZType):
        _check_kinds(values, (datetime.datetime,), (), data_type, path)
        if isinstance(data_type, TimestampNTZType):
            _check_naive(values, data_type, path)
    elif isinstance(data_type, DateType):
        _check_kinds(values, (object,), (), data_type, path)
    try:
        return _to_arrow(values, data_type)
    except DOES_NOT_FIT as error:
        raise _misfit(_first_misfit(values, data_type), data_type, path, str(error)) from error


def _to_arrow(values: Sequence[Any], data_type: DataType) -> pa.Array:
    if data_type.typeName() in OBJECT_TYPES:
        values = [None if value is None else data_type.toInternal(value) for value in values]
    return pa.array(values, arrow_type(data_type))


def _check_kinds(
    values: Sequence[Any],
    taken: tuple[type, ...],
    refused: tuple[type, ...],
    data_type: DataType,
    path: str,
) -> set[type]:
    """Returns the classes of the values, all of which `taken` and not `refused` stand for."""
    kinds = set(map(type, values))
    for kind in kinds - {type(None)}:
        # pandas' NaT is a datetime, and Arrow takes it for a day of the year 1.
        if not issubclass(kind, taken) or issubclass(kind, refused) or kind.__name__ == "NaTType":
            found = next(value for value in values if type(value) is kind)
            raise _misfit(found, data_type, path)
    return kinds


def _check_naive(values: Sequence[Any], data_type: DataType, path: str) -> None:
    moments = [value for value in values if value is not None]
    for moment, zone in zip(moments, map(attrgetter("tzinfo"), moments), strict=True):
        if zone is not None:
            raise _misfit(moment, data_type, path, "it has a time zone")


def _first_misfit(values: Sequence[Any], data_type: DataType) -> Any:  # noqa: ANN401 - any value
    for value in values:
        try:
            _to_arrow([value], data_type)
        except DOES_NOT_FIT:
            return value
    return values


def _misfit(value: object, data_type: DataType, path: str, reason: str = "") -> BadInputError:
    return BadInputError(
        f"output column {path}: a value does not fit {data_type.simpleString()}; found "
        f"{type(value).__name__} {reprlib.repr(value)}" + (f". {reason}" if reason else "")
    )


def _nulls(values: Sequence[Any]) -> pa.Array | None:
    """Returns which values are null; None if there are none."""
    return (
        pa.array([value is None for value in values]) if type(None) in map(type, values) else None
    )


def _offsets(lists: Sequence[Any]) -> pa.Array:
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
