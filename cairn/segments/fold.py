"""The fold: what bases, increments and changelog come to, as new bases, in bounded memory.

Bases are sorted by key and lie side by side, so they are read as one stream, batch by batch. All
else is changes on top of them, which are sorted first (`cairn.segments.net_changes`). Then both are
merged by key, one key group after the other: what no change touches is copied in slices, without
any work in Python for each entry. The result is that of `cairn.segments.snapshot`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments.base_rows import Rows, rows_by_key_group, stretches
from cairn.segments.base_writer import BaseWriter, FoldedBase
from cairn.segments.format import CHUNK_BYTES, changes_of, segment_metadata
from cairn.segments.net_changes import SORT_BYTES, Change, NetChanges, below
from cairn.segments.reader import read_segments
from cairn.segments.scratch import Scratch, scratch_in
from cairn.segments.whole_segment import IN_MEMORY_BYTES, batches_of, load
from cairn.state.entries import split
from cairn.state.view import DELETE_PREFIX, PUT, Changes
from cairn.storage.store import ObjectStore
from metastore.enums import KEYED, SegmentKind

_PIECE_ROWS, _PIECE_BYTES = 65_536, 8 << 20
_AHEAD_BYTES = 32 << 20  # of changelog that is read while what is before it is sorted


def fold(
    store: ObjectStore,
    handles: Sequence[SegmentHandle],
    key_groups: KeyGroupRange,
    *,
    job: str,
    subtask: int,
    as_of_checkpoint: int,
    chunk_bytes: int = CHUNK_BYTES,
    sort_bytes: int = SORT_BYTES,
    scratch: Path | None = None,
) -> Iterator[FoldedBase]:
    """Yields bases that together are the keyed state in the key groups, empty ones too.

    `handles` are what a restore to checkpoint `as_of_checkpoint` reads, in order of replay. Each
    base has about `chunk_bytes` of entries, and never a part of a key group. `subtask` is whose
    they are. What does not fit into memory is in files without a name, in `scratch`; None: where
    temporary files go. Each base is to be dropped before the next is asked for.

    Raises:
        CorruptSegmentError: a segment's bytes are not those that were recorded, or no state.
        StorageError: an object is missing or cannot be read.
        RefusedError: entries are too large to be folded.
    """
    with scratch_in(scratch) as files:
        source = _Input(store, handles, key_groups, job, files)
        changes, held = source.net_changes(sort_bytes), list[Change]()
        metadata = segment_metadata(job, as_of_checkpoint, subtask, SegmentKind.KEYED_FULL)
        writer, start = BaseWriter(metadata, scratch=files), key_groups.start
        for group, rows in source.rows_by_key_group():
            end = group + 1
            for keys, values in merged(rows, below(changes, end.to_bytes(2, "big"), held)):
                writer.add(keys, values)
            if writer.size_bytes >= chunk_bytes or end == key_groups.end:
                yield writer.finish(KeyGroupRange(start, end), as_of_checkpoint)
                writer, start = BaseWriter(metadata, scratch=files), end


class _Input:
    def __init__(
        self,
        store: ObjectStore,
        handles: Sequence[SegmentHandle],
        key_groups: KeyGroupRange,
        job: str,
        scratch: Scratch,
    ) -> None:
        self._store, self._job, self._scratch = store, job, scratch
        self._key_groups = key_groups
        self._handles = [handle for handle in handles if handle.kind in KEYED]
        # By key group, the place of the base that replaces all before it; -1: there is none.
        self._base_at = dict.fromkeys(range(key_groups.start, key_groups.end), -1)
        for place, handle in enumerate(self._handles):
            if handle.kind is SegmentKind.KEYED_FULL:
                self._base_at.update(dict.fromkeys(self._wanted(handle), place))

    def _wanted(self, handle: SegmentHandle) -> range:
        inside = handle.key_groups.intersect(self._key_groups)
        return range(inside.start, inside.end) if inside else range(0)

    def rows_by_key_group(self) -> Iterator[tuple[int, Iterator[Rows]]]:
        """Yields what the bases hold."""
        bases = [None if at < 0 else self._handles[at] for at in self._base_at.values()]
        load_one = partial(load, self._store, job=self._job, scratch=self._scratch)
        return rows_by_key_group(load_one, stretches(self._key_groups, bases), job=self._job)

    def net_changes(self, sort_bytes: int) -> Iterator[Change]:
        """Yields by key what is on top of the bases."""
        net = NetChanges(scratch=self._scratch, sort_bytes=sort_bytes)
        small: list[tuple[int, SegmentHandle]] = []
        for place, handle in enumerate(self._handles):
            is_above = any(self._base_at[group] < place for group in self._wanted(handle))
            if handle.kind is SegmentKind.KEYED_FULL or not is_above:
                continue
            if handle.size_bytes <= IN_MEMORY_BYTES:
                small.append((place, handle))
                continue
            self._add_small(net, small)
            small.clear()
            data = load(self._store, handle, job=self._job, scratch=self._scratch)
            for batch in batches_of(data, handle, self._key_groups, job=self._job):
                net.add(self._above_bases(place, changes_of(batch)))
        self._add_small(net, small)
        return map(self._checked, net.by_key())

    def _add_small(self, net: NetChanges, segments: Sequence[tuple[int, SegmentHandle]]) -> None:
        place_of = {handle.segment_id: place for place, handle in segments}
        handles = [handle for _, handle in segments]
        read = read_segments(
            self._store,
            handles,
            job=self._job,
            key_groups=self._key_groups,
            use_threads=False,
            ahead_bytes=_AHEAD_BYTES,
        )
        for handle, changes in read:
            net.add(self._above_bases(place_of[handle.segment_id], changes))

    def _above_bases(self, place: int, changes: Changes) -> Changes:
        """Returns the changes of the key groups that no later base replaces."""
        if max(self._base_at.values(), default=-1) < place:
            return changes
        rows = [
            row
            for row in zip(changes.ops, changes.keys, changes.values, strict=True)
            if self._base_at.get(int.from_bytes(row[1][:2], "big"), -1) < place
        ]
        return Changes(*map(list, zip(*rows, strict=True))) if rows else Changes([], [], [])

    def _checked(self, change: Change) -> Change:
        if change[0] == PUT:
            try:
                split(change[1])
            except ValueError as error:
                # Right bytes of something else: the metastore names the wrong segment.
                raise CorruptSegmentError(
                    f"the changelog or an increment holds something else than state: {error}",
                    job=self._job,
                ) from error
        return change


def merged(rows: Iterator[Rows], changes: Iterator[Change]) -> Iterator[Rows]:
    """Yields entries with changes applied; both by key, the changes as of `NetChanges.by_key`."""
    change = next(changes, None)
    # Entries below are deleted with the last prefix.
    resume_at = b""
    for keys, values in rows:
        place = bisect_left(keys, resume_at)
        new = _Piece()
        while change is not None and change[1] <= keys[-1]:
            op, key, value = change
            found = bisect_left(keys, key, place)
            new.keys += keys[place:found]
            new.values += values[place:found]
            place = found
            if op == DELETE_PREFIX:
                resume_at = _after_prefix(key)
                place = bisect_left(keys, resume_at, place)
            else:
                place += place < len(keys) and keys[place] == key
                new.put(key, value)
            # Between two entries there may be any number of new ones.
            if new.is_full:
                yield new.keys, new.values
                new = _Piece()
            change = next(changes, None)
        yield new.keys + keys[place:], new.values + values[place:]
    new = _Piece()
    while change is not None:
        new.put(change[1], change[2])
        if new.is_full:
            yield new.keys, new.values
            new = _Piece()
        change = next(changes, None)
    yield new.keys, new.values


class _Piece:
    """Entries that are given out together."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self._put_bytes = 0

    def put(self, key: bytes, value: bytes | None) -> None:
        """Adds what a change puts; nothing if it deletes."""
        if value is not None:
            self.keys.append(key)
            self.values.append(value)
            self._put_bytes += len(key) + len(value)

    @property
    def is_full(self) -> bool:
        return self._put_bytes >= _PIECE_BYTES or len(self.keys) >= _PIECE_ROWS


def _after_prefix(prefix: bytes) -> bytes:
    """Returns the least key that is greater than all that start with a prefix."""
    # Key groups are below 32,768: some byte of a key's first two can be increased.
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])
