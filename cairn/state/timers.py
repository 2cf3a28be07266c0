"""Timers: a set of times per key, kept by key and by expiry.

Both are collections of an Overlay, so timers are read, changed, snapshot and moved between
subtasks as all state is. A timer is in both or in neither.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from cairn.keygroups import KeyGroupRange
from cairn.state.entries import (
    TIME_BYTES,
    TIMERS,
    TIMERS_BY_EXPIRY,
    decode_time,
    encode_time,
    entry_prefix,
)
from cairn.state.view import Entries, Overlay


class Timers:
    """The timers of all keys over a batch's overlay. Times are in ms, any that Spark's long has."""

    __slots__ = ("_overlay",)

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def register(self, key_group: int, key_bytes: bytes, expiry_ms: int) -> None:
        """Adds a timer; one that is there already changes nothing."""
        expiry = encode_time(expiry_ms)
        of_key = self._of_key(key_group, key_bytes)
        # So that a timer that is registered again in every batch is written once.
        if of_key.get(expiry) is None:
            of_key.put(expiry, b"")
            self._by_expiry(key_group).put(expiry + key_bytes, b"")

    def delete(self, key_group: int, key_bytes: bytes, expiry_ms: int) -> None:
        """Removes a timer, if it is there."""
        expiry = encode_time(expiry_ms)
        of_key = self._of_key(key_group, key_bytes)
        if of_key.get(expiry) is not None:
            of_key.delete(expiry)
            self._by_expiry(key_group).delete(expiry + key_bytes)

    def exists(self, key_group: int, key_bytes: bytes, expiry_ms: int) -> bool:
        """Tells whether a timer is there."""
        return self._of_key(key_group, key_bytes).get(encode_time(expiry_ms)) is not None

    def of_key(self, key_group: int, key_bytes: bytes) -> Iterator[int]:
        """Returns an iterator of a key's timers, ascending, as of this call."""
        return (decode_time(suffix) for suffix, _ in self._of_key(key_group, key_bytes).scan())

    def due(self, key_groups: KeyGroupRange, until_ms: int) -> Iterator[tuple[int, int, bytes]]:
        """Returns an iterator of `(expiry_ms, key_group, key_bytes)`, ascending, as of this call.

        A timer is due if its expiry is `until_ms` or earlier. Costs a seek per key group, when the
        first is asked for, and the due timers. Timers that fire are not removed.
        """
        until = encode_time(until_ms)
        # Lazy: the timers that are due are not held in memory, and Spark fires them by expiry.
        return heapq.merge(
            *[
                self._due_in(key_group, until)
                for key_group in range(key_groups.start, key_groups.end)
            ]
        )

    def _due_in(self, key_group: int, until: bytes) -> Iterator[tuple[int, int, bytes]]:
        return (
            (decode_time(suffix), key_group, suffix[TIME_BYTES:])
            for suffix, _ in self._by_expiry(key_group).up_to(until)
        )

    def _of_key(self, key_group: int, key_bytes: bytes) -> Entries:
        return self._overlay.under(entry_prefix(key_group, TIMERS, key_bytes))

    def _by_expiry(self, key_group: int) -> Entries:
        return self._overlay.under(entry_prefix(key_group, TIMERS_BY_EXPIRY, b""))
