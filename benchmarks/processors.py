"""The processors that are timed; Spark's workers import them from here, for both engines."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

TTL_MS = 3_600_000
"""Longer than any run: every update pays for the TTL, and no output depends on the clock."""

SESSION_GAP_MS = 10_000


class Count(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the count."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Adds the rows to the key's count and yields it."""
        known = self._count.get()
        count = (known[0] if known else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], n=count)

    def close(self) -> None:
        """Holds nothing that needs closing."""


class CountInPandas(Count):
    """Counts the rows of each key, given as pandas frames."""

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        """Adds the frames' rows to the key's count and yields it."""
        known = self._count.get()
        count = (known[0] if known else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "n": [count]})


class Total(StatefulProcessor):
    """Sums a column of each key's rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the total."""
        self._total = handle.getValueState("total", "n long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Adds the rows' values to the key's total and yields it."""
        known = self._total.get()
        total = (known[0] if known else 0) + sum(row.value for row in rows)
        self._total.update((total,))
        yield Row(key=key[0], n=total)

    def close(self) -> None:
        """Holds nothing that needs closing."""


class ItemCounts(StatefulProcessor):
    """Counts each key's rows by item, in a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the map."""
        self._counts = handle.getMapState("counts", "item long", "n long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Counts the rows in the map, then reads all of it; yields the highest count."""
        for row in rows:
            item = (row.item,)
            known = self._counts.getValue(item)
            self._counts.updateValue(item, ((known[0] if known else 0) + 1,))
        yield Row(key=key[0], n=max(n for (n,) in self._counts.values()))

    def close(self) -> None:
        """Holds nothing that needs closing."""


class Gather(StatefulProcessor):
    """Gathers each key's values in a list until a timer fires, in the batch after the first."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the list."""
        self._handle = handle
        self._values = handle.getListState("values", "value long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Appends the values; starts a timer where the list was empty. Yields nothing."""
        if not self._values.exists():
            # All of a batch has one time, so this timer is due in the next, whatever its delay.
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        for row in rows:
            self._values.appendValue((row.value,))
        return iter(())

    def handleExpiredTimer(
        self,
        key: Any,  # noqa: ANN401
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        """Yields how many values there are and their total, and forgets them."""
        values = [value for (value,) in self._values.get()]
        self._values.clear()
        yield Row(key=key[0], n=len(values), total=sum(values))

    def close(self) -> None:
        """Holds nothing that needs closing."""


class Sessions(StatefulProcessor):
    """Splits each key's rows into sessions by the gaps between their times."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the open session."""
        self._open = handle.getValueState("open", "first_ms long, last_ms long, n long", TTL_MS)

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Extends the open session; yields those that a gap has closed."""
        times_ms = sorted(row.time_ms for row in rows)
        first_ms, last_ms, n = self._open.get() or (times_ms[0], times_ms[0], 0)
        for time_ms in times_ms:
            if time_ms - last_ms > SESSION_GAP_MS:
                yield Row(key=key[0], first_ms=first_ms, last_ms=last_ms, n=n)
                first_ms, n = time_ms, 0
            last_ms, n = time_ms, n + 1
        self._open.update((first_ms, last_ms, n))

    def close(self) -> None:
        """Holds nothing that needs closing."""


class WindowCount(StatefulProcessor):
    """Counts the rows of a word in one tumbling window, until the watermark passes its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the count."""
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Adds the rows to the count."""
        known = self._count.get()
        if known is None:
            self._handle.registerTimer(key[1])
        self._count.update(((known[0] if known else 0) + sum(1 for _ in rows),))
        return iter(())

    def handleExpiredTimer(
        self,
        key: Any,  # noqa: ANN401
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        """Yields the window's count and forgets it."""
        known = self._count.get()
        self._count.clear()
        yield Row(word=key[0], window_end_ms=key[1], n=known[0] if known else 0)

    def close(self) -> None:
        """Holds nothing that needs closing."""


class ListedWindowCount(WindowCount):
    """Counts its calls besides, in a list of the subtask: state that belongs to one checkpoint.

    The operators of FLIP-306's job have such state, and its table counts the files of that alone.
    Spark has nothing of the kind.
    """

    def init(self, handle: Any) -> None:  # noqa: ANN401 - Spark's class has no operator lists
        """Declares the count and the list."""
        super().init(handle)
        self._calls = handle.getOperatorListState("calls", "n long")
        self._made = sum(made for (made,) in self._calls.get())

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Adds the rows to the count."""
        self._made += 1
        return super().handleInputRows(key, rows, timerValues)

    def close(self) -> None:
        """Keeps the number of calls."""
        self._calls.put([(self._made,)])


LATEST = StructType([StructField("value", LongType()), StructField("payload", BinaryType())])
"""Not as text, which only Spark can read: its state is made without Spark, too."""


class Latest(StatefulProcessor):
    """Keeps the newest row of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the row."""
        self._latest = handle.getValueState("latest", LATEST)

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Replaces the row; yields what tells the one before from others."""
        value, payload = self._latest.get() or (-1, b"")
        for row in rows:
            self._latest.update((row.value, bytes(row.payload)))
        yield Row(key=key[0], value=value, checksum=zlib.crc32(payload))

    def close(self) -> None:
        """Holds nothing that needs closing."""
