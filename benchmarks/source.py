"""The input: files that both engines read, one a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import Workload

SCHEMA = "key string, item long, value long, time_ms long"
PRELOAD_ROWS = 100_000
"""The most rows of a batch that preloads state."""

_BATCH_MS = 20_000
"""How far the rows' own times move from one batch to the next."""

_FIRST_MTIME_S = 1_700_000_000


class Source:
    """Writes a workload's input files; the same for every run of the benchmark."""

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._workload = workload
        self._directory = directory
        self._written = 0
        self._key_names = pa.array([f"user-{number:07}" for number in range(workload.keys)])
        directory.mkdir(parents=True)

    def preload(self) -> list[Path]:
        """Writes and returns files that together have each key and item once."""
        total = self._workload.keys * self._workload.items
        return [
            self._write(np.arange(first, min(first + PRELOAD_ROWS, total)))
            for first in range(0, total, PRELOAD_ROWS)
        ]

    def batches(self, count: int) -> list[Path]:
        """Writes and returns the next files of random rows."""
        return list(self._random(count))

    def _random(self, count: int) -> Iterator[Path]:
        for _ in range(count):
            chance = np.random.default_rng(self._written)
            total = self._workload.keys * self._workload.items
            yield self._write(chance.integers(0, total, self._workload.rows))

    def _write(self, cells: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Path:
        """Writes one row for each number, which names a key and an item."""
        chance = np.random.default_rng([self._written, 1])
        table = pa.table(
            {
                "key": self._key_names.take(pa.array(cells // self._workload.items)),
                "item": cells % self._workload.items,
                "value": chance.integers(0, 1_000_000, len(cells)),
                "time_ms": self._written * _BATCH_MS + chance.integers(0, _BATCH_MS, len(cells)),
            }
        )
        path = self._directory / f"{self._written:06}.parquet"
        pq.write_table(table, path)
        moment_s = _FIRST_MTIME_S + self._written  # Spark reads the oldest file first
        os.utime(path, (moment_s, moment_s))
        self._written += 1
        return path
