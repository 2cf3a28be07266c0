"""State of a million entries: what a call costs does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from cairn.state.codec import TupleCodec
from cairn.state.entries import entry_prefix, list_suffix
from cairn.state.handle import StateHandle, VariableSpec
from cairn.state.view import Overlay

MILLION = 1_000_000
NUMBER = {"fields": [{"name": "n", "type": "long", "nullable": True}]}
SPECS = {
    "l": VariableSpec(name="l", kind="list", value_schema=NUMBER, state_id=0),
    "m": VariableSpec(
        name="m", kind="map", value_schema=NUMBER, user_key_schema=NUMBER, state_id=1
    ),
}
KEY = (0, b"\x91\x01")
encode = TupleCodec(NUMBER, name="number").encode


class MillionEntries:
    """A Reader of a list and a map with the numbers below a million; counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def suffix(self, prefix: bytes, number: int) -> bytes:
        is_list = prefix == entry_prefix(KEY[0], 0, KEY[1])
        return list_suffix(number) if is_list else encode((number,))

    def get(self, key: bytes, /) -> bytes | None:
        self.reads += 1
        prefix = entry_prefix(KEY[0], 1, KEY[1])
        return encode((0,)) if key == prefix + self.suffix(prefix, 7) else None

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        for number in range(MILLION):
            self.reads += 1
            yield prefix + self.suffix(prefix, number), encode((number,))

    def last(self, prefix: bytes, /) -> bytes | None:
        self.reads += 1
        return prefix + self.suffix(prefix, MILLION - 1)


@pytest.mark.parametrize("changed", [False, True])
def test_calls_on_a_million_entries_read_only_what_they_give(*, changed: bool) -> None:
    committed = MillionEntries()
    handle = StateHandle(SPECS, Overlay(committed))
    numbers: Any = handle.getListState("l", "n long")
    by_number: Any = handle.getMapState("m", "n long", "n long")
    handle.set_key(*KEY)
    if changed:
        numbers.appendValue((MILLION,))
        by_number.removeKey((3,))
    assert numbers.exists()
    assert by_number.exists()
    numbers.appendValue((5,))
    assert list(islice(numbers.get(), 3)) == [(0,), (1,), (2,)]
    assert by_number.getValue((7,)) == (0,)
    assert not by_number.containsKey((-7,))
    by_number.updateValue((8,), (80,))
    by_number.removeKey((0,))
    expected = [(1,), (2,), (4,)] if changed else [(1,), (2,), (3,)]
    assert [key for key, _ in islice(by_number.iterator(), 3)] == expected
    assert list(islice(by_number.keys(), 3)) == expected
    assert committed.reads < 30


def test_a_value_of_64_mb_is_kept_whole() -> None:
    schema = {"fields": [{"name": "b", "type": "binary", "nullable": True}]}
    codec = TupleCodec(schema, name="blob")
    blob = bytes(64 << 20)
    assert codec.decode(codec.encode((blob,))) == (blob,)
