"""Running a step of a benchmark in a process of its own, and what it took of it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from sqlalchemy import Pool, event

from cairn.catalog.catalog import dispose_engines

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart(Generic[T]):
    """What a call returned, and its process's peak memory and longest transaction."""

    found: T
    memory_mb: float
    longest_transaction_ms: float


def run_apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Apart[T]:
    """Runs a call in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (work, args, kwargs))


def _measured(
    work: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
) -> Apart[T]:
    transactions = _Transactions()
    found = work(*args, **kwargs)
    dispose_engines()
    return Apart(
        found=found,
        memory_mb=_peak_memory_mb(),
        longest_transaction_ms=transactions.longest_ms,
    )


def _peak_memory_mb() -> float:
    # Not `ru_maxrss`: that of a new process begins with what its parent had.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class _Transactions:
    """Times the transactions of this process: how long each has a connection of the pool."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._began_s: dict[int, float] = {}
        event.listen(Pool, "checkout", self._begin)
        event.listen(Pool, "checkin", self._end)

    def _begin(self, _: object, record: Any, __: object) -> None:  # noqa: ANN401 - the pool's own
        self._began_s[id(record)] = time.monotonic()

    def _end(self, _: object, record: Any) -> None:  # noqa: ANN401 - the pool's own
        began_s = self._began_s.pop(id(record), time.monotonic())
        self.longest_ms = max(self.longest_ms, 1000 * (time.monotonic() - began_s))
