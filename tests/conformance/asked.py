"""Processors that ask Spark what docs/deviations.md says of it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues
from pyspark.sql.types import LongType, StructField, StructType, VariantVal

from tests.conformance.givers import Giving

FAR_MS = 4_102_444_800_000
IN_TOKYO = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=9)))
NOT_NULL = StructType([StructField("v", LongType(), nullable=False)])
KEPT: dict[str, tuple[Any, Any]] = {
    "interval": ("v interval day to second", datetime.timedelta(days=1, microseconds=5)),
    "variant": ("v variant", VariantVal.parseJson('{"a": 1}')),
    "key_with_array": ("v map<array<int>, int>", {}),
    "int_in_double": ("v double", 1),
    "text_in_long": ("v long", "x"),
    "too_large": ("v tinyint", 300),
    "null": (NOT_NULL, None),
    "aware": ("v timestamp_ntz", IN_TOKYO),
}
"""State variables: the schema of each, and what is put into it."""


class Keeping(Giving):
    """Shows what the variables of `KEPT` give back."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._variables = {n: handle.getValueState(n, kind) for n, (kind, _) in KEPT.items()}

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        for name, (_, value) in KEPT.items():
            self._variables[name].update((value,))
            kept = self._variables[name].get()
            yield Row(name=name, kept=str(kept and kept[0]))


class Declaring(Giving):
    """Does in `init` what the name says, and shows the variable `v`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._v = _DECLARING[self._given](handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        if self._given == "text as a user key":
            self._v.updateValue("ab", (1,))
        found = self._v.get()
        self._v.update((1,))
        yield Row(name="v", kept=str(found))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        self._v.update((initialState["n"],))


class Looking(Giving):
    """Shows keys, and the classes of what rows hold."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        kinds = [[type(row[name]).__name__ for name in ("s", "m")] for row in rows]
        yield Row(name=str(key), kept=str(kinds))


class LookingInFrames(Giving):
    """Shows keys and the columns of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        names = [list(frame.columns) for frame in rows]
        yield pd.DataFrame({"name": [str(key)], "kept": [str(names)]})


class Timing(Giving):
    """Shows the order of timers, and a value whose expiry exceeds 64 bits."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._v = handle.getValueState("v", "n int", 2**63 - 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        for expiry in (5000, -5, 300, 0):
            self._handle.registerTimer(FAR_MS + expiry)
        timers = [expiry - FAR_MS for expiry in self._handle.listTimers()]
        self._v.update((1,))
        yield Row(name=str(timers == sorted(timers)), kept=str(self._v.get()))


class Watermarked(Giving):
    """Shows the watermark."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        yield Row(name=key[0], kept=str(timerValues.getCurrentWatermarkInMs()))


def _deleted_then_declared(handle: StatefulProcessorHandle) -> Any:
    handle.deleteIfExists("v")
    return handle.getValueState("v", "n int")


def _declared_then_deleted(handle: StatefulProcessorHandle) -> Any:
    declared = handle.getValueState("v", "n int")
    handle.deleteIfExists("v")
    return declared


def _raise(_: StatefulProcessorHandle) -> Any:
    raise ValueError("boom in init")


_DECLARING: dict[str, Callable[[StatefulProcessorHandle], Any]] = {
    "deleted, then declared": _deleted_then_declared,
    "declared, then deleted": _declared_then_deleted,
    "char": lambda handle: handle.getValueState("v", "v char(3)"),
    "time": lambda handle: handle.getValueState("v", "v time(6)"),
    "year-month interval": lambda handle: handle.getValueState("v", "v interval year to month"),
    "day-time interval": lambda handle: handle.getValueState("v", "v interval day to second"),
    "variant": lambda handle: handle.getValueState("v", "v variant"),
    "a TTL below 0": lambda handle: handle.getValueState("v", "n int", -1),
    "an error": _raise,
    "text as a user key": lambda handle: handle.getMapState("v", "a string", "n int"),
    "nothing else": lambda handle: handle.getValueState("v", "n int"),
}
