"""Processors for what a script cannot say: types, event times that are emitted, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

TYPED_OUTPUT = "id long, what string, value string, python_type string"
STAMPED_OUTPUT = "key string, at timestamp, watermark_ms long"
COUNTED_OUTPUT = "key string, rows int, total int"
ERROR_OUTPUT = "key string, n long"


def canonical(value: Any, data_type: DataType) -> str:
    """Returns text that is equal for equal values, however an engine gives them in Python.

    Spark gives structs in rows as dicts, maps as lists of pairs, and timestamps with a time zone.
    """
    if value is None:
        return "null"
    if isinstance(data_type, StructType):
        values = [value[field.name] for field in data_type]
        shown = map(canonical, values, [field.dataType for field in data_type])
        return "{" + ", ".join(shown) + "}"
    if isinstance(data_type, MapType):
        types = (data_type.keyType, data_type.valueType)
        pairs = value.items() if isinstance(value, dict) else value
        return str(sorted(" -> ".join(map(canonical, pair, types)) for pair in pairs))
    if isinstance(data_type, ArrayType):
        return str([canonical(element, data_type.elementType) for element in value])
    if isinstance(data_type, TimestampType):
        return repr(value.astimezone(UTC).replace(tzinfo=None))
    return repr(value)


def storable(value: Any, data_type: DataType) -> Any:
    """Returns a value of an input row as state takes it in both engines."""
    if value is None:
        return None
    if isinstance(data_type, StructType):
        return tuple(storable(value[field.name], field.dataType) for field in data_type)
    if isinstance(data_type, MapType):
        pairs = value.items() if isinstance(value, dict) else value
        key_type, value_type = data_type.keyType, data_type.valueType
        return {storable(k, key_type): storable(v, value_type) for k, v in pairs}
    if isinstance(data_type, ArrayType):
        return [storable(element, data_type.elementType) for element in value]
    return value


class Typed(StatefulProcessor):
    """Shows each column of a row, and of the row before that state kept."""

    def __init__(self, kept: StructType, user_key: StructType, schema: StructType) -> None:
        self._kept = kept
        self._user_key = user_key
        self._schema = schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", self._kept)
        self._list = handle.getListState("list", self._kept)
        self._map = handle.getMapState("map", self._user_key, self._kept)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        for row in rows:
            cells = [row[name] for name in self._schema.names]
            yield from self._shown(key[0], "row", cells, self._schema)
            yield from self._shown(key[0], "value", self._value.get(), self._kept)
            for element in self._list.get():
                yield from self._shown(key[0], "list", element, self._kept)
            user_key = self._tuple(row, self._user_key)
            yield from self._shown(key[0], "map", self._map.getValue(user_key), self._kept)
            for found, _ in self._map.iterator():
                yield from self._shown(key[0], "user key", found, self._user_key)
            kept = self._tuple(row, self._kept)
            self._value.update(kept)
            self._list.put([kept])
            self._map.updateValue(user_key, kept)

    def close(self) -> None:
        pass

    @staticmethod
    def _tuple(row: Any, schema: StructType) -> tuple[Any, ...]:
        return tuple(storable(row[field.name], field.dataType) for field in schema)

    @staticmethod
    def _shown(key: int, where: str, values: Any, schema: StructType) -> Iterator[Row]:
        for field, value in zip(schema, values or (), strict=values is not None):
            yield Row(
                id=key,
                what=f"{where} {field.name}",
                value=canonical(value, field.dataType),
                python_type=type(value).__name__,
            )


class Counting(StatefulProcessor):
    """Counts rows by key, and shows the key."""

    def __init__(self, key_schema: StructType) -> None:
        self._key_schema = key_schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        count = sum(1 for _ in rows)
        total = (self._total.get() or (0,))[0] + count
        self._total.update((total,))
        shown = [
            canonical(v, field.dataType) for v, field in zip(key, self._key_schema, strict=True)
        ]
        yield Row(key=" ".join(shown), rows=count, total=total)

    def close(self) -> None:
        pass


class Stamped(StatefulProcessor):
    """Emits a row at each second that an input row names, and shows the watermark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        for row in rows:
            for text in row["calls"].split():
                moment = None if text == "null" else datetime.fromtimestamp(float(text), UTC)
                watermark_ms = timerValues.getCurrentWatermarkInMs()
                yield Row(key=key[0], at=moment, watermark_ms=watermark_ms)

    def close(self) -> None:
        pass


class Versioned(StatefulProcessor):
    """Counts calls in the state variables of this version of it, and shows what it found."""

    def __init__(self, *names: str, deleted: tuple[str, ...] = ()) -> None:
        self._names = names
        self._deleted = deleted

    def init(self, handle: StatefulProcessorHandle) -> None:
        for name in self._deleted:
            handle.deleteIfExists(name)
        self._counts = {name: handle.getValueState(name, "n long") for name in self._names}

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        found = {name: state.get() for name, state in self._counts.items()}
        for name, state in self._counts.items():
            state.update(((found[name] or (0,))[0] + 1,))
        return iter([Row(key=name, n=value and value[0]) for name, value in found.items()])

    def close(self) -> None:
        pass


class Without:
    """What Spark takes too: a class of its own that defines the methods."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> tuple[Row, ...]:
        return (Row(n=sum(1 for _ in rows), key=key[0]), Row(key="no n"))

    def close(self) -> None:
        pass


class Faulty(StatefulProcessor):
    """Does one wrong thing, by name."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("known", "n long")
        if do := _IN_INIT.get(self._fault):
            do(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        if self._fault in _RESULTS:
            return _RESULTS[self._fault]
        if self._fault.endswith("in timer"):
            self._handle.registerTimer(-1)
        return self._work()

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Any:
        if self._fault == "none in timer":
            return None
        raise ValueError("boom in timer")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        raise ValueError("boom in initial state")

    def close(self) -> None:
        if self._fault == "raise in close":
            raise ValueError("boom in close")

    def _work(self) -> Iterator[Row]:
        yield Row(key="first", n=1)
        if self._fault == "raise in rows":
            raise ValueError("boom in rows")

    def read(self, handle: StatefulProcessorHandle) -> None:
        self._state.get()

    def boom(self, handle: StatefulProcessorHandle) -> None:
        raise ValueError("boom in init")


_IN_INIT: dict[str, Callable[[Faulty, StatefulProcessorHandle], object]] = {
    "raise in init": Faulty.boom,
    "declared twice": lambda _, handle: handle.getListState("known", "n long"),
    "schema that is none": lambda _, handle: handle.getValueState("other", "n lonk"),
    "timer in init": lambda _, handle: handle.registerTimer(5),
    "state in init": Faulty.read,
    "ttl below 1": lambda _, handle: handle.getValueState("other", "n long", -1),
    "ttl of text": lambda _, handle: handle.getValueState("other", "n long", "1"),  # type: ignore[arg-type]
    "ttl": lambda _, handle: handle.getValueState("other", "n long", 1000),
}
_RESULTS: dict[str, Any] = {
    "dicts": [{"key": "a", "n": 1}],
    "text for a long": [Row(key="a", n="many")],
    "frame": pd.DataFrame({"key": ["a"], "n": [1]}),
    "frame without a column": [pd.DataFrame({"key": ["a"]})],
    "frame of other types": [pd.DataFrame({"key": ["a"], "n": ["many"]})],
}
