"""Processors that give values, moments and frames as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)


class Giving(StatefulProcessor):
    """Gives the same value for each row."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        for _ in rows:
            yield self._given

    def close(self) -> None:
        pass


class Passing(Giving):
    """Gives back the moments of its rows."""

    def __init__(self) -> None:
        super().__init__(None)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        for row in rows:
            if isinstance(row, pd.DataFrame):
                assert key[0] == row["at"][0]
                yield row[["id", "at", "ats"]]
            else:
                assert key[0] == row["at"]
                yield Row(id=row["id"], at=row["at"], ats=row["ats"])


class Keyed(Giving):
    """Gives what a map has under a user key that is text."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._map = handle.getMapState("map", "name string", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        self._map.updateValue(self._given, (1,))
        assert self._map.containsKey(self._given)
        yield Row(kept=str([*self._map.iterator()]))


class Framed(Giving):
    """Shows the frames of a key in the columns that the settings say."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        frames = list(rows)
        kinds = {str(frame["n"].dtype) for frame in frames}
        yield pd.DataFrame({"a": [12345], "b": [1.5], "c": [len(frames)], "d": [kinds.pop()]})


class ShowingKeys(Giving):
    """Shows a key, how often it was seen, and the columns of its rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        names = {" ".join(row.__fields__) for row in rows}
        yield Row(key=str(tuple(key)), names=str(*names))
