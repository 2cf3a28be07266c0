"""The net changes since a base: the result of some changelog, without overwritten values.

An increment holds, for every entry that the changelog touches, the value that it has in a snapshot
taken after it, or its deletion. So it may replace any part of that changelog. What is in the
snapshot is compared with what the changelog says, which is checked as it is read from storage.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from cairn.errors import DamagedStateError
from cairn.runtime.executor.local_reader import LocalReader
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes

_Change = tuple[int, bytes, bytes | None]
_UNKNOWN = -1
"""Instead of a checksum: the base has a newer state."""


@dataclass(slots=True)
class Touched:
    """What changes touch in one key group: keys, and prefixes that they delete.

    A key has the place of its last change, and the checksum of its value then: None if it was
    deleted. A prefix has the place of its last deletion.
    """

    keys: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    prefixes: dict[bytes, int] = field(default_factory=dict)
    is_known: bool = True
    """Whether no prefix was deleted before the base, which may have later entries under it."""


def touched_by(
    changes: Iterable[tuple[int, Changes]], base_as_of: Mapping[int, int]
) -> dict[int, Touched]:
    """Returns what changes touch by key group.

    The changes are in their order, with the checkpoint that they are as of. `base_as_of` has, by
    key group, the checkpoint whose state the base holds.
    """
    touched: dict[int, Touched] = {}
    place = 0
    for as_of, batch in changes:
        for op, key, value in zip(batch.ops, batch.keys, batch.values, strict=True):
            group = int.from_bytes(key[:2], "big")
            found = touched.get(group)
            if found is None:
                found = touched[group] = Touched()
            place += 1
            is_newer = as_of > base_as_of.get(group, 0)
            if op == DELETE_PREFIX:
                found.prefixes[key] = place
                found.is_known &= is_newer
            elif not is_newer:
                found.keys[key] = place, _UNKNOWN
            else:
                found.keys[key] = place, crc32(value or b"") if op == PUT else None
    return touched


def net_changes(reader: LocalReader, touched: Touched) -> Changes:
    """Returns what brings any older state of the touched entries to that of the snapshot, by key.

    A deleted prefix is followed by all entries that the snapshot has under it.

    Raises:
        DamagedStateError: the snapshot has other entries than the changes have left.
    """
    # A prefix before the keys under it: after them it would delete them again.
    rows = sorted(_net_changes(reader, touched), key=lambda row: (row[1], row[0] != DELETE_PREFIX))
    return Changes(*map(list, zip(*rows, strict=True))) if rows else Changes([], [], [])


def _net_changes(reader: LocalReader, touched: Touched) -> Iterator[_Change]:
    expected = _Expected(touched)
    prefixes = _outermost(touched.prefixes)
    for prefix in prefixes:
        yield DELETE_PREFIX, prefix, None
        for key, value in reader.scan(prefix):
            expected.compare_under(key, value)
            yield PUT, key, value
    under = 0
    for key in touched.keys:
        if _is_under(prefixes, key):
            under += expected.is_there(key)
        else:
            found = reader.get(key)
            expected.compare(key, found)
            # A key that is gone is deleted once more: the base below may have it.
            yield (DELETE if found is None else PUT), key, found
    expected.compare_count(under)


class _Expected:
    """What the changes have left, to compare the snapshot with."""

    def __init__(self, touched: Touched) -> None:
        self._touched = touched
        self._lengths = {len(prefix) for prefix in touched.prefixes}
        self._found_under = 0

    def is_there(self, key: bytes) -> bool:
        """Tells whether the last change of a key has left a value."""
        place, checksum = self._touched.keys[key]
        if checksum is None:
            return False
        deletions = self._touched.prefixes
        return not any(deletions.get(key[:length], 0) > place for length in self._lengths)

    def compare(self, key: bytes, found: bytes | None) -> None:
        """Compares what the snapshot has for a key under no deleted prefix."""
        checksum = self._touched.keys[key][1]
        if checksum != _UNKNOWN and checksum != (None if found is None else crc32(found)):
            raise _damaged(key)

    def compare_under(self, key: bytes, found: bytes) -> None:
        """Compares an entry that the snapshot has under a deleted prefix."""
        self._found_under += 1
        if not self._touched.is_known:
            return
        if key not in self._touched.keys or not self.is_there(key):
            raise _damaged(key)
        self.compare(key, found)

    def compare_count(self, under: int) -> None:
        """Compares how many entries there are under deleted prefixes, once all were compared."""
        if self._touched.is_known and under != self._found_under:
            raise DamagedStateError(
                f"local state is not what was written: {self._found_under} entries under prefixes "
                f"that were deleted, and {under} put since then in the changelog"
            )


def _damaged(key: bytes) -> DamagedStateError:
    group, state = int.from_bytes(key[:2], "big"), int.from_bytes(key[2:4], "big")
    return DamagedStateError(
        f"local state is not what was written: an entry of state {state} in key group {group} is "
        "not as in the changelog"
    )


def _outermost(prefixes: Iterable[bytes]) -> list[bytes]:
    """Returns, sorted, those that start with no other one."""
    kept: list[bytes] = []
    for prefix in sorted(prefixes):
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return kept


def _is_under(prefixes: list[bytes], key: bytes) -> bool:
    """Tells whether a key starts with one of the outermost prefixes, which are sorted.

    Whatever sorts between a prefix and a key that starts with it starts with it, too; so only the
    last one before the key can be it.
    """
    place = bisect.bisect_right(prefixes, key)
    return place > 0 and key.startswith(prefixes[place - 1])
