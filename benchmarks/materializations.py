"""When subtasks were being materialized, told from outside: a process is there that does it."""

from __future__ import annotations

import time

import psutil

from benchmarks.sampler import Sampler
from cairn.runtime.materialization import process as materializing_process

BATCHES_SKIPPED = 20
"""After a start, of those that are compared: while Java compiles, they become faster and faster."""
NEAR_BATCHES = 20
"""How far a batch beside a materialization may be from those that it is compared with."""

_NEW_S = 1.0


class MaterializationWatch(Sampler):
    """Notes when materializing processes began and ended, in seconds since the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.spans_s: list[tuple[float, float]] = []
        self._seen_s: dict[int, float] = {}
        self._began_s: dict[int, float] = {}

    def sample(self) -> None:
        """Looks at the processes that have not been there for long."""
        now_s = time.time()
        self._seen_s = {pid: self._seen_s.get(pid, now_s) for pid in psutil.pids()}
        for pid, seen_s in self._seen_s.items():
            # One that has just been forked still looks like the one that did it.
            is_new = now_s - seen_s <= _NEW_S and pid not in self._began_s
            if is_new and _materializes(pid):
                self._began_s[pid] = seen_s
        for pid in [pid for pid in self._began_s if not _is_running(pid)]:
            self.spans_s.append((self._began_s.pop(pid), now_s))

    def share(self, began_s: float, ended_s: float) -> float:
        """Returns how much of a time at least one of them was there, from 0 to 1."""
        still_there = [(began, ended_s) for began in self._began_s.values()]
        covered_s, reached_s = 0.0, began_s
        for start, end in sorted(self.spans_s + still_there):
            until_s = min(end, ended_s)
            covered_s += max(0.0, until_s - max(start, reached_s))
            reached_s = max(reached_s, until_s)
        return covered_s / (ended_s - began_s)


def _is_running(pid: int) -> bool:
    try:
        # Until its parent looks, a process that has ended is a zombie.
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _materializes(pid: int) -> bool:
    try:
        return any(
            materializing_process.__name__ in argument for argument in psutil.Process(pid).cmdline()
        )
    except psutil.NoSuchProcess:
        return False
