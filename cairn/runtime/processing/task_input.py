"""A task's input: counted, cleared of late rows, split by subtask, and on disk where it is big.

Rows are kept in memory up to `cairn.task.memory-size`. Beyond, files hold them by the hash of
their key, again and again until each file fits, so that every key is processed whole in bounded
memory; the rows of a key that is larger than that are streamed from their file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import RefusedError
from cairn.runtime.processing.grouping import (
    Groups,
    KeyColumns,
    distinct_keys,
    group,
    rows_of_key,
    split,
)
from cairn.runtime.processing.operator_spec import INPUT_COLUMN, KEY_HASH_COLUMN, OperatorSpec
from cairn.runtime.processing.spill import SpillDirectory, SpillFile

_BITS = 4
"""Of a hash that rows are split by at a time, into as many files as they have values."""
_MIX = np.uint32(0x9E3779B1)  # odd, so that equal products mean equal hashes

Hashes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class InputCounts:
    """How many rows a subtask was given, how many were late, the latest event time by input."""

    rows: int = 0
    late_rows: int = 0
    max_event_ms: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Some whole keys in one table, or the one key of several tables.

    `groups` are those of the one table, if they are known already.
    """

    tables: Iterable[pa.Table]
    is_one_key: bool
    groups: Groups | None = None


class TaskInput:
    """What one task was given in one batch.

    Args:
        operator: says where rows have their event time.
        subtask_of: the subtask of each key group, for all of them.
        subtasks: those that the task does.
        late_ms: rows at or before this watermark are dropped; None: nothing is late.
        memory_bytes: how much of it is held in memory.
    """

    def __init__(
        self,
        operator: OperatorSpec,
        subtask_of: npt.NDArray[np.int64],
        subtasks: range,
        *,
        late_ms: int | None,
        spill: SpillDirectory,
        memory_bytes: int,
    ) -> None:
        self._operator = operator
        self._keys = operator.keys
        self._subtask_of = subtask_of
        self._subtasks = subtasks
        self._late_ms = late_ms
        self._spill = spill
        self._memory_bytes = memory_bytes
        # Each subtask has files of its own, all open at once: few of them where there are many.
        self._first_bits = max(0, _BITS - (len(subtasks) - 1).bit_length())
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._by_subtask: dict[int, KeyedRows] = {}
        self._files: dict[tuple[int, int], _Bucket] = {}
        self._rows = dict.fromkeys(subtasks, 0)
        self._late_rows = dict.fromkeys(subtasks, 0)
        self._max_event_ms: list[int | None] = [None] * operator.inputs

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Takes everything in.

        Raises:
            RefusedError: a row belongs to none of the task's subtasks: its state is not here.
        """
        for arrived in batches:
            batch = self._without_late_rows(_without_heartbeats(arrived))
            if not batch.num_rows:
                continue
            self._batches.append(batch)
            self._size_bytes += batch.nbytes
            if self._size_bytes > self._memory_bytes:
                self._spill_batches()
        if self._files:
            self._spill_batches()
            for bucket in self._files.values():
                bucket.file.close()

    def counts(self, subtask: int) -> InputCounts:
        """Returns the counts of a subtask's input. The latest event time is the task's."""
        return InputCounts(self._rows[subtask], self._late_rows[subtask], tuple(self._max_event_ms))

    def keyed_rows(self, subtask: int) -> Iterator[KeyedRows]:
        """Yields a subtask's rows, those of a key together. Call it once per subtask, in order."""
        if self._batches:
            self._by_subtask, self._batches = self._split(self._batches), []
        if subtask in self._by_subtask:
            yield self._by_subtask.pop(subtask)
        for (owner, _), bucket in sorted(self._files.items()):
            if owner == subtask:
                yield from self._keyed_rows_of(bucket, self._first_bits)

    def _split(self, batches: list[pa.RecordBatch]) -> dict[int, KeyedRows]:
        """Returns the rows of each subtask that has any, in their order."""
        table = pa.Table.from_batches(batches)
        # At once: to group the few rows of a subtask takes as long as to group many.
        is_alone = len(self._subtasks) == 1
        groups = group(table, self._keys, None if is_alone else self._subtasks_of(_hashes(table)))
        owners = self._subtasks_of(np.array(groups.hashes, np.int32).view(np.uint32)).tolist()
        return {
            subtask: KeyedRows([part.table], is_one_key=False, groups=part)
            for subtask, part in split(groups, owners)
        }

    def _subtasks_of(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        # Signed, with numpy's floored remainder: so it equals Spark's pmod.
        groups = hashes.view(np.int32).astype(np.int64) % len(self._subtask_of)
        return self._subtask_of[groups]

    def _without_late_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows to process; counts all of them."""
        owners = self._subtasks_of(_hashes(batch))
        self._count(owners, self._rows)
        event_time = self._operator.event_time
        if event_time is None or not batch.num_rows:
            return batch
        self._note_event_times(batch, event_time.latest_of)
        if self._late_ms is None:
            return batch
        limit = pa.scalar(self._late_ms * 1000, pa.int64())
        # A row without event time is not late, as in Spark.
        is_late = pc.less_equal(_micros(batch, event_time.late_by), limit).fill_null(False)
        late = np.asarray(is_late)
        if not late.any():
            return batch
        self._count(owners[late], self._late_rows)
        return batch.filter(pc.invert(is_late))

    def _count(self, owners: npt.NDArray[np.int64], into: dict[int, int]) -> None:
        found, counts = np.unique(owners, return_counts=True)
        for subtask, count in zip(found.tolist(), counts.tolist(), strict=True):
            if subtask not in into:
                raise RefusedError(
                    f"a task of subtasks {list(self._subtasks)} was given rows of subtask "
                    f"{subtask}: Spark changed the partitioning of the plan. Please report this "
                    "with the query's explain()",
                    job=self._operator.job,
                )
            into[subtask] += count

    def _note_event_times(self, batch: pa.RecordBatch, column: tuple[str, ...]) -> None:
        micros = _micros(batch, column)
        for number, known in enumerate(self._max_event_ms):
            of_input = micros
            if self._operator.inputs > 1:
                of_input = micros.filter(pc.equal(batch.column(INPUT_COLUMN), number))
            latest = pc.max(of_input).as_py()
            if latest is not None and (known is None or latest // 1000 > known):
                self._max_event_ms[number] = latest // 1000

    def _spill_batches(self) -> None:
        for batch in self._batches:
            hashes = _hashes(batch)
            owners = self._subtasks_of(hashes)
            for subtask in np.unique(owners).tolist():
                mine = pa.array(np.flatnonzero(owners == subtask))
                self._add(self._files, subtask, batch.take(mine), self._first_bits, 0)
        self._batches, self._size_bytes = [], 0

    def _add(
        self,
        buckets: dict[tuple[int, int], _Bucket],
        subtask: int,
        batch: pa.RecordBatch,
        bits: int,
        used_bits: int,
    ) -> None:
        """Adds rows to the files that some bits of their hash name, after those used before."""
        hashes = _hashes(batch)
        # Mixed first: the hashes of a subtask are alike in the bits that chose the subtask.
        numbers = ((hashes * _MIX) << np.uint32(used_bits)).astype(np.uint64) >> np.uint64(
            32 - bits
        )
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        batch, hashes = batch.take(pa.array(order)), hashes[order]
        ends = [*starts[1:].tolist(), len(order)]
        for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            bucket = buckets.get((subtask, number))
            if bucket is None:
                file = self._spill.new_file(batch.schema)
                bucket = buckets[subtask, number] = _Bucket(file, int(hashes[start]))
            bucket.file.write(batch.slice(start, end - start))
            bucket.is_one_hash &= bool(np.all(hashes[start:end] == bucket.hash))

    def _keyed_rows_of(self, bucket: _Bucket, used_bits: int) -> Iterator[KeyedRows]:
        """Yields a file's keys: at once if they fit, else split by more of their hash."""
        file = bucket.file
        if file.size_bytes <= self._memory_bytes:
            yield KeyedRows([pa.Table.from_batches(list(file.read()))], is_one_key=False)
        elif bucket.is_one_hash:
            # More bits would not split it: all its rows have one hash.
            yield from self._one_hash(file)
        else:
            buckets: dict[tuple[int, int], _Bucket] = {}
            for batch in file.read():
                self._add(buckets, 0, batch, _BITS, used_bits)
            file.remove()
            for smaller in buckets.values():
                smaller.file.close()
            for _, smaller in sorted(buckets.items()):
                yield from self._keyed_rows_of(smaller, used_bits + _BITS)
        file.remove()

    def _one_hash(self, file: SpillFile) -> Iterator[KeyedRows]:
        """Yields each key of a file: one as a rule, more where hashes collide."""
        keys: dict[object, None] = {}
        for batch in file.read():
            keys |= dict.fromkeys(distinct_keys(batch, self._keys))
        for key in keys:
            yield KeyedRows(_tables_of_key(file, key, self._keys), is_one_key=True)


def _tables_of_key(file: SpillFile, key: object, keys: KeyColumns) -> Iterator[pa.Table]:
    for batch in file.read():
        table = rows_of_key(batch, key, keys)
        if table.num_rows:
            yield table


@dataclass
class _Bucket:
    file: SpillFile
    hash: int
    is_one_hash: bool = True


def subtasks_by_key_group(parallelism: int, max_parallelism: int) -> npt.NDArray[np.int64]:
    """Returns the subtask of each key group, as `cairn.keygroups.subtask_of` gives it."""
    return np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism


def _hashes(rows: pa.RecordBatch | pa.Table) -> Hashes:
    hashes: npt.NDArray[np.int32] = rows.column(KEY_HASH_COLUMN).to_numpy(zero_copy_only=False)
    return hashes.view(np.uint32)


def _without_heartbeats(batch: pa.RecordBatch) -> pa.RecordBatch:
    hashes = batch.column(KEY_HASH_COLUMN)
    return batch.filter(hashes.is_valid()) if hashes.null_count else batch


def _micros(batch: pa.RecordBatch, column: tuple[str, ...]) -> pa.Array:
    array = batch.column(column[0])
    for name in column[1:]:
        array = pc.struct_field(array, name)
    return array.cast(pa.int64())
