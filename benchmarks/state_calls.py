"""Prints what each state call costs in ns of CPU time, over a committed state in a dict.

Each call is made once per key, over many keys, as a processor does; the cost of setting the key
has its own line and is taken off the others.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator
from typing import Any

from cairn.state.codec import TupleCodec
from cairn.state.handle import StateHandle, VariableSpec
from cairn.state.view import PUT, Overlay

KEYS = 50_000
COUNT = {"fields": [{"name": "n", "type": "long", "nullable": True}]}
WORD = {"fields": [{"name": "w", "type": "string", "nullable": True}]}


class SortedState:
    """A Reader over sorted entries."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self._entries = entries
        self._keys = sorted(entries)
        self.get = entries.get

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries under a prefix."""
        position = bisect.bisect_left(self._keys, prefix)
        while position < len(self._keys) and self._keys[position].startswith(prefix):
            key = self._keys[position]
            yield key, self._entries[key]
            position += 1

    def last(self, prefix: bytes, /) -> bytes | None:
        """Returns the greatest key under a prefix."""
        position = bisect.bisect_left(self._keys, prefix + b"\xff" * 16)
        if position and self._keys[position - 1].startswith(prefix):
            return self._keys[position - 1]
        return None


def _specs() -> dict[str, VariableSpec]:
    return {
        "v": VariableSpec(name="v", kind="value", value_schema=COUNT, state_id=0),
        "l": VariableSpec(name="l", kind="list", value_schema=COUNT, state_id=1),
        "m": VariableSpec(
            name="m", kind="map", value_schema=COUNT, user_key_schema=WORD, state_id=2
        ),
    }


def _cost_ns(keys: list[bytes], handle: StateHandle, call: Callable[[], Any]) -> float:
    set_key = handle.set_key
    started = time.process_time_ns()
    for key in keys:
        set_key(1, key)
        call()
    return (time.process_time_ns() - started) / len(keys)


def _calls(handle: StateHandle) -> dict[str, Callable[[], Any]]:
    value = handle.getValueState("v", "n long")
    numbers = handle.getListState("l", "n long")
    by_word = handle.getMapState("m", "w string", "n long")

    def append_ten_times() -> None:
        for _ in range(10):
            numbers.appendValue((5,))

    return {
        "value.get, first": value.get,
        "value.exists": value.exists,
        "value.update": lambda: value.update((5,)),
        "value.get, changed": value.get,
        "list.appendValue, first": lambda: numbers.appendValue((5,)),
        "list.appendValue, 10 times": append_ten_times,
        "list.get of 11": lambda: list(numbers.get()),
        "list.put of 3": lambda: numbers.put([(1,), (2,), (3,)]),
        "map.getValue, first": lambda: by_word.getValue(("a",)),
        "map.updateValue": lambda: by_word.updateValue(("a",), (5,)),
        "map.getValue, changed": lambda: by_word.getValue(("a",)),
        "map.containsKey": lambda: by_word.containsKey(("b",)),
        "map.iterator": lambda: list(by_word.iterator()),
        "map.removeKey": lambda: by_word.removeKey(("a",)),
    }


def main() -> None:
    """Runs the benchmark; the second round has the first one's state committed."""
    codec = TupleCodec(WORD, name="key")
    keys = [codec.encode((f"user-{number}",)) for number in range(KEYS)]
    committed: dict[bytes, bytes] = {}
    for round_name in ("empty state", "committed state"):
        print(f"{round_name}, {KEYS} keys: ns per call")
        overlay = Overlay(SortedState(committed))
        handle = StateHandle(_specs(), overlay)
        calls = _calls(handle)
        base_ns = _cost_ns(keys, handle, lambda: None)
        print(f"  {'set_key and the call itself':28} {base_ns:8.0f}")
        for name, call in calls.items():
            print(f"  {name:28} {_cost_ns(keys, handle, call) - base_ns:8.0f}")
        started = time.process_time_ns()
        changes = overlay.changes()
        per_change_ns = (time.process_time_ns() - started) / len(changes)
        print(f"  {'overlay.changes, per change':28} {per_change_ns:8.0f}")
        for op, key, data in zip(changes.ops, changes.keys, changes.values, strict=True):
            if op == PUT and data is not None:
                committed[key] = data


if __name__ == "__main__":
    main()
