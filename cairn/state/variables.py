"""Value, list and map state as a stateful processor sees them, with Spark's names.

Each works on the current key, which the operator sets before it hands over the key's rows. What
belongs to a key (its prefix, its collection) is looked up at its first use under that key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from cairn.errors import BadInputError
from cairn.state.codec import TupleCodec
from cairn.state.entries import entry_prefix, list_sequence, list_suffix
from cairn.state.ttl import Ttl
from cairn.state.view import MISSING, Entries, Overlay

_value_of = itemgetter(1)
_suffix_of = itemgetter(0)
_NO_KEY: Any = object()


class CurrentKey:
    """The grouping key whose rows are being handled.

    `key` is a new pair of key group and key bytes each time it is set, None before.
    """

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: tuple[int, bytes] | None = None


class _Variable:
    __slots__ = ("_current", "_name", "_seen", "_state_id")

    def __init__(self, name: str, state_id: int, current: CurrentKey) -> None:
        self._name = name
        self._state_id = state_id
        self._current = current
        self._seen: tuple[int, bytes] | None = _NO_KEY
        """The key that the variable has looked up, compared by identity."""

    def _prefix(self) -> bytes:
        """Returns the prefix of the current key's entries."""
        key = self._current.key
        if key is None:
            raise BadInputError(
                f"state variable {self._name} was used outside of a key: state can be read and "
                "changed only while a key's rows are handled, not in init or close"
            )
        self._seen = key
        key_group, key_bytes = key
        return entry_prefix(key_group, self._state_id, key_bytes)


class ValueState(_Variable):
    """One tuple per key, as `pyspark.sql.streaming.stateful_processor.ValueState`."""

    __slots__ = ("_committed", "_decode", "_encode", "_entry", "_pending")

    def __init__(
        self, name: str, state_id: int, current: CurrentKey, overlay: Overlay, codec: TupleCodec
    ) -> None:
        super().__init__(name, state_id, current)
        # Bound once: processors ask for it with every read of every key.
        self._committed = overlay.reader.get
        self._pending = overlay.pending
        self._encode = codec.encode
        self._decode = codec.decode
        self._entry = b""

    def exists(self) -> bool:
        """Tells whether there is a value; `(None,)` is one."""
        return self._data() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Returns the value; None if there is none."""
        if self._seen is not self._current.key:
            self._entry = self._prefix()
        entry = self._entry
        data: bytes | None = self._pending.get(entry, MISSING)
        if data is MISSING:
            data = self._committed(entry)
        return None if data is None else self._decode(data)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Sets the value.

        Raises:
            BadInputError: the value does not fit the schema; nothing was changed.
            TypeError: the value is None.
        """
        if self._seen is not self._current.key:
            self._entry = self._prefix()
        self._pending[self._entry] = self._encode(newValue)

    def clear(self) -> None:
        """Removes the value, if there is one."""
        if self._seen is not self._current.key:
            self._entry = self._prefix()
        # A tombstone even if there is nothing: looking would cost a read.
        self._pending[self._entry] = None

    def _data(self) -> bytes | None:
        if self._seen is not self._current.key:
            self._entry = self._prefix()
        data: bytes | None = self._pending.get(self._entry, MISSING)
        return self._committed(self._entry) if data is MISSING else data


class Collection(_Variable):
    """A state variable whose entries are read and changed by their suffix.

    `access` is how entries are read: Entries as they are, or a Ttl, which hides expired ones.
    """

    __slots__ = ("_entries", "_exists", "_get", "_scan", "_under")

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        access: type[Entries] | Ttl,
    ) -> None:
        super().__init__(name, state_id, current)
        self._under: Callable[[bytes], Entries] = overlay.under
        self._entries: Entries = _NO_KEY
        self._get: Callable[[Entries, bytes], bytes | None] = access.get
        self._scan: Callable[[Entries], Iterator[tuple[bytes, bytes]]] = access.scan
        self._exists: Callable[[Entries], bool] = access.exists

    def _of_key(self) -> Entries:
        """Returns the current key's entries."""
        if self._seen is not self._current.key:
            self._entries = self._under(self._prefix())
        return self._entries

    def exists(self) -> bool:
        """Tells whether there is any element; `(None,)` is one."""
        return self._exists(self._of_key())


class ListState(Collection):
    """A list of tuples per key, as `pyspark.sql.streaming.stateful_processor.ListState`.

    Each element is an entry of its own, so appending does not read the list.
    """

    __slots__ = ("_decode", "_encode", "_next", "_next_of")

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        codec: TupleCodec,
        access: type[Entries] | Ttl = Entries,
    ) -> None:
        super().__init__(name, state_id, current, overlay, access)
        self._encode = codec.encode
        self._decode = codec.decode
        self._next = 0
        self._next_of: Entries | None = None
        """Whose next sequence number `_next` is."""

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Returns an iterator of the elements in order of insertion, as of this call."""
        return map(self._decode, map(_value_of, self._scan(self._of_key())))

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:
        """Replaces the list. An empty one clears it, where Spark 4.3 ends the query.

        Raises:
            BadInputError: an element does not fit the schema; nothing was changed.
        """
        # Before clearing: an element that does not fit leaves the list as it was.
        elements = [*map(self._encode, newState)]
        self.clear()
        self._append(elements)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Adds an element at the end.

        Raises:
            BadInputError: it does not fit the schema; nothing was changed.
            TypeError: it is None.
        """
        # First of all: an element that does not fit must not take a number.
        element = self._encode(newState)
        entries = self._of_key()
        if self._next_of is not entries:
            self._find_next(entries)
        entries.pending[list_suffix(self._next)] = element
        self._next += 1

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:
        """Adds elements at the end. None at all change nothing, where Spark 4.3 ends the query.

        Raises:
            BadInputError: an element does not fit the schema; nothing was changed.
        """
        self._append([*map(self._encode, newState)])

    def clear(self) -> None:
        """Removes all elements."""
        entries = self._of_key()
        entries.clear()
        self._next = 0
        self._next_of = entries

    def _append(self, elements: list[bytes]) -> None:
        entries = self._of_key()
        if self._next_of is not entries:
            self._find_next(entries)
        first = self._next
        self._next = first + len(elements)
        entries.pending.update(
            zip(map(list_suffix, range(first, self._next)), elements, strict=True)
        )

    def _find_next(self, entries: Entries) -> None:
        # One seek, however long the list: appending never reads it.
        last = entries.last()
        self._next = 0 if last is None else list_sequence(last) + 1
        self._next_of = entries


class MapState(Collection):
    """Tuples by user key per key, as `pyspark.sql.streaming.stateful_processor.MapState`.

    Iterators are in the order of the user keys' bytes, as of the call that made them.
    """

    __slots__ = ("_decode", "_decode_key", "_encode", "_encode_key", "_make_row")

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        codec: TupleCodec,
        user_key_codec: TupleCodec,
        access: type[Entries] | Ttl = Entries,
    ) -> None:
        super().__init__(name, state_id, current, overlay, access)
        self._encode = codec.encode
        self._decode = codec.decode
        self._make_row = codec.make_row
        self._encode_key = user_key_codec.encode
        self._decode_key = user_key_codec.decode

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Returns the value of a user key; None if there is none.

        Raises:
            BadInputError: the user key does not fit the schema.
        """
        data = self._get(self._of_key(), self._encode_key(key))
        if data is None:
            return None
        value = self._decode(data)
        # Only here does Spark give a row with field names.
        return self._make_row(*value) if self._make_row else value

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Tells whether a user key has a value.

        Raises:
            BadInputError: the user key does not fit the schema.
        """
        return self._get(self._of_key(), self._encode_key(key)) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Sets the value of a user key.

        Raises:
            BadInputError: the user key or the value does not fit its schema; nothing was changed.
            TypeError: one of them is None.
        """
        user_key = self._encode_key(key)
        self._of_key().pending[user_key] = self._encode(value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Returns an iterator of user keys and values."""
        decode_key, decode = self._decode_key, self._decode
        return ((decode_key(key), decode(data)) for key, data in self._scan(self._of_key()))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Returns an iterator of user keys."""
        return map(self._decode_key, map(_suffix_of, self._scan(self._of_key())))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Returns an iterator of values."""
        return map(self._decode, map(_value_of, self._scan(self._of_key())))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Removes a user key and its value, if it is there.

        Raises:
            BadInputError: the user key does not fit the schema.
        """
        self._of_key().delete(self._encode_key(key))

    def clear(self) -> None:
        """Removes all user keys."""
        self._of_key().clear()
