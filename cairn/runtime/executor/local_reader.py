"""Reading one snapshot of local state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain, islice

import lmdb

from cairn.errors import DamagedStateError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor import stored_keys
from cairn.runtime.executor.local_record import (
    RECORD_KEY,
    Digest,
    Position,
    Record,
    Weight,
    decode_record,
)
from cairn.runtime.executor.stored_keys import (
    HEAD_BYTES,
    PREFIX_LIMIT_BYTES,
    are_real,
    stored_key,
    stored_prefix,
    unpack,
)
from cairn.state.entries import key_group_bounds

_ENTRIES_PER_PAGE = 10_000
_BEHIND_ALL = b"\xff" * 3
"""Of key groups, which have two bytes."""


class LocalReader:
    """Reads of one snapshot; implements `cairn.state.view.Reader`."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        self.get: Callable[[bytes], bytes | None] = self._make_get()

    def record(self) -> Record:
        """Returns what the environment records of itself.

        Raises:
            DamagedStateError: the record is damaged.
        """
        return decode_record(self._transaction.get(RECORD_KEY))

    def position(self) -> Position | None:
        """Returns which checkpoint's state this is; None for an empty environment."""
        return self.record().position

    def weight(self) -> Weight:
        """Returns how much a restore of this state would read, as far as is known here."""
        return self.record().weight

    def _make_get(self) -> Callable[[bytes], bytes | None]:
        get: Callable[[bytes], bytes | None] = self._transaction.get

        def get_entry(key: bytes) -> bytes | None:
            if len(key) <= PREFIX_LIMIT_BYTES:
                return get(key)
            stored = stored_key(key)
            data = get(stored)
            return data if data is None or stored == key else unpack(data)[1]

        return get_entry

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of one grouping key and state, in key order.

        `prefix` is a result of `entry_prefix`. Reads only the entries that it yields, but for user
        keys that differ only where their hash is stored.
        """
        start = stored_prefix(prefix)
        alike: list[tuple[bytes, bytes]] = []
        head = b""
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for stored, value in cursor.iternext():
                if not stored.startswith(start):
                    break
                if alike and not stored.startswith(head):
                    yield from sorted(alike)
                    alike.clear()
                if len(stored) < HEAD_BYTES:
                    yield stored_keys.real_entry(stored, value)
                else:
                    head = stored[:HEAD_BYTES]
                    alike.append(stored_keys.real_entry(stored, value))
            yield from sorted(alike)

    def last(self, prefix: bytes) -> bytes | None:
        """Returns the greatest key that starts with the prefix; None if there is none.

        `prefix` is what `entry_prefix` returns, and the key at most 8 bytes more: a list's sequence
        number.
        """
        start = stored_prefix(prefix)
        with self._transaction.cursor() as cursor:
            # Behind every sequence number: those have 8 bytes.
            found = cursor.set_range(start + b"\xff" * 9)
            if not (cursor.prev() if found else cursor.last()):
                return None
            stored: bytes = cursor.key()
            return prefix + stored[len(start) :] if stored.startswith(start) else None

    def range(
        self, key_groups: KeyGroupRange, seen: Digest | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of some key groups; sorted but for keys over LMDB's limit.

        Costs no calls in Python for each entry whose key is stored as it is. What is read is added
        to `seen`, page by page, for `check`.
        """
        return chain.from_iterable(self._real_pages(*key_group_bounds(key_groups), seen))

    def check(self, seen: Digest) -> None:
        """Compares the digest of all entries, as they were read, with that of those written.

        Raises:
            DamagedStateError: they differ.
        """
        written = self.record().digest
        if seen != written:
            raise DamagedStateError(
                f"local state is not what was written: {seen.entries} entries with checksum "
                f"{seen.checksum:016x} found, {written.entries} with {written.checksum:016x} "
                "written"
            )

    def verify(self) -> None:
        """Reads all entries, and compares them with what was written.

        Raises:
            DamagedStateError: they differ.
        """
        seen = Digest()
        for _ in self._pages(RECORD_KEY + b"\x00", _BEHIND_ALL, seen):
            pass
        self.check(seen)

    def _real_pages(
        self, lower: bytes, upper: bytes, seen: Digest | None
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        for keys, page in self._pages(lower, upper, seen):
            yield page if are_real(keys) else [stored_keys.real_entry(*entry) for entry in page]

    def _pages(
        self, lower: bytes, upper: bytes, seen: Digest | None
    ) -> Iterator[tuple[list[bytes], list[tuple[bytes, bytes]]]]:
        """Yields some entries at a time as they are stored, after their keys."""
        with self._transaction.cursor() as cursor:
            entries = cursor.iternext() if cursor.set_range(lower) else iter(())
            while page := list(islice(entries, _ENTRIES_PER_PAGE)):
                is_last = page[-1][0] >= upper
                if is_last:
                    page = page[: bisect_left(page, (upper,))]
                keys = [key for key, _ in page]
                if seen is not None:
                    seen.add(keys, [value for _, value in page])
                yield keys, page
                if is_last:
                    return
