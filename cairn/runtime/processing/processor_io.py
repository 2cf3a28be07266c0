"""The two forms of transformWithState: rows and pandas frames, in and out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from cairn.runtime.processing.frames import KeyView, frame_of, frames_to_batch, key_in_frames
from cairn.runtime.processing.grouping import Groups, KeyColumns, group
from cairn.runtime.processing.operator_spec import UNLIMITED, FrameSettings, OperatorSpec
from cairn.runtime.processing.output_rows import rows_to_batch
from cairn.runtime.processing.rows import rows_of
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

    def key_view(self, keys: KeyColumns) -> KeyView | None:
        """Returns what makes the key that the processor sees; None where it is the key itself."""
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
        for groups in _groups_of(keyed, keys):
            rows = rows_of(groups.table, schema)
            for key_hash, key, count in zip(groups.hashes, groups.keys, groups.counts, strict=True):
                rows_of_key = islice(rows, count)
                yield key_hash, key, rows_of_key
                # The rows that the processor did not read: the next key's are behind them.
                deque(rows_of_key, maxlen=0)

    def key_view(self, keys: KeyColumns) -> None:
        """Returns None: the processor sees the key itself."""

    def collect(self, results: Iterable[Any]) -> None:
        """Takes rows or tuples."""
        # To the end, at once: a generator changes state only while it is read.
        self._rows.extend(results)
        if len(self._rows) >= OUTPUT_ROWS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Emits the rows collected."""
        if self._rows:
            self._emit(rows_to_batch(self._rows, self._output_schema))
            self._rows.clear()


class PandasIO:
    """pandas frames of at most the rows and the size that the settings say."""

    def __init__(
        self,
        output_schema: StructType,
        emit: Callable[[pa.RecordBatch], None],
        settings: FrameSettings,
    ) -> None:
        self._output_schema = output_schema
        self._emit = emit
        self._settings = settings
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
                    for frame in self._frames_of(
                        frame_of(table, schema, self._settings), self._rows_per_frame(table)
                    )
                ),
            )
            return
        for groups in _groups_of(keyed, keys):
            everything = frame_of(groups.table, schema, self._settings)
            rows_per_frame = self._rows_per_frame(groups.table)
            start = 0
            for key_hash, key, count in _each(groups):
                of_key = everything.iloc[start : start + count]
                start += count
                yield key_hash, key, self._frames_of(of_key, rows_per_frame)

    def _rows_per_frame(self, table: pa.Table) -> int:
        limit = self._settings
        if limit.max_bytes == UNLIMITED or not table.nbytes:
            return limit.max_rows
        # By the mean, as Spark does: a row's own size would have to be computed for each.
        row_bytes: float = table.nbytes / table.num_rows
        return min(limit.max_rows, math.ceil(limit.max_bytes / row_bytes))

    def _frames_of(self, frame: Any, size: int) -> Iterator[Any]:  # noqa: ANN401 - pandas is imported late
        for start in range(0, len(frame), size):
            yield frame.iloc[start : start + size].reset_index(drop=True)

    def key_view(self, keys: KeyColumns) -> KeyView | None:
        """Returns what makes the timestamps of a key those of the column in frames."""
        return key_in_frames(keys)

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
            self._emit(frames_to_batch(self._frames, self._output_schema, self._settings))
            self._frames.clear()
            self._rows = 0


def io_of(operator: OperatorSpec, emit: Callable[[pa.RecordBatch], None]) -> ProcessorIO:
    """Returns the form of an operator's processor, for any number of subtasks."""
    if operator.uses_pandas:
        return PandasIO(operator.output_schema, emit, operator.frames)
    return RowIO(operator.output_schema, emit)


def _groups_of(keyed: KeyedRows, keys: KeyColumns) -> Iterator[Groups]:
    if keyed.groups is not None:
        return iter([keyed.groups])
    return (group(table, keys) for table in keyed.tables)


def _each(groups: Groups) -> Iterator[tuple[int, tuple[Any, ...], int]]:
    return zip(groups.hashes, groups.keys, groups.counts, strict=True)


def _only_key(table: pa.Table, keys: KeyColumns) -> tuple[int, tuple[Any, ...]]:
    groups = group(table.slice(0, 1), keys)
    return groups.hashes[0], next(groups.keys)
