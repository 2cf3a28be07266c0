"""When subtasks were being materialized, told from outside: their orders are there until then."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.sampler import Sampler

BATCHES_SKIPPED = 20
"""After a start, of those that are compared: while Java compiles, they become faster and faster."""
NEAR_BATCHES = 20
"""How far a batch beside a materialization may be from those that it is compared with."""


class MaterializationWatch(Sampler):
    """Notes when there were orders below a local directory, in seconds since the epoch."""

    def __init__(self, local_directory: Path) -> None:
        super().__init__()
        self.spans_s: list[tuple[float, float]] = []
        self._local_directory = local_directory
        self._began_s: float | None = None

    def sample(self) -> None:
        """Looks whether an order waits or is being carried out."""
        now_s = time.time()
        is_ordered = any(self._local_directory.glob("*/tm/*/orders/*"))
        if is_ordered and self._began_s is None:
            self._began_s = now_s
        if not is_ordered and self._began_s is not None:
            self.spans_s.append((self._began_s, now_s))
            self._began_s = None

    def share(self, began_s: float, ended_s: float) -> float:
        """Returns how much of a time there was at least one of them, from 0 to 1."""
        still_there = [] if self._began_s is None else [(self._began_s, ended_s)]
        covered_s = 0.0
        for start_s, end_s in self.spans_s + still_there:
            covered_s += max(0.0, min(end_s, ended_s) - max(start_s, began_s))
        return covered_s / (ended_s - began_s)
