"""When the changes of a batch so far are worth an upload of their own (pre-emptive persist).

Changes are not counted one by one, which would cost every call of a processor. Their size is looked
at between keys, and again when they may be enough by the mean of a key's changes so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from cairn.state.view import Changes, Overlay

T = TypeVar("T")

LEAST_SHARE = 0.25
"""The least that is handed over at a time, as a share of all changes before.

Finding the new changes walks all changes of a batch. With this, all walks together cost a
constant per change, and a batch has tens of segments, however much it changes.
"""
_MOST_GROWTH = 15
"""Items until the next look, at most, as a multiple of those so far: the first may be small."""
_LEAST_GROWTH = 1 / 8
"""And at least, of those since changes were handed over."""


class Log(Protocol):
    """Takes a batch's changes, some at a time."""

    def append(self, changes: Changes) -> None:
        """Adds changes."""
        ...

    def preempt(self) -> None:
        """Begins to make the added changes durable."""
        ...


class PreemptivePersist:
    """Gives a log the changes of an overlay each time there are `threshold_bytes` more of them."""

    def __init__(self, overlay: Overlay, log: Log, threshold_bytes: int) -> None:
        self._overlay = overlay
        self._log = log
        self._threshold_bytes = threshold_bytes
        self._taken_bytes = 0
        self._items = self._items_since = 0
        self._per_item_bytes = 0.0
        self._allowed = 0

    def after_each(self, items: Iterable[T]) -> Iterator[T]:
        """Yields items, each of which changes the overlay before the next one is asked for."""
        items = iter(items)
        for item in items:
            yield item
            self._look()
            # In C: nothing is done in Python for each of these.
            yield from islice(items, self._allowed)

    def _look(self) -> None:
        """Hands over enough changes; sets how many items besides one are before the next look."""
        self._items += 1 + self._allowed
        self._items_since += 1 + self._allowed
        size_bytes = self._overlay.size_bytes
        wanted_bytes = max(self._threshold_bytes, LEAST_SHARE * self._taken_bytes)
        self._per_item_bytes = size_bytes / self._items_since
        if size_bytes >= wanted_bytes:
            self._log.append(self._overlay.take())
            self._log.preempt()
            self._taken_bytes += size_bytes
            self._items_since = size_bytes = 0
            wanted_bytes = max(self._threshold_bytes, LEAST_SHARE * self._taken_bytes)
        most, least = _MOST_GROWTH * self._items, _LEAST_GROWTH * self._items_since
        left_bytes = wanted_bytes - size_bytes
        expected = left_bytes / self._per_item_bytes if self._per_item_bytes else most
        self._allowed = int(max(least, min(expected, most)))
