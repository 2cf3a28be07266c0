"""What transformWithState does, in plain Python: the semantics that both engines are held against.

Found out by running PySpark 4.3.0, and checked against it by the tests in this directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

Key = tuple[Any, ...]
Stamped = tuple[tuple[Any, ...], int]
"""A value and when it expires, in ms."""
NEVER_MS = 2**63 - 1


@dataclass(frozen=True)
class ScriptRow:
    """One input row: `at_ms` is its event time."""

    key: str | None
    calls: list[Any]
    at_ms: int | None = None


@dataclass
class Handle:
    """The state of all keys, the current key, and what time it is."""

    key: Key = ()
    processing_ms: int = -1
    watermark_ms: int = -1
    timers: dict[Key, set[int]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, List] = field(default_factory=dict)
    maps: dict[str, Map] = field(default_factory=dict)

    def getValueState(self, name: str, schema: str, ttl_ms: int | None = None) -> Value:
        return self.values.setdefault(name, Value(self, ttl_ms))

    def getListState(self, name: str, schema: str, ttl_ms: int | None = None) -> List:
        return self.lists.setdefault(name, List(self, ttl_ms))

    def getMapState(self, name: str, key: str, schema: str, ttl_ms: int | None = None) -> Map:
        return self.maps.setdefault(name, Map(self, ttl_ms))

    def registerTimer(self, expiry_ms: int) -> None:
        self.timers.setdefault(self.key, set()).add(expiry_ms)

    def deleteTimer(self, expiry_ms: int) -> None:
        self.timers.get(self.key, set()).discard(expiry_ms)

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.timers.get(self.key, ())))


class _Variable:
    def __init__(self, handle: Handle, ttl_ms: int | None) -> None:
        self._handle = handle
        self._ttl_ms = ttl_ms
        self._kept: dict[Key, dict[Any, Stamped]] = {}

    def exists(self) -> bool:
        return bool(self._alive())

    def clear(self) -> None:
        self._kept.pop(self._handle.key, None)

    def _alive(self) -> dict[Any, tuple[Any, ...]]:
        """Returns the current key's values that have not expired: those later than now."""
        kept = self._kept.get(self._handle.key, {})
        now_ms = self._handle.processing_ms
        return {name: value for name, (value, expiry) in kept.items() if expiry > now_ms}

    def _set(self, name: Any, value: tuple[Any, ...]) -> None:
        expiry = NEVER_MS if self._ttl_ms is None else self._handle.processing_ms + self._ttl_ms
        self._kept.setdefault(self._handle.key, {})[name] = (value, expiry)


class Value(_Variable):
    def get(self) -> tuple[Any, ...] | None:
        return self._alive().get("")

    def update(self, value: tuple[Any, ...]) -> None:
        self._set("", value)


class List(_Variable):
    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([*self._alive().values()])

    def put(self, values: Sequence[tuple[Any, ...]]) -> None:
        self.clear()
        self.appendList(values)

    def appendList(self, values: Sequence[tuple[Any, ...]]) -> None:
        for value in values:
            self.appendValue(value)

    def appendValue(self, value: tuple[Any, ...]) -> None:
        self._set(len(self._kept.get(self._handle.key, ())), value)


class Map(_Variable):
    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._alive().get(key)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return key in self._alive()

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._set(key, value)

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._kept.get(self._handle.key, {}).pop(key, None)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter([*self._alive().items()])

    def keys(self) -> Iterator[Any]:
        return iter([*self._alive()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([*self._alive().values()])


class Reference:
    """Runs batches of script rows. `delay_ms` is that of the watermark; None means there is none.

    `watermark_ms` is the first batch's: 0 in a stream, -1 on a batch DataFrame.

    `time_mode` is none, processingtime or eventtime, in lower case.
    """

    def __init__(
        self,
        new_processor: Callable[[], StatefulProcessor],
        time_mode: str,
        delay_ms: int | None = None,
        watermark_ms: int = 0,
    ) -> None:
        self._new_processor = new_processor
        self._time_mode = time_mode
        self._delay_ms = delay_ms
        self._handle = Handle()
        self._watermark_ms = self._late_ms = watermark_ms

    def run(
        self,
        rows: Sequence[ScriptRow],
        processing_ms: int,
        initial: Sequence[tuple[str | None, Any]] = (),
    ) -> dict[str | None, list[tuple[str, str]]]:
        """Runs one batch; returns `(call, result)` by key."""
        handle = self._handle
        if self._time_mode != "none":
            handle.processing_ms, handle.watermark_ms = processing_ms, self._watermark_ms
        times = TimerValues(handle.processing_ms, handle.watermark_ms)
        processor = self._new_processor()
        processor.init(handle)  # type: ignore[arg-type]  # the same methods, not the same class
        for key, row in initial:
            handle.key = (key,)
            processor.handleInitialState(handle.key, row, times)
        by_key: dict[str | None, list[Any]] = {}
        for row in rows:
            if not self._is_late(row):
                by_key.setdefault(row.key, []).append({"calls": json.dumps(row.calls)})
        output: list[Any] = []
        for name, calls in by_key.items():
            handle.key = (name,)
            output += processor.handleInputRows(handle.key, iter(calls), times)
        output += self._fire(processor, times)
        self._advance(rows)
        found: dict[str | None, list[tuple[str, str]]] = {}
        for result in output:
            found.setdefault(result["key"], []).append((result["call"], result["result"]))
        return found

    def _is_late(self, row: ScriptRow) -> bool:
        """Rows are late by the watermark of the batch before, which is one behind the timers'."""
        if self._time_mode != "eventtime" or self._delay_ms is None or row.at_ms is None:
            return False
        return row.at_ms <= self._late_ms

    def _fire(self, processor: StatefulProcessor, times: TimerValues) -> Iterator[Any]:
        """What is due is decided once, before the first timer fires."""
        handle = self._handle
        is_event_time = self._time_mode == "eventtime"
        now_ms = handle.watermark_ms if is_event_time else handle.processing_ms
        due = sorted(
            ((expiry, key) for key, timers in handle.timers.items() for expiry in timers),
            key=lambda timer: timer[0],
        )
        for expiry_ms, key in due if self._time_mode != "none" else ():
            if expiry_ms > now_ms:
                break
            handle.key = key
            yield from processor.handleExpiredTimer(
                key=key, timerValues=times, expiredTimerInfo=ExpiredTimerInfo(expiry_ms)
            )
            handle.key = key
            handle.deleteTimer(expiry_ms)

    def _advance(self, rows: Sequence[ScriptRow]) -> None:
        self._late_ms = self._watermark_ms
        seen = [row.at_ms for row in rows if row.at_ms is not None]
        if self._delay_ms is not None and seen:
            self._watermark_ms = max(self._watermark_ms, max(seen) - self._delay_ms)
