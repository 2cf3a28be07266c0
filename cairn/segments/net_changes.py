"""What changes in any order come to, by key, in memory that does not grow with their number.

They are collected until they are `SORT_BYTES`, and written then, sorted and without what was
overwritten, to a file without a name on the local disk: a run. Runs are merged by key. So are
sixteen of them into one, and sixteen of those, so that few are open however many changes there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter

import pyarrow as pa

from cairn.segments.format import changes_of, record_batch, schema_of
from cairn.segments.scratch import Scratch
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes

SORT_BYTES = 48 << 20
"""Memory of the changes that are sorted at once, about."""
FAN_IN = 16
"""Runs that become one."""

Change = tuple[int, bytes, bytes | None]
"""Operation, key and value, as in `Changes`."""

_ENTRY_BYTES = 250  # of Python's objects for one key and its value
_RUN_ROWS, _RUN_BYTES = 4096, 1 << 20
_PREFIX, _KEY = 0, 1  # a deleted prefix before the key of the same bytes
_Row = tuple[bytes, int, int, int, bytes | None]
"""Key, `_PREFIX` or `_KEY`, place in the order of changes, operation, value."""


class NetChanges:
    """Changes, each of which counts over all that were added before it."""

    def __init__(self, *, scratch: Scratch, sort_bytes: int = SORT_BYTES) -> None:
        self._scratch, self._sort_bytes = scratch, sort_bytes
        self._buffer = _Buffer()
        # By how often its changes were merged: those of a higher level are older.
        self._levels: list[list[_Run]] = [[]]

    def add(self, changes: Changes) -> None:
        """Adds changes in the order to apply them in."""
        self._buffer.add(changes)
        if self._buffer.size_bytes >= self._sort_bytes:
            self._levels[0].append(_Run(self._buffer.net(), self._scratch))
            self._buffer = _Buffer()
            self._merge_full()

    def _merge_full(self) -> None:
        for level, runs in enumerate(self._levels):
            if len(runs) < FAN_IN:
                return
            merged = _Run(
                _net(_merged([run.rows(at) for at, run in enumerate(runs)])), self._scratch
            )
            runs.clear()
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(merged)

    def by_key(self) -> Iterator[Change]:
        """Yields what the changes come to, by key, each key once; may be called once.

        A deleted prefix is followed by what was put under it later. No other one is yielded that
        starts with it.
        """
        runs = [run for level in reversed(self._levels) for run in level]
        if not runs:
            return self._buffer.net()
        newest = _rows_of(self._buffer.net(), len(runs))
        return _net(_merged([*(run.rows(at) for at, run in enumerate(runs)), newest]))


class _Buffer:
    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        # Filled from the first deleted prefix on; keys that are not here are from before it.
        self._places: dict[bytes, int] = {}
        self._prefixes: dict[bytes, int] = {}
        self._place = 0
        self._added_bytes = 0

    @property
    def size_bytes(self) -> int:
        entries = len(self._values) + len(self._places) + len(self._prefixes)
        return self._added_bytes + _ENTRY_BYTES * entries

    def add(self, changes: Changes) -> None:
        self._added_bytes += changes.size_bytes
        self._place += 1
        if DELETE_PREFIX not in changes.ops:
            # Most: nothing is done in Python for each of them.
            self._values.update(zip(changes.keys, changes.values, strict=True))
            if self._prefixes:
                self._places.update(zip(changes.keys, repeat(self._place)))
            return
        for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
            if op == DELETE_PREFIX:
                self._place += 1
                self._prefixes[key] = self._place
            else:
                self._values[key] = value
                self._places[key] = self._place

    def net(self) -> Iterator[Change]:
        if not self._prefixes:
            for key in sorted(self._values):
                value = self._values[key]
                yield (DELETE if value is None else PUT), key, value
            return
        places = self._places
        rows: list[_Row] = [
            (key, _KEY, places.get(key, 0), DELETE if value is None else PUT, value)
            for key, value in self._values.items()
        ]
        rows += [(key, _PREFIX, at, DELETE_PREFIX, None) for key, at in self._prefixes.items()]
        yield from _net(sorted(rows, key=itemgetter(0, 1)))


class _Run:
    """Net changes by key in a file of record batches."""

    def __init__(self, changes: Iterator[Change], scratch: Scratch) -> None:
        self._file = scratch.file()
        # Changes of runs are small pieces of what has passed the checks of segments.
        schema = schema_of({}, pa.large_binary())
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(self._file, schema, options=options) as writer:
            for some in _pieces(changes):
                writer.write(record_batch(schema, *map(list, zip(*some, strict=True))))

    def rows(self, place: int) -> Iterator[_Row]:
        """Yields the changes; may be called once."""
        with self._file:
            self._file.seek(0)
            options = pa.ipc.IpcReadOptions(use_threads=False)
            for batch in pa.ipc.open_stream(self._file, options=options):
                one = changes_of(batch)
                yield from _rows_of(zip(one.ops, one.keys, one.values, strict=True), place)


def _pieces(changes: Iterator[Change]) -> Iterator[Sequence[Change]]:
    some: list[Change] = []
    size_bytes = 0
    for change in changes:
        some.append(change)
        size_bytes += len(change[1]) + len(change[2] or b"")
        if len(some) == _RUN_ROWS or size_bytes >= _RUN_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _rows_of(changes: Iterable[Change], place: int) -> Iterator[_Row]:
    for op, key, value in changes:
        yield key, (_PREFIX if op == DELETE_PREFIX else _KEY), place, op, value


def _merged(runs: Sequence[Iterator[_Row]]) -> Iterator[_Row]:
    # Of one place, a key is there once and a prefix once: values are never compared.
    return heapq.merge(*runs)


def _net(rows: Iterable[_Row]) -> Iterator[Change]:
    """Yields what rows come to that are by key, then prefixes before keys, then by place.

    What was put at the place of a deleted prefix was put after it.
    """
    # The deleted prefixes that the key starts with, outermost first, with the newest deletion.
    above: list[tuple[bytes, int]] = []
    for key, same in groupby(rows, key=itemgetter(0)):
        while above and not key.startswith(above[-1][0]):
            above.pop()
        last: _Row | None = None
        for row in same:
            if row[1] == _KEY:
                last = row
                continue
            if not above:
                yield DELETE_PREFIX, key, None
            deleted_at = max(row[2], above[-1][1]) if above else row[2]
            above.append((key, deleted_at))
        if last is None or (above and last[2] < above[-1][1]):
            continue
        if last[3] == PUT:
            yield PUT, key, last[4]
        elif not above:
            # One that is gone with its prefix is gone in everything older.
            yield DELETE, key, None


def below(changes: Iterator[Change], limit: bytes, held: list[Change]) -> Iterator[Change]:
    """Yields the changes of keys below a limit; the first one that is not is left in `held`."""
    while True:
        change = held.pop() if held else next(changes, None)
        if change is None:
            return
        if change[1] >= limit:
            held.append(change)
            return
        yield change
