"""A processor that does the calls which its input rows carry, and yields what each call gave.

A call is a JSON list: a state variable's name, `handle`, or one of the words below; then the
method; then its arguments. JSON lists become tuples, lists of lists become lists of tuples.

    ["value", "update", [1]]        ["map", "updateValue", ["a", 1], [2]]      ["list", "get"]
    ["handle", "registerTimer", 5]  ["in", 1000]: a timer so many ms after the batch's time
    ["on", 5, calls]: what to do when timer 5 fires
    ["times"]: the batch's processing time and watermark
    ["try", call]: whether a call raises; the message goes to the column `note`
    ["grow"], ["empty"]: append to the list, and remove from the map, while reading them

Nothing here knows which engine it runs on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

Call: TypeAlias = list[Any]

INPUT = "key string, at_ms long, calls string"
OUTPUT = "key string, call string, result string, note string"
VALUE, LIST = "n long, s string", "n long"
USER_KEY, USER_VALUE = "a string, b int", "n long"


def dump(*, timers: bool = False, ttl: bool = False) -> list[Call]:
    """Returns calls that show all state of a key."""
    calls: list[Call] = []
    for suffix in ("", "_ttl") if ttl else ("",):
        calls += [["value" + suffix, method] for method in ("exists", "get")]
        calls += [["list" + suffix, method] for method in ("exists", "get")]
        calls += [["map" + suffix, m] for m in ("exists", "iterator", "keys", "values")]
    if timers:
        calls.append(["handle", "listTimers"])
    return calls


class Interpreter(StatefulProcessor):
    """The Row form. With `ttl_ms` there is a second set of variables that have it."""

    def __init__(self, ttl_ms: int | None = None) -> None:
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._targets: dict[str, Any] = {
            "handle": handle,
            "value": handle.getValueState("value", VALUE),
            "list": handle.getListState("list", LIST),
            "map": handle.getMapState("map", USER_KEY, USER_VALUE),
        }
        if self._ttl_ms is not None:
            self._targets |= {
                "value_ttl": handle.getValueState("value_ttl", VALUE, self._ttl_ms),
                "list_ttl": handle.getListState("list_ttl", LIST, self._ttl_ms),
                "map_ttl": handle.getMapState("map_ttl", USER_KEY, USER_VALUE, self._ttl_ms),
            }
        self._plans = handle.getMapState("plans", "expiry_ms long", "calls string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        return self._work(key, (row["calls"] for row in rows), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Any:
        return self._fire(key, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        for calls in _calls(initialState):
            for _ in self._work(key, [calls], timerValues):
                pass

    def close(self) -> None:
        pass

    def _work(self, key: Any, rows: Iterable[str], times: TimerValues) -> Iterator[Row]:
        for calls in rows:
            for call in json.loads(calls):
                result, note = self._do(call, times)
                yield _row(key, json.dumps(call), result, note)

    def _fire(self, key: Any, times: TimerValues, expiry_ms: int) -> Iterator[Row]:
        yield _row(key, "fired", str(expiry_ms))
        plan = self._plans.getValue((expiry_ms,))
        if plan is not None:
            yield from self._work(key, [plan[0]], times)

    def _do(self, call: Call, times: TimerValues) -> tuple[str, str]:
        target, *rest = call
        processing_ms = times.getCurrentProcessingTimeInMs()
        if target == "times":
            return f"{processing_ms} {times.getCurrentWatermarkInMs()}", ""
        if target == "in":
            self._targets["handle"].registerTimer(processing_ms + rest[0])
        elif target == "on":
            self._plans.updateValue((rest[0],), (json.dumps(rest[1]),))
        elif target == "grow":
            return str([self._grow(element) for element in self._targets["list"].get()]), ""
        elif target == "empty":
            found = [self._targets["map"].removeKey(k) for k, _ in self._targets["map"].iterator()]
            return str(len(found)), ""
        elif target == "try":
            return self._try(rest[0], times)
        else:
            method = getattr(self._targets[target], rest[0])
            return show(method(*map(_argument, rest[1:])), is_map=target.startswith("map")), ""
        return "", ""

    def _grow(self, element: tuple[int]) -> int:
        self._targets["list"].appendValue((element[0] + 100,))
        return element[0]

    def _try(self, call: Call, times: TimerValues) -> tuple[str, str]:
        try:
            return self._do(call, times)
        except Exception as error:  # noqa: BLE001 - each engine has classes of its own
            return "raised", f"{type(error).__name__}: {error}"


class InterpreterInPandas(Interpreter):
    """The pandas form."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        calls = (calls for frame in rows for calls in frame["calls"])
        return _frames(self._work(key, calls, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Any:
        return _frames(self._fire(key, timerValues, expiredTimerInfo.getExpiryTimeInMs()))


def show(result: Any, *, is_map: bool = False) -> str:
    """Returns text that is equal for equal results; a map's elements and timers have no order."""
    if hasattr(result, "__next__"):
        found = [*result]
        is_unordered = is_map or all(isinstance(element, int) for element in found)
        return show(sorted(found, key=repr) if is_unordered else found)
    if isinstance(result, tuple):
        return f"({', '.join(map(show, result))},)"
    if isinstance(result, list):
        return f"[{', '.join(map(show, result))}]"
    return "" if result is None else repr(result)


def _argument(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [*map(tuple, value)] if value and isinstance(value[0], list) else tuple(value)


def _calls(initial: Any) -> list[str]:
    return [*initial["calls"]] if isinstance(initial, pd.DataFrame) else [initial["calls"]]


def _row(key: Any, call: str, result: str, note: str = "") -> Row:
    return Row(key=key[0], call=call, result=result, note=note)


def _frames(rows: Iterator[Row]) -> Iterator[pd.DataFrame]:
    found = [*rows]
    if found:
        yield pd.DataFrame(found, columns=["key", "call", "result", "note"])
