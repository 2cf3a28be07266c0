"""What the materializing process does: the executor's orders, one after the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from cairn.errors import FencedError
from cairn.locks import release, retake
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out
from cairn.runtime.materialization.order import Order, is_any_placed, placed, remove
from cairn.runtime.materialization.parent import ProcessIdentity, identity_of
from cairn.runtime.materialization.progress import (
    Progress,
    count_as_failed,
    is_given_up,
    progress_of,
    record_progress,
)
from cairn.runtime.materialization.write import Compute

IDLE_S = 30.0
"""How long the process stays without an order. Its start costs more than it does meanwhile."""

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
        for order in orders:
            if _reason_to_end(start) is None:
                take(manager, order, computing)
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


def take(manager: TaskManager, order: Order, computing: Computing) -> None:
    """Carries out an order, unless it was done or given up before, and removes it.

    Raises:
        FencedError: a newer run has begun a batch, or removed this run's directory.
    """
    progress = progress_of(manager, order.subtask)
    is_done = progress.done_ms >= order.now_ms  # by one that was killed before it removed it
    if not is_done and not is_given_up(manager, progress):
        count_as_failed(manager, order.subtask, progress)
        # Where cores are always busy, a patient one would never end.
        most_s = manager.run.settings.materialize_interval_ms / 2000
        has_waited = time.monotonic() - order.ordered_s > most_s
        with computing(not progress.failures and not has_waited) as compute:
            carry_out(manager, order, compute)
    # Last: whoever finds no order finds the result.
    remove(manager, order.subtask)
