"""A processor that tells how much memory its worker has taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)


class Weighing(StatefulProcessor):
    """Counts a key's rows; writes the worker's greatest size so far to a file at the end."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        count = sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], n=count)

    def close(self) -> None:
        status = Path("/proc/self/status").read_text()
        self._report.write_text(status.partition("VmHWM:")[2].split()[0])
