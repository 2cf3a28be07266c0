"""Processors whose state variables differ from version to version, or that start with state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from tests.streams.streams import Remember

OLD = "key string, old string"


class Declares(StatefulProcessor):
    """Declares value states by DDL; yields what each held before as text, then sets it."""

    def __init__(
        self, states: Mapping[str, str], values: Mapping[str, Any], deleted: Sequence[str] = ()
    ) -> None:
        self._schemas = states
        self._new = values
        self._deleted = deleted

    def init(self, handle: StatefulProcessorHandle) -> None:
        for name in self._deleted:
            handle.deleteIfExists(name)
        self._states = {
            name: handle.getValueState(name, schema) for name, schema in self._schemas.items()
        }

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        old = {name: state.get() for name, state in self._states.items()}
        for name, state in self._states.items():
            state.update(self._new[name])
        yield Row(key=key[0], old=str(old))

    def close(self) -> None:
        pass


class Seeded(Remember):
    """Starts each key's count from initial state; counts how often it was given some."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._given = handle.getValueState("given", "n long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: TimerValues) -> None:
        given = (self._given.get() or (0,))[0]
        self._given.update((given + 1,))
        count = (self._count.get() or (0,))[0]
        self._count.update((count + initialState.n,))
