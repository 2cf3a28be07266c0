"""The processor that does what its rows say, with values of their columns, in both forms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegralType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.conformance.processors import canonical, storable

USER_KEY = "a string, b int"
Given = tuple[str, str, dict[str, Any]]
"""An operation, its result as text, and the columns that it gives."""


class Doing(StatefulProcessor):
    """The row form. `schema` is of the columns that state is made of, each with three variables."""

    def __init__(self, schema: StructType, ttl_ms: int | None) -> None:
        self._schema = schema
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        ttl = self._ttl_ms
        self._variables: dict[tuple[str, str], Any] = {}
        for field in self._schema:
            kept = StructType([StructField("v", field.dataType)])
            name = field.name
            self._variables["value", name] = handle.getValueState(f"value_{name}", kept, ttl)
            self._variables["list", name] = handle.getListState(f"list_{name}", kept, ttl)
            self._variables["map", name] = handle.getMapState(f"map_{name}", USER_KEY, kept, ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        return self._rows(key, (given for row in rows for given in self._do_all(row)))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Any:
        return self._rows(key, self._fire(expiredTimerInfo.getExpiryTimeInMs()))

    def close(self) -> None:
        pass

    def _fire(self, expiry_ms: int) -> Iterator[Given]:
        yield "fired", str(expiry_ms), {}
        for field in self._schema:
            variable = self._variables["value", field.name]
            yield "state", self._shown(variable.get(), field.name), {}

    def _do_all(self, row: Any) -> Iterator[Given]:
        for operation in json.loads(row["calls"]):
            yield self._do(operation, row)

    def _do(self, operation: list[Any], row: Any) -> Given:
        what, name, *rest = operation
        shown = json.dumps(operation)
        if what == "timer":
            result = getattr(self._handle, name)(*rest)
            return shown, "" if result is None else str(sorted(result)), {}
        cell = self._cell(row, name)
        if what == "cell":
            return shown, canonical(cell, self._schema[name].dataType), {}
        if what == "emit":
            return shown, "", {name: self._emitted(row, name)}
        if what == "emit state":
            found = self._variables["value", name].get()
            return shown, "", {name: None if found is None else found[0]}
        method = getattr(self._variables[what, name], rest[0])
        kept = (storable(cell, self._schema[name].dataType),)
        by_method: dict[str, list[Any]] = {
            "update": [kept],
            "appendValue": [kept],
            "appendList": [[kept, kept]],
            "put": [[kept]],
            "updateValue": [tuple(rest[-1]), kept],
            **{read: [tuple(rest[-1])] for read in ("getValue", "containsKey", "removeKey")},
        }
        result = method(*by_method.get(rest[0], []))
        return shown, self._shown(result, name, in_order=what != "map"), {}

    def _shown(self, result: Any, name: str, *, in_order: bool = True) -> str:
        """Returns text that is equal for equal results, by the type of the column."""
        if hasattr(result, "__next__"):
            parts = [self._shown(part, name) for part in result]
            return str(parts if in_order else sorted(parts))
        if isinstance(result, tuple) and len(result) == 2:  # a user key, or one and its value
            return str([self._shown(part, name) for part in result])
        if isinstance(result, tuple):
            return canonical(result[0], self._schema[name].dataType)
        return repr(result)

    def _cell(self, row: Any, name: str) -> Any:
        return row[name]

    def _emitted(self, row: Any, name: str) -> Any:
        return row[name]

    def _rows(self, key: Any, given: Iterable[Given]) -> Iterator[Any]:
        names = [field.name for field in self._schema]
        for place, (call, result, columns) in enumerate(given):
            values = [columns.get(name) for name in names]
            yield Row("key", "place", "call", "result", *names)(
                key[0], place, call, result, *values
            )


class DoingInFrames(Doing):
    """The pandas form."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        together = pd.concat([*rows], ignore_index=True)
        cells = (together.iloc[[place]] for place in range(len(together)))
        return self._rows(key, (given for cell in cells for given in self._do_all(cell)))

    def _do_all(self, row: Any) -> Iterator[Given]:
        for operation in json.loads(row["calls"].iloc[0]):
            yield self._do(operation, row)

    def _cell(self, row: Any, name: str) -> Any:
        return _plain(row[name].iloc[0], self._schema[name].dataType)

    def _emitted(self, row: Any, name: str) -> Any:
        found = row[name].iloc[0]
        return None if isinstance(found, float | np.floating) and np.isnan(found) else found

    def _rows(self, key: Any, given: Iterable[Given]) -> Iterator[Any]:
        for row in super()._rows(key, given):
            yield pd.DataFrame([tuple(row)], columns=row.__fields__, dtype=object)


def _plain(found: Any, data_type: DataType) -> Any:
    """Returns a value of a frame as state takes it: without pandas and numpy."""
    is_number = isinstance(found, float | np.floating)
    if found is None or found is pd.NaT or (is_number and np.isnan(found)):
        return None
    plain = found.item() if isinstance(found, np.generic) else found
    if isinstance(data_type, StructType):
        plain = {field.name: _plain(found[field.name], field.dataType) for field in data_type}
    elif isinstance(data_type, MapType):
        pairs = found.items() if isinstance(found, dict) else found
        key_type, value_type = data_type.keyType, data_type.valueType
        plain = {_plain(key, key_type): _plain(value, value_type) for key, value in pairs}
    elif isinstance(data_type, ArrayType):
        plain = [_plain(element, data_type.elementType) for element in found]
    elif isinstance(data_type, IntegralType):  # floats, where another row has null
        plain = int(found)
    elif isinstance(data_type, TimestampType | TimestampNTZType):
        plain = pd.Timestamp(found).to_pydatetime()
    return plain
