"""The two forms of transformWithState: rows and pandas frames, in and out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from cairn.runtime.processing.frames import frame_of, frames_to_batch
from cairn.runtime.processing.grouping import Groups, KeyColumns, group
from cairn.runtime.processing.rows import rows_of, rows_to_batch
from cairn.runtime.processing.task_input import KeyedRows

OUTPUT_ROWS_PER_BATCH = 10_000
"""Turned into Arrow as they come: many live Python objects make the garbage collector slow."""

RowsOfKey = tuple[int, tuple[Any, ...], Iterator[Any]]
"""The key's hash, the key, and its rows: of class Row, or frames."""


class ProcessorIO(Protocol):
    """How a processor gets rows and gives them back."""

    def by_key(self, keyed: KeyedRows, keys: KeyColumns, schema: StructType) -> Iterator[RowsOfKey]:
        """Yields each key; its rows can be read until the next key is asked for."""
        ...

    def collect(self, results: Iterable[Any]) -> None:
        """Reads the iterator that a processor's method returned, to its end."""
        ...

    def flush(self) -> None:
        """Emits the collected output that was not emitted yet."""
        ...


class RowIO:
    """Rows of class Row. `emit` takes batches of the output schema."""

    def __init__(self, output_schema: StructType, emit: Callable[[pa.RecordBatch], None]) -> None:
        self._output_schema = output_schema
        self._emit = emit
        self._rows: list[Any] = []

    def by_key(self, keyed: KeyedRows, keys: KeyColumns, schema: StructType) -> Iterator[RowsOfKey]:
        """Yields each key with an iterator of its rows."""
        if keyed.is_one_key:
            tables = iter(keyed.tables)
            first = next(tables)
            key_hash, key = _only_key(first, keys)
            yield key_hash, key, (row for t in chain([first], tables) for row in rows_of(t, schema))
            return
        for table in keyed.tables:
            groups = group(table, keys)
            rows = rows_of(groups.table, schema)
            for key_hash, key, count in zip(groups.hashes, groups.keys, groups.counts, strict=True):
                rows_of_key = islice(rows, count)
                yield key_hash, key, rows_of_key
                deque(rows_of_key, maxlen=0)

    def collect(self, results: Iterable[Any]) -> None:
        """Takes rows or tuples."""
        self._rows.extend(results)
        if len(self._rows) >= OUTPUT_ROWS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Emits the rows collected."""
        if self._rows:
            self._emit(rows_to_batch(self._rows, self._output_schema))
            self._rows.clear()


class PandasIO:
    """pandas frames of at most `frame_rows` rows, as Spark's arrow.maxRecordsPerBatch."""

    def __init__(
        self,
        output_schema: StructType,
        emit: Callable[[pa.RecordBatch], None],
        *,
        timezone: str,
        frame_rows: int,
    ) -> None:
        self._output_schema = output_schema
        self._emit = emit
        self._timezone = timezone
        self._frame_rows = frame_rows
        self._frames: list[Any] = []
        self._rows = 0

    def by_key(self, keyed: KeyedRows, keys: KeyColumns, schema: StructType) -> Iterator[RowsOfKey]:
        """Yields each key with an iterator of frames, whose index starts at 0."""
        if keyed.is_one_key:
            tables = iter(keyed.tables)
            first = next(tables)
            key_hash, key = _only_key(first, keys)
            yield (
                key_hash,
                key,
                (
                    frame
                    for table in chain([first], tables)
                    for frame in self._frames_of(frame_of(table, schema, self._timezone))
                ),
            )
            return
        for table in keyed.tables:
            groups = group(table, keys)
            everything = frame_of(groups.table, schema, self._timezone)
            start = 0
            for key_hash, key, count in _each(groups):
                of_key = everything.iloc[start : start + count]
                start += count
                yield key_hash, key, self._frames_of(of_key)

    def _frames_of(self, frame: Any) -> Iterator[Any]:  # noqa: ANN401 - pandas is imported late
        for start in range(0, len(frame), self._frame_rows):
            yield frame.iloc[start : start + self._frame_rows].reset_index(drop=True)

    def collect(self, results: Iterable[Any]) -> None:
        """Takes frames."""
        for frame in results:
            self._frames.append(frame)
            self._rows += len(frame)
        if self._rows >= OUTPUT_ROWS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Emits the frames collected."""
        if self._frames:
            self._emit(frames_to_batch(self._frames, self._output_schema, self._timezone))
            self._frames.clear()
            self._rows = 0


def _each(groups: Groups) -> Iterator[tuple[int, tuple[Any, ...], int]]:
    return zip(groups.hashes, groups.keys, groups.counts, strict=True)


def _only_key(table: pa.Table, keys: KeyColumns) -> tuple[int, tuple[Any, ...]]:
    groups = group(table.slice(0, 1), keys)
    return groups.hashes[0], next(groups.keys)
