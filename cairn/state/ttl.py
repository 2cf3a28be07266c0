"""Time to live: how entries that expire are kept, hidden, and purged.

The stored value of an entry is its expiry (8 bytes), the time it is indexed at (8), and its value.
The index, TTL_BY_EXPIRY, has exactly one entry for it, at the indexed time, which is its expiry or
earlier. Setting an existing entry moves its expiry only, so that an entry that is set in every
batch costs no index writes: its index entry is moved once its time is reached. An index entry whose
entry was deleted, or is indexed at another time, is stale, and is deleted once its time is reached.

Entries with TTL, those of value state too, are read and changed through `Overlay.under`.
"""

from __future__ import annotations

from collections.abc import Iterator

from cairn.keygroups import KeyGroupRange
from cairn.state.entries import (
    LAST_MS,
    TIME_BYTES,
    TTL_BY_EXPIRY,
    encode_time,
    entry_prefix,
    split,
)
from cairn.state.view import Entries, Overlay

HEADER_BYTES = 2 * TIME_BYTES
_KEY_GROUP_BYTES = 2


class Ttl:
    """Reads and sets the entries of one state variable with TTL in one batch.

    Entries that expire at `now_ms` or earlier do not exist. A new entry expires after `ttl_ms`.
    `get`, `scan` and `exists` are those of Entries, for the entries that are given.
    """

    __slots__ = ("_expiry", "_indexes", "_new", "_now", "_overlay")

    def __init__(self, overlay: Overlay, ttl_ms: int, now_ms: int) -> None:
        self._overlay = overlay
        self._now = encode_time(now_ms)
        # Clamped: a TTL of centuries must not pass the 8 bytes.
        self._expiry = encode_time(min(now_ms + ttl_ms, LAST_MS))
        self._new = self._expiry + self._expiry
        self._indexes: dict[bytes, dict[bytes, bytes | None]] = {}
        """This batch's index entries by the first bytes of a key, its key group."""

    def get(self, entries: Entries, suffix: bytes) -> bytes | None:
        """Returns the value of an entry; None if there is none, or it has expired."""
        kept = entries.get(suffix)
        return None if kept is None or kept[:TIME_BYTES] <= self._now else kept[HEADER_BYTES:]

    def scan(self, entries: Entries) -> Iterator[tuple[bytes, bytes]]:
        """Returns an iterator of `(suffix, value)` in order of suffix, as of this call."""
        now = self._now
        return (
            (suffix, kept[HEADER_BYTES:])
            for suffix, kept in entries.scan()
            if kept[:TIME_BYTES] > now
        )

    def exists(self, entries: Entries) -> bool:
        """Tells whether there is any entry that has not expired."""
        return next(self.scan(entries), None) is not None

    def put(self, entries: Entries, suffix: bytes, value: bytes) -> None:
        """Sets an entry, and when it expires."""
        kept = entries.get(suffix)
        indexed = None if kept is None else kept[TIME_BYTES:HEADER_BYTES]
        # It is indexed later than it expires now if the variable's TTL has become shorter.
        if indexed is None or indexed > self._expiry:
            self.add(entries, suffix, value)
        else:
            entries.pending[suffix] = self._expiry + indexed + value

    def add(self, entries: Entries, suffix: bytes, value: bytes) -> None:
        """Sets an entry that is not there, and when it expires."""
        # Past `Entries.put`: this is called for every element.
        entries.pending[suffix] = self._new + value
        prefix = entries.prefix
        key_group = prefix[:_KEY_GROUP_BYTES]
        # Kept by key group: looking the collection up for each entry costs more than the entry.
        index = self._indexes.get(key_group)
        if index is None:
            index = _index(self._overlay, split(prefix).key_group).pending
            self._indexes[key_group] = index
        index[self._expiry + prefix[_KEY_GROUP_BYTES:] + suffix] = b""


def purge_expired(overlay: Overlay, key_groups: KeyGroupRange, now_ms: int) -> int:
    """Removes all entries that expire at `now_ms` or earlier; returns how many.

    Costs a seek per key group and the index entries up to then: of entries that have expired, were
    set again, or were deleted. It is for the end of a batch, when no state is used any more.
    """
    now = encode_time(now_ms)
    return sum(
        _purge_key_group(overlay, key_group, now)
        for key_group in range(key_groups.start, key_groups.end)
    )


def _purge_key_group(overlay: Overlay, key_group: int, now: bytes) -> int:
    index = _index(overlay, key_group)
    removed = 0
    for index_suffix, _ in index.up_to(now):
        indexed, rest = index_suffix[:TIME_BYTES], index_suffix[TIME_BYTES:]
        key = key_group.to_bytes(_KEY_GROUP_BYTES, "big") + rest
        suffix = split(key).suffix
        entries = overlay.under(key[: len(key) - len(suffix)])
        kept = entries.get(suffix)
        # Stale or not: its time has come.
        index.delete(index_suffix)
        # The entry was deleted, or set anew under another time, which has its own index entry.
        if kept is None or kept[TIME_BYTES:HEADER_BYTES] != indexed:
            continue
        expiry = kept[:TIME_BYTES]
        if expiry <= now:
            entries.delete(suffix)
            removed += 1
        else:
            entries.put(suffix, expiry + expiry + kept[HEADER_BYTES:])
            index.put(expiry + rest, b"")
    return removed


def _index(overlay: Overlay, key_group: int) -> Entries:
    return overlay.under(entry_prefix(key_group, TTL_BY_EXPIRY, b""))
