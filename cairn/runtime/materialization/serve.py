"""What the materializing process does: the executor's orders, one after the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from cairn.errors import FencedError
from cairn.locks import release, retake
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out_all
from cairn.runtime.materialization.order import Order, is_any_placed, placed, remove
from cairn.runtime.materialization.parent import ProcessIdentity, identity_of
from cairn.runtime.materialization.progress import (
    Progress,
    count_as_failed,
    is_given_up,
    progress_of,
    record_progress,
    suspect,
)
from cairn.runtime.materialization.write import Compute
from cairn.segments.format import CHUNK_BYTES

IDLE_S = 30.0
"""How long the process stays without an order. Its start costs more than it does meanwhile."""

TOGETHER = 16
"""Orders that are carried out with one transaction of each kind. The one that installs them holds
the job's lock, which batches wait for: some milliseconds for each."""
TOGETHER_BYTES = CHUNK_BYTES
"""About how many bytes they have together: that of one segment, as they are in memory at once."""

_PAUSE_S = 0.2

_log = logging.getLogger(__name__)

Computing = Callable[[bool], AbstractContextManager[Compute]]
"""Gives what computes for one order: patiently, for a limited time, or else insistently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the process is told when it starts, on its standard input.

    `lock` is the descriptor of the lock that it has inherited, `parent` the parent of the task that
    has started it, which lives as long as the executor; None if it is not visible from here.
    """

    run: RunContext
    executor_root: str
    lock: int
    parent: ProcessIdentity | None
    patience_s: int


def serve(start: Start, computing: Computing) -> None:
    """Carries out orders until none has come for `IDLE_S`, or the run or the executor is over."""
    manager = TaskManager(start.run, start.executor_root)
    about = {"job": start.run.job, "directory": str(manager.directory)}
    try:
        record_progress(manager, "process", Progress())
        reason = _serve(manager, start, computing)
    except FencedError as fenced:
        # No failure: the newer run materializes.
        reason = str(fenced)
    _log.info("materializing process ends: %s", reason, extra=about)


def _serve(manager: TaskManager, start: Start, computing: Computing) -> str:
    """Carries out orders; returns why there is an end."""
    idle_since_s = time.monotonic()
    while (reason := _reason_to_end(start)) is None:
        orders = placed(manager)
        for together in _together(manager, orders):
            if _reason_to_end(start) is None:
                take(manager, together, computing)
                idle_since_s = time.monotonic()
        idle_s = time.monotonic() - idle_since_s
        if idle_s > IDLE_S and is_let_go(manager, start.lock):
            return f"no order for {idle_s:.0f} s"
        if not orders:
            time.sleep(_PAUSE_S)
    return reason


def _reason_to_end(start: Start) -> str | None:
    if os.fstat(start.lock).st_nlink == 0:
        return "the executor's directory is removed, as by a newer run"
    if start.parent is not None and identity_of(start.parent.pid) != start.parent:
        return "the executor has ended"
    return None


def is_let_go(manager: TaskManager, lock: int) -> bool:
    """Gives up the process's lock for good; False if an order is there, and it is held again.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    release(lock)
    # Only now: who places an order looks for the lock afterwards. So one of the two sees the other.
    if not is_any_placed(manager):
        return True
    return not retake(lock)  # the next process may be there already


def _together(manager: TaskManager, orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Yields the orders, those together that share their transactions: few bytes, none apart."""
    some: list[Order] = []
    size_bytes = 0
    for order in orders:
        # Alone, so that what kills the process or fails counts for no other subtask.
        is_apart = progress_of(manager, order.subtask).is_apart
        size_bytes += order.size_bytes
        if some and (is_apart or size_bytes > TOGETHER_BYTES or len(some) == TOGETHER):
            yield some
            some, size_bytes = [], order.size_bytes
        some.append(order)
        if is_apart:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def take(manager: TaskManager, orders: Sequence[Order], computing: Computing) -> None:
    """Carries out orders, but for those that were done or given up before, and removes them.

    Raises:
        FencedError: a newer run has begun a batch, or removed this run's directory.
    """
    known = [(order, progress_of(manager, order.subtask)) for order in orders]
    due = [
        (order, progress)
        for order, progress in known
        # Done by one that was killed before it removed it.
        if progress.done_ms < order.now_ms and not is_given_up(manager, progress)
    ]
    if due:
        begin = count_as_failed if len(due) == 1 else suspect
        for order, progress in due:
            begin(manager, order.subtask, progress)
        # Where cores are always busy, a patient one would never end.
        most_s = manager.run.settings.materialize_interval_ms / 2000
        has_waited = any(time.monotonic() - order.ordered_s > most_s for order, _ in due)
        is_apart = any(progress.is_apart for _, progress in due)
        with computing(not is_apart and not has_waited) as compute:
            carry_out_all(manager, [order for order, _ in due], compute)
    # Last: whoever finds no order finds the result.
    for order in orders:
        remove(manager, order.subtask)
