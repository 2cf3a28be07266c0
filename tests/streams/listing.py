"""A processor with operator lists, which Spark's workers import by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Noting(StatefulProcessor):
    """Lists every value that the subtask has seen, and the keys that any subtask has seen."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getOperatorListState("seen", "value long")
        self._keys = handle.getUnionListState("keys", "key string")
        self._known = {key for (key,) in self._keys.get()}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = [(row.value,) for row in rows]
        self._seen.appendList(values)
        self._known.add(key[0])
        self._count.update((len(values),))
        yield Row(key=key[0], n=len(self._known))

    def close(self) -> None:
        self._keys.put([(key,) for key in sorted(self._known)])
