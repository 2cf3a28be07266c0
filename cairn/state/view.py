"""A batch's view of state: the committed state, and this batch's changes on top of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

PUT = 0
"""Operation: the key has this value."""
DELETE = 1
"""Operation: the key is deleted, if it exists."""
DELETE_PREFIX = 2
"""Operation: every key that starts with this one is deleted."""

MISSING: Any = object()
"""Tells "not changed" from None, which means deleted."""
_CLEARED: Any = object()

_SAMPLE = 64
"""Entries that are looked at to estimate the size of the others."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of state as parallel lists, to be applied in order.

    `ops` holds PUT, DELETE or DELETE_PREFIX, `keys` entry keys or the prefix, `values` the value
    of a PUT and None for the others.
    """

    ops: list[int]
    keys: list[bytes]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))


class Reader(Protocol):
    """Committed state, which does not change while a batch runs."""

    def get(self, key: bytes, /) -> bytes | None:
        """Returns the value of a key; None if there is none."""
        ...

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries whose key starts with an entry prefix, in key order."""
        ...

    def last(self, prefix: bytes, /) -> bytes | None:
        """Returns the greatest key that starts with an entry prefix; None if there is none."""
        ...


class NoState:
    """A Reader of no state at all."""

    def get(self, key: bytes, /) -> bytes | None:
        """Returns None."""
        return None

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Returns an empty iterator."""
        return iter(())

    def last(self, prefix: bytes, /) -> bytes | None:
        """Returns None."""
        return None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What an overlay held when its changes were last taken: shallow copies.

    `collections` has, by prefix, whether a collection was cleared, and its entries.
    """

    pending: Mapping[bytes, bytes | None]
    collections: Mapping[bytes, tuple[bool, Mapping[bytes, bytes | None]]]
    entries: int
    """How many of them are in collections."""


_NOTHING = _Taken({}, {}, 0)
_UNTOUCHED: tuple[bool, Mapping[bytes, bytes | None]] = (False, {})


class Overlay:
    """One batch's changes over a Reader, which is never written to.

    Single entries (value state) are read and changed here by key. Entries of a collection (list
    and map state) are read and changed through `under`, so that a scan walks only its own
    collection. The two must not be mixed for one key.
    """

    __slots__ = ("_collections", "_taken", "pending", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.pending: dict[bytes, bytes | None] = {}
        """This batch's single entries; None means deleted. Hot code may use it directly."""
        self._collections: dict[bytes, Entries] = {}
        self._taken = _NOTHING

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a single entry; None if there is none."""
        value: bytes | None = self.pending.get(key, MISSING)
        return self.reader.get(key) if value is MISSING else value

    def put(self, key: bytes, value: bytes) -> None:
        """Sets a single entry."""
        self.pending[key] = value

    def delete(self, key: bytes) -> None:
        """Removes a single entry, if it is there."""
        self.pending[key] = None

    def under(self, prefix: bytes) -> Entries:
        """Returns the collection of entries whose keys start with the prefix."""
        entries = self._collections.get(prefix)
        if entries is None:
            entries = self._collections[prefix] = Entries(prefix, self.reader)
        return entries

    def changes(self) -> Changes:
        """Returns the changes that turn the committed state into the new one, sorted by key.

        A DELETE_PREFIX is before the puts under it and only where a collection was cleared. If
        changes were taken, the result is the changes after them.
        """
        by_key = self._all() if self._taken is _NOTHING else self._since(self._taken)
        # Sorted, a prefix is before every key under it, so its deletion never takes a newer put.
        keys = sorted(by_key)
        found = [by_key[key] for key in keys]
        ops = [DELETE if v is None else DELETE_PREFIX if v is _CLEARED else PUT for v in found]
        values = [None if value is _CLEARED else value for value in found]
        return Changes(ops, keys, values)

    def take(self) -> Changes:
        """Returns the same as `changes`, which from then on returns only later changes.

        So a batch's changes are those that were taken, in order, and then `changes`. It costs a
        walk over all of them, and nothing while entries are changed.
        """
        changes = self.changes()
        self._taken = _Taken(
            # Shallow: values are bytes and never change, so identity tells a later put.
            self.pending.copy(),
            {
                prefix: (entries.cleared, entries.pending.copy())
                for prefix, entries in self._collections.items()
            },
            self._entries(),
        )
        return changes

    @property
    def size_bytes(self) -> int:
        """Bytes of changed keys and values that were not taken, roughly.

        Entries are counted, and their size is that of the newest ones. An entry that was
        taken and is changed again does not count. It costs a look at each collection.
        """
        singles = len(self.pending) - len(self._taken.pending)
        in_collections = self._entries() - self._taken.entries
        # The newest: those taken before say little of what follows.
        newest = islice(reversed(self._collections.values()), _SAMPLE)
        sizes = [
            len(entries.prefix) + size for entries in newest for size in _sizes(entries.pending)
        ]
        return round(singles * _mean(_sizes(self.pending)) + max(0, in_collections) * _mean(sizes))

    def _all(self) -> dict[bytes, Any]:
        by_key: dict[bytes, Any] = dict(self.pending)
        for prefix, entries in self._collections.items():
            if entries.cleared:
                by_key[prefix] = _CLEARED
            for suffix, value in entries.pending.items():
                by_key[prefix + suffix] = value
        return by_key

    def _since(self, taken: _Taken) -> dict[bytes, Any]:
        by_key: dict[bytes, Any] = dict(_changed(self.pending, taken.pending))
        for prefix, entries in self._collections.items():
            was_cleared, before = taken.collections.get(prefix, _UNTOUCHED)
            if entries.cleared and not was_cleared:
                by_key[prefix] = _CLEARED
                before = {}
            elif was_cleared:
                # The prefix's deletion was taken before: what was put after it is deleted by key.
                by_key.update((prefix + gone, None) for gone in before.keys() - entries.pending)
            for suffix, value in _changed(entries.pending, before):
                by_key[prefix + suffix] = value
        return by_key

    def _entries(self) -> int:
        return sum(len(entries.pending) for entries in self._collections.values())


class Entries:
    """The entries under one prefix, read and changed by the rest of their key, the suffix."""

    __slots__ = ("_committed", "cleared", "pending", "prefix")

    def __init__(self, prefix: bytes, reader: Reader) -> None:
        self.prefix = prefix
        self.cleared = False
        """Whether the committed entries under the prefix no longer count."""
        self.pending: dict[bytes, bytes | None] = {}
        """This batch's entries by suffix; None means deleted, never so once cleared."""
        self._committed = reader

    def get(self, suffix: bytes) -> bytes | None:
        """Returns the value of an entry; None if there is none."""
        value: bytes | None = self.pending.get(suffix, MISSING)
        if value is not MISSING:
            return value
        return None if self.cleared else self._committed.get(self.prefix + suffix)

    def put(self, suffix: bytes, value: bytes) -> None:
        """Sets an entry."""
        self.pending[suffix] = value

    def delete(self, suffix: bytes) -> None:
        """Removes an entry, if it is there."""
        # Nothing below to hide, so no tombstone: it would cost an entry in the segment.
        if self.cleared:
            self.pending.pop(suffix, None)
        else:
            self.pending[suffix] = None

    def clear(self) -> None:
        """Removes all entries."""
        self.cleared = True
        self.pending.clear()

    def exists(self) -> bool:
        """Tells whether there is any entry."""
        if self.pending and any(value is not None for value in self.pending.values()):
            return True
        return next(self.scan(), None) is not None

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Returns an iterator of `(suffix, value)` in order of suffix, as of this call.

        Changes made while it is being read do not show in it.
        """
        return self._over(sorted(self.pending.items()))

    def up_to(self, head: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the same as `scan`, but only entries whose suffix starts with `head` or less.

        Costs a seek and the yielded entries, besides one look at each of this batch's changes.
        """
        size_bytes = len(head)
        changed = self.pending.items()
        pending = sorted(item for item in changed if item[0][:size_bytes] <= head)
        return _up_to(head, self._over(pending))

    def last(self) -> bytes | None:
        """Returns the greatest suffix; None if there is no entry."""
        key = None if self.cleared else self._committed.last(self.prefix)
        suffix = None if key is None else key[len(self.prefix) :]
        if not self.pending:
            return suffix
        # The greatest one is deleted, so the next below is not known without a scan.
        if suffix is not None and self.pending.get(suffix, b"") is None:
            return max((suffix for suffix, _ in self.scan()), default=None)
        present = [suffix for suffix, value in self.pending.items() if value is not None]
        return max(present if suffix is None else [suffix, *present], default=None)

    def _over(self, pending: list[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
        if self.cleared:
            return ((suffix, value) for suffix, value in pending if value is not None)
        start = len(self.prefix)
        committed = ((k[start:], v) for k, v in self._committed.scan(self.prefix))
        # Most keys are read before they are changed: no merge for those.
        return _merge(committed, pending) if pending else committed


def _up_to(head: bytes, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    size_bytes = len(head)
    for suffix, value in entries:
        if suffix[:size_bytes] > head:
            return
        yield suffix, value


def _merge(
    committed: Iterator[tuple[bytes, bytes]], pending: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    changes = iter(pending)
    change = next(changes, None)
    for suffix, value in committed:
        while change is not None and change[0] < suffix:
            if change[1] is not None:
                yield change[0], change[1]
            change = next(changes, None)
        if change is None or change[0] != suffix:
            yield suffix, value
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(changes, None)


def _changed(
    pending: Mapping[bytes, bytes | None], before: Mapping[bytes, bytes | None]
) -> list[tuple[bytes, bytes | None]]:
    """Returns the entries that are not the same objects as before."""
    get = before.get
    return [(key, value) for key, value in pending.items() if get(key, MISSING) is not value]


def _sizes(pending: dict[bytes, bytes | None]) -> list[int]:
    """Returns the bytes of key and value of the newest entries."""
    newest = islice(reversed(pending.items()), _SAMPLE)
    return [len(key) + (len(value) if value else 0) for key, value in newest]


def _mean(sizes: list[int]) -> float:
    return sum(sizes) / len(sizes) if sizes else 0.0
