"""Changing local state in the one write transaction, and its digest with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import lt
from typing import cast

import lmdb

from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_record import RECORD_KEY, Digest, Position, Record, Weight
from cairn.runtime.executor.stored_keys import (
    PREFIX_LIMIT_BYTES,
    stored_entry,
    stored_key,
    stored_prefix,
)
from cairn.state.entries import key_group_bounds
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes


class LocalWriter:
    """Changes of the one write transaction."""

    def __init__(self, transaction: lmdb.Transaction, entries: lmdb._Database) -> None:
        self._transaction = transaction
        self._entries = entries
        self.reader = LocalReader(transaction)
        record = self.reader.record()
        self._position, self._weight, self._digest = record.position, record.weight, record.digest

    def move_to(self, position: Position, weight: Weight | None = None) -> None:
        """Records which checkpoint's state the entries now are, and its weight if that is new."""
        self._position, self._weight = position, weight or self._weight

    def finish(self) -> None:
        """Writes the record, as the last of the changes."""
        record = Record(position=self._position, weight=self._weight, digest=self._digest)
        self._transaction.put(RECORD_KEY, record.encode())

    def clear(self, key_groups: KeyGroupRange) -> None:
        """Removes every entry of some key groups; where there are no others, page by page."""
        lower, upper = key_group_bounds(key_groups)
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(lower) or cursor.key() >= upper:
                return
            has_before = cursor.prev() and cursor.key() != RECORD_KEY
            has_after = cursor.last() and cursor.key() >= upper
            if has_before or has_after:
                found = cursor.set_range(lower)
                while found and cursor.key() < upper:
                    found = self._delete_at(cursor)
                return
        # Dropping the database frees whole pages. It takes the record, too, which is put last.
        self._transaction.drop(self._entries, delete=False)
        self._digest = Digest()

    def apply(self, changes: Changes) -> None:
        """Applies a segment's changes in order.

        Raises:
            ValueError: a put has no value.
        """
        for some in _ascending(changes):
            self._apply(some)

    def _apply(self, changes: Changes) -> None:
        """Applies changes of ascending keys: each key once, and a prefix before what is under it.

        So in any order that has the prefixes first, the result is the same.
        """
        keys, values = changes.keys, changes.values
        with self._transaction.cursor() as cursor:
            if any(changes.ops):  # PUT is 0
                ops = changes.ops
                for op, key in zip(ops, keys, strict=True):
                    if op == DELETE_PREFIX:
                        self._delete_prefix(cursor, stored_prefix(key))
                self._delete_all(
                    cursor, [key for op, key in zip(ops, keys, strict=True) if op == DELETE]
                )
                values = [value for op, value in zip(ops, values, strict=True) if op == PUT]
                keys = [key for op, key in zip(ops, keys, strict=True) if op == PUT]
            if keys:
                if None in values:
                    raise ValueError("a put without a value")
                self._put_all(cursor, keys, cast(list[bytes], values))

    def _put_all(self, cursor: lmdb.Cursor, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Puts entries, a base's into an empty range without a search for each one's place.

        Nothing is done in Python for each entry whose key is stored as it is.
        """
        is_long = max(map(len, keys)) > PREFIX_LIMIT_BYTES
        if is_long:
            keys, values = zip(*map(stored_entry, keys, values), strict=True)
        # Long keys are in another order.
        is_behind = not is_long and (not cursor.last() or cursor.key() < keys[0])
        if not is_behind:
            self._digest.remove(cursor.getmulti(keys))
        cursor.putmulti(zip(keys, values, strict=True), append=is_behind)
        self._digest.add(keys, values)

    def _delete_all(self, cursor: lmdb.Cursor, keys: Sequence[bytes]) -> None:
        found = cursor.getmulti([stored_key(key) for key in keys])
        self._digest.remove(found)
        for stored, _ in found:
            self._transaction.delete(stored)

    def _delete_prefix(self, cursor: lmdb.Cursor, start: bytes) -> None:
        found = cursor.set_range(start)
        while found and cursor.key().startswith(start):
            found = self._delete_at(cursor)

    def _delete_at(self, cursor: lmdb.Cursor) -> bool:
        """Deletes the entry at the cursor; tells whether there is a next one, where it is then."""
        self._digest.remove([cursor.item()])
        # Behind the last entry there is none, and the key is empty.
        return bool(cursor.delete()) and cursor.key() != b""


def _ascending(changes: Changes) -> Iterator[Changes]:
    """Yields the changes in parts whose keys are strictly ascending: nearly all are one part."""
    keys = changes.keys
    if all(map(lt, keys, islice(keys, 1, None))):
        yield changes
        return
    starts = [0, *(place for place in range(1, len(keys)) if keys[place - 1] >= keys[place])]
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        yield Changes(changes.ops[start:end], keys[start:end], changes.values[start:end])
