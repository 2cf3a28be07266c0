"""Rows by key: Arrow tables in, runs of rows with the same key out."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from cairn.errors import BadInputError
from cairn.runtime.processing.operator_spec import KEY_HASH_COLUMN
from cairn.runtime.processing.rows import values_of

KeyColumns = Sequence[tuple[str, DataType]]
"""The key's columns: the name of each in the table, and its type."""

_NAN = float("nan")
_CODE_LIMIT = 2**62
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """A table sorted so that the rows of each key are together, and what each key is."""

    table: pa.Table
    hashes: list[int]
    keys: Iterator[tuple[Any, ...]]
    counts: list[int]
    """How many rows each key has, in order of the table."""


def group(table: pa.Table, keys: KeyColumns, owners: Codes | None = None) -> Groups:
    """Returns a table's rows by key, first by the owner of each row where those are given.

    Keys are in the order of their first row where there is one key column, a key's rows in the
    order of the table. Null is a key like any other; all NaNs are one key, and -0.0 is 0.0, as in
    Spark's grouping. Equal keys have one owner.

    Raises:
        BadInputError: a key column holds maps.
    """
    table = table.combine_chunks()
    codes = _codes_of_rows(table, keys)
    # Stable: the rows of a key stay in their order.
    order = np.argsort(codes, kind="stable") if owners is None else np.lexsort((codes, owners))
    codes = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    starts = starts[: len(codes)]
    first_rows = table.take(pa.array(order[starts]))
    # Taking copies every column, so rows that are together already stay where they are.
    if np.any(order[1:] < order[:-1]):
        table = table.take(pa.array(order))
    return Groups(
        table=table,
        hashes=first_rows.column(KEY_HASH_COLUMN).to_pylist(),
        keys=_keys(first_rows, keys),
        counts=np.diff(starts, append=len(codes)).tolist(),
    )


def split(groups: Groups, owners: Sequence[int]) -> Iterator[tuple[int, Groups]]:
    """Yields the part of each owner; `owners` has that of each key, whose parts are together."""
    first_key = first_row = 0
    for owner, of_owner in groupby(owners):
        end_key = first_key + sum(1 for _ in of_owner)
        counts = groups.counts[first_key:end_key]
        end_row = first_row + sum(counts)
        yield (
            owner,
            Groups(
                table=groups.table.slice(first_row, end_row - first_row),
                hashes=groups.hashes[first_key:end_key],
                keys=iter([*islice(groups.keys, len(counts))]),
                counts=counts,
            ),
        )
        first_key, first_row = end_key, end_row


def distinct_keys(batch: pa.RecordBatch, keys: KeyColumns) -> list[Any]:
    """Returns the keys of a batch, hashable, to be given to `rows_of_key`."""
    return [*map(_hashable, group(pa.Table.from_batches([batch]), keys).keys)]


def rows_of_key(batch: pa.RecordBatch, key: Any, keys: KeyColumns) -> pa.Table:  # noqa: ANN401
    """Returns the rows of one key in a batch."""
    groups = group(pa.Table.from_batches([batch]), keys)
    start = 0
    for found, count in zip(groups.keys, groups.counts, strict=True):
        if _hashable(found) == key:
            return groups.table.slice(start, count)
        start += count
    return groups.table.slice(0, 0)


def _codes_of_rows(table: pa.Table, keys: KeyColumns) -> Codes:
    """Returns a number for each row; equal numbers mean equal keys."""
    codes, radix = np.zeros(table.num_rows, np.int64), 1
    for name, data_type in keys:
        column = table.column(name).combine_chunks()
        for part, part_radix in _codes_of_column(column, data_type):
            # Before the product overflows: as many codes as there are different keys so far.
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
        codes = [seen.setdefault(_hashable(v), len(seen)) for v in values_of(column, data_type)]
        yield np.array(codes, np.int64), len(seen)
    else:
        if isinstance(data_type, FloatType | DoubleType):
            nan = pa.scalar(_NAN, column.type)
            zero = pa.scalar(0.0, column.type)
            # Adding 0.0 makes -0.0 positive. The dictionary tells values apart by their bits.
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        encoded = column.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        yield indices.astype(np.int64), max(1, len(encoded.dictionary))


def _keys(table: pa.Table, keys: KeyColumns) -> Iterator[tuple[Any, ...]]:
    columns: list[list[Any]] = []
    for name, data_type in keys:
        values = values_of(table.column(name), data_type)
        columns.append([*map(_canonical, values)] if _has_floats(data_type) else values)
    return zip(*columns, strict=True)


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
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # Where clocks are set back, two moments are equal in the session's time zone.
        return value.astimezone(datetime.UTC)
    return _canonical(value)


def _has_floats(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_has_floats(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _has_floats(data_type.elementType)
    return isinstance(data_type, FloatType | DoubleType)
