"""Value, list and map state whose entries expire. Each entry has its own expiry."""

from __future__ import annotations

from typing import Any

from cairn.state.codec import TupleCodec
from cairn.state.entries import list_suffix
from cairn.state.ttl import Ttl
from cairn.state.variables import Collection, CurrentKey, ListState, MapState
from cairn.state.view import Overlay

_NO_SUFFIX = b""


class TtlValueState(Collection):
    """ValueState with TTL. Its one entry is a collection's, as all entries with TTL are."""

    __slots__ = ("_decode", "_encode", "_ttl")

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        codec: TupleCodec,
        ttl: Ttl,
    ) -> None:
        super().__init__(name, state_id, current, overlay, ttl)
        self._encode = codec.encode
        self._decode = codec.decode
        self._ttl = ttl

    def get(self) -> tuple[Any, ...] | None:
        """Returns the value; None if there is none, or it has expired."""
        data = self._ttl.get(self._of_key(), _NO_SUFFIX)
        return None if data is None else self._decode(data)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Sets the value, and when it expires.

        Raises:
            BadInputError: the value does not fit the schema; nothing was changed.
            TypeError: the value is None.
        """
        entries = self._of_key()
        self._ttl.put(entries, _NO_SUFFIX, self._encode(newValue))

    def clear(self) -> None:
        """Removes the value, if there is one."""
        self._of_key().delete(_NO_SUFFIX)


class TtlListState(ListState):
    """ListState with TTL: each element expires on its own."""

    __slots__ = ("_ttl",)

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        codec: TupleCodec,
        ttl: Ttl,
    ) -> None:
        super().__init__(name, state_id, current, overlay, codec, ttl)
        self._ttl = ttl

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Adds an element at the end; otherwise as ListState."""
        self._append([self._encode(newState)])

    def _append(self, elements: list[bytes]) -> None:
        entries = self._of_key()
        if self._next_of is not entries:
            self._find_next(entries)
        # `add`, not `put`: the number is new, so nothing has to be read.
        for sequence, element in enumerate(elements, self._next):
            self._ttl.add(entries, list_suffix(sequence), element)
        self._next += len(elements)


class TtlMapState(MapState):
    """MapState with TTL: each user key expires on its own."""

    __slots__ = ("_ttl",)

    def __init__(
        self,
        name: str,
        state_id: int,
        current: CurrentKey,
        overlay: Overlay,
        codec: TupleCodec,
        user_key_codec: TupleCodec,
        ttl: Ttl,
    ) -> None:
        super().__init__(name, state_id, current, overlay, codec, user_key_codec, ttl)
        self._ttl = ttl

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Sets the value of a user key, and when it expires; otherwise as MapState."""
        user_key = self._encode_key(key)
        self._ttl.put(self._of_key(), user_key, self._encode(value))
