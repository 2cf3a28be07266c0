"""The entries of a checkpoint's bases by key group, batch by batch, with their order checked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from mmap import mmap
from operator import lt

from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments.format import changes_of
from cairn.segments.reader import corrupt
from cairn.segments.whole_segment import batches_of
from cairn.state.entries import PREFIX_HEAD_BYTES

Rows = tuple[list[bytes], list[bytes]]
"""Keys and values of entries, by key."""
Load = Callable[[SegmentHandle], bytes | mmap]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring key groups whose entries are in one base; None: in none."""

    key_groups: KeyGroupRange
    base: SegmentHandle | None


def stretches(key_groups: KeyGroupRange, bases: Sequence[SegmentHandle | None]) -> list[Stretch]:
    """Returns the key groups as stretches; `bases` has the base of each of them."""
    found: list[Stretch] = []
    for group, base in zip(range(key_groups.start, key_groups.end), bases, strict=True):
        if found and found[-1].base is base:
            found[-1] = Stretch(KeyGroupRange(found[-1].key_groups.start, group + 1), base)
        else:
            found.append(Stretch(KeyGroupRange(group, group + 1), base))
    return found


def rows_by_key_group(
    load: Load, by_base: Sequence[Stretch], *, job: str
) -> Iterator[tuple[int, Iterator[Rows]]]:
    """Yields each key group with what its base holds, to be read before the next is asked for.

    While one base is read, the bytes of the next are loaded in a thread.

    Raises:
        CorruptSegmentError: a base is not what was recorded, or its rows are not by key.
        StorageError: an object is missing or cannot be read.
    """
    with ThreadPoolExecutor(1) as ahead:
        loading = [_load_ahead(ahead, load, one) for one in by_base[:1]]
        for place, stretch in enumerate(by_base):
            current = loading.pop()
            batches = (
                _batches(current.result(), stretch.base, stretch.key_groups, job)
                if current and stretch.base
                else iter(())
            )
            del current
            loading += [_load_ahead(ahead, load, one) for one in by_base[place + 1 : place + 2]]
            reader = _Reader(batches)
            for group in range(stretch.key_groups.start, stretch.key_groups.end):
                yield group, reader.until((group + 1).to_bytes(2, "big"))


def _load_ahead(
    ahead: ThreadPoolExecutor, load: Load, stretch: Stretch
) -> Future[bytes | mmap] | None:
    return None if stretch.base is None else ahead.submit(load, stretch.base)


def _batches(
    data: bytes | mmap, handle: SegmentHandle, key_groups: KeyGroupRange, job: str
) -> Iterator[Rows]:
    last = b""
    for batch in batches_of(data, handle, key_groups, job=job):
        changes = changes_of(batch)
        keys, values = changes.keys, changes.values
        # Else the merge would lose entries: it looks for keys by halving.
        is_sorted = last < keys[0] and all(map(lt, keys, keys[1:]))
        if any(changes.ops) or None in values or not is_sorted or not _are_entries(keys):
            raise corrupt(
                job, handle, f"base {handle.segment_id} holds something else than state by key"
            )
        last = keys[-1]
        yield keys, values  # type: ignore[misc]  # no value is None


def _are_entries(keys: Sequence[bytes]) -> bool:
    end = PREFIX_HEAD_BYTES
    lengths = (int.from_bytes(key[end - 4 : end], "big") for key in keys)
    return all(len(key) - end >= length for key, length in zip(keys, lengths, strict=True))


class _Reader:
    """Rows of one base, given out by key group."""

    def __init__(self, batches: Iterator[Rows]) -> None:
        self._batches = batches
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._at = 0

    def until(self, limit: bytes) -> Iterator[Rows]:
        """Yields the rows below a limit that were not given out yet."""
        while True:
            if self._at == len(self._keys):
                found = next(self._batches, None)
                if found is None:
                    return
                (self._keys, self._values), self._at = found, 0
            start, self._at = self._at, bisect_left(self._keys, limit, self._at)
            if start < self._at:
                yield self._keys[start : self._at], self._values[start : self._at]
            if self._at < len(self._keys):
                return
