"""Prints what each state call costs in ns of CPU time, over a committed state in a dict.

Each call is made once per key, over many keys, as a processor does; the cost of setting the key
has its own line and is taken off the others.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cairn.keygroups import KeyGroupRange
from cairn.state.codec import TupleCodec
from cairn.state.handle import StateHandle, StateKind, VariableSpec
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import purge_expired
from cairn.state.view import PUT, Overlay

KEYS = 50_000
KINDS: dict[str, StateKind] = {"value": "value", "list": "list", "map": "map"}
KEY_GROUPS = KeyGroupRange(0, 8)
TTL_MS = 1_000
T = TypeVar("T")
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
    declared: list[tuple[str, StateKind, int | None]] = [
        (name + suffix, kind, ttl_ms)
        for suffix, ttl_ms in (("", None), (" with TTL", TTL_MS))
        for name, kind in KINDS.items()
    ]
    return {
        name: VariableSpec(
            name=name,
            kind=kind,
            value_schema=COUNT,
            user_key_schema=WORD if kind == "map" else None,
            ttl_ms=ttl_ms,
            state_id=state_id,
        )
        for state_id, (name, kind, ttl_ms) in enumerate(declared)
    }


def _cost_ns(keys: list[bytes], handle: StateHandle, call: Callable[[], Any]) -> float:
    set_key = handle.set_key
    started = time.process_time_ns()
    for key in keys:
        set_key(1, key)
        call()
    return (time.process_time_ns() - started) / len(keys)


def _calls(handle: StateHandle) -> dict[str, Callable[[], Any]]:
    value = handle.getValueState("value", "n long")
    numbers = handle.getListState("list", "n long")
    by_word = handle.getMapState("map", "w string", "n long")

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


def _calls_in_time(handle: StateHandle, now_ms: int) -> dict[str, Callable[[], Any]]:
    value = handle.getValueState("value with TTL", "n long", TTL_MS)
    numbers = handle.getListState("list with TTL", "n long", TTL_MS)
    by_word = handle.getMapState("map with TTL", "w string", "n long", TTL_MS)
    return {
        "TTL value.get, first": value.get,
        "TTL value.update": lambda: value.update((5,)),
        "TTL value.get, changed": value.get,
        "TTL list.appendValue": lambda: numbers.appendValue((5,)),
        "TTL list.get": lambda: list(numbers.get()),
        "TTL map.getValue, first": lambda: by_word.getValue(("a",)),
        "TTL map.updateValue": lambda: by_word.updateValue(("a",), (5,)),
        "TTL map.getValue, changed": lambda: by_word.getValue(("a",)),
        "registerTimer, new": lambda: handle.registerTimer(now_ms + 10),
        "registerTimer, there": lambda: handle.registerTimer(now_ms + 10),
        "listTimers": lambda: list(handle.listTimers()),
        "deleteTimer": lambda: handle.deleteTimer(now_ms + 10),
        "registerTimer, due": lambda: handle.registerTimer(now_ms),
    }


def _timed(name: str, run: Callable[[], T], count: Callable[[T], int]) -> T:
    started = time.process_time_ns()
    result = run()
    spent_ns = time.process_time_ns() - started
    print(f"  {name:28} {spent_ns / max(count(result), 1):8.0f}  each of {count(result)}")
    return result


def _round(keys: list[bytes], committed: dict[bytes, bytes], now_ms: int) -> None:
    """Prints the costs of one batch at a time, and commits its puts."""
    overlay = Overlay(SortedState(committed))
    times = BatchTimes(TimeMode.PROCESSING_TIME, now_ms, 0)
    handle = StateHandle(_specs(), overlay, times=times)
    calls = _calls(handle) | _calls_in_time(handle, now_ms)
    base_ns = _cost_ns(keys, handle, lambda: None)
    print(f"  {'set_key and the call itself':28} {base_ns:8.0f}")
    for name, call in calls.items():
        print(f"  {name:28} {_cost_ns(keys, handle, call) - base_ns:8.0f}")
    timers = Timers(overlay)
    _timed("due timers", lambda: list(timers.due(KEY_GROUPS, now_ms)), len)
    _timed("TTL purge", lambda: purge_expired(overlay, KEY_GROUPS, now_ms), int)
    changes = _timed("overlay.changes", overlay.changes, len)
    for op, key, data in zip(changes.ops, changes.keys, changes.values, strict=True):
        if op == PUT and data is not None:
            committed[key] = data


def main() -> None:
    """Runs the benchmark; later rounds have the earlier ones' state committed."""
    codec = TupleCodec(WORD, name="key")
    keys = [codec.encode((f"user-{number}",)) for number in range(KEYS)]
    committed: dict[bytes, bytes] = {}
    for now_ms, round_name in (
        (0, "empty state"),
        (TTL_MS // 2, "committed state"),
        (2 * TTL_MS, "committed state, what has TTL is expired"),
    ):
        print(f"{round_name}, {KEYS} keys: ns per call")
        _round(keys, committed, now_ms)


if __name__ == "__main__":
    main()
