"""Materialization off the batch path: a process of its own, started by the task that finds it due.

It is not the task's own process, because that would share Python's interpreter lock with the next
batch. It belongs to the executor's process group, so it ends with the executor.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from cairn.catalog.job.begin import Clock
from cairn.errors import RefusedError, StorageError
from cairn.locks import try_lock
from cairn.runtime.executor.local_store import Weight
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.progress import Progress, progress_of, record_progress
from cairn.runtime.materialization.write import FULL_FROM_SHARE
from cairn.settings import Settings

LIGHT_BYTES = 64 << 20
"""Bytes that a restore may read on top of bases of any size without an early materialization."""
TIMES_AS_OFTEN = 10
"""As the interval says, a subtask is materialized where more than `FULL_FROM_SHARE` is on top."""

LEAST_PATIENCE_S = 60

_KILLED = "it ended without saying why, as a killed process does"

_started: list[subprocess.Popen[bytes]] = []


def is_due(clock: Clock, last_ms: int, *, subtask: int, parallelism: int, interval_ms: int) -> bool:
    """Tells whether a tick of the subtask's own phase has passed since its last materialization.

    Each subtask ticks once per interval, `1/parallelism` of it after the one before, so that
    materializations stay spread over subtasks whatever restarts. `last_ms` is 0 before the first.
    """
    phase_ms = interval_ms * subtask // parallelism
    last_ms = max(last_ms, clock.job_created_ms)
    return (clock.now_ms - phase_ms) // interval_ms > (last_ms - phase_ms) // interval_ms


def interval_ms(settings: Settings, weight: Weight) -> int:
    """Returns how often a subtask is due: more often where a restore would read too much."""
    most_bytes = max(LIGHT_BYTES, FULL_FROM_SHARE * weight.base_bytes)
    times = TIMES_AS_OFTEN if weight.change_bytes > most_bytes else 1
    return max(1, settings.materialize_interval_ms // times)


def start_if_due(context: SubtaskContext, clock: Clock, weight: Weight) -> None:
    """Starts a process that materializes a subtask, if that is due and none does it already.

    `weight` is that of its local state.

    Raises:
        StorageError: it has failed `cairn.changelog.max-failures-allowed` times in a row. A restart
            counts from the start.
        RefusedError: it has failed in a way that trying again cannot mend; so does every attempt
            until a restart.
    """
    manager, subtask, settings = context.manager, context.subtask, context.settings
    is_due_since = partial(
        is_due,
        clock,
        subtask=subtask,
        parallelism=context.run.parallelism,
        interval_ms=interval_ms(settings, weight),
    )
    base_ms = clock.base_made_ms.get(context.key_groups.start, 0)
    if not settings.materialize_enabled or not is_due_since(base_ms):
        return
    with ExitStack() as held:
        file = lock_file(manager, subtask)
        file.touch()
        lock = try_lock(file, held)
        if lock is None:
            return
        progress = progress_of(manager, subtask)
        _raise_if_given_up(manager, subtask, progress)
        # Again, under the lock: one that began before this batch may have ended since.
        if is_due_since(progress.done_ms):
            # Counted before it starts, so that one that is killed, or cannot start, counts too.
            record_progress(
                manager, subtask, replace(progress, failures=progress.failures + 1, error=_KILLED)
            )
            order = Order(
                run=context.run,
                executor_root=manager.executor_root,
                batch=context.batch,
                subtask=subtask,
                now_ms=clock.now_ms,
            )
            _start(order, lock, is_patient=not progress.failures)


def _raise_if_given_up(manager: TaskManager, subtask: int, progress: Progress) -> None:
    settings, job = manager.run.settings, manager.run.job
    if not progress.is_final and progress.failures < settings.materialize_max_failures:
        return
    text = (
        f"subtask {subtask} could not be materialized (failures in a row: {progress.failures}), "
        "so its changelog grows."
    )
    if progress.is_final:
        raise RefusedError(f"{text} Trying again cannot help: {progress.error}", job=job)
    record_progress(manager, subtask, Progress(done_ms=progress.done_ms))
    raise StorageError(f"{text} The last time: {progress.error}", job=job)


def lock_file(manager: TaskManager, subtask: int) -> Path:
    """Returns the file whose lock a process holds that materializes the subtask."""
    return manager.directory / f"materialize-{subtask}.lock"


def _start(order: Order, lock: int, *, is_patient: bool) -> None:
    """Starts the process; it inherits the lock, so there is no moment at which nobody holds it.

    A patient one computes when nothing else wants a core, for half an interval at most: where cores
    are always busy it would never end. The next one then insists on its share, as does any after
    one that has failed.
    """
    half_s = order.run.settings.materialize_interval_ms // 2000
    patience_s = max(LEAST_PATIENCE_S, half_s) if is_patient else 0
    # Reaps those that have ended; nobody waits for them.
    _started[:] = [process for process in _started if process.poll() is None]
    process = subprocess.Popen(  # noqa: S603 - the program is ours
        [sys.executable, "-m", "cairn.runtime.materialization.process", str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # Spark may have put Cairn on this process's path alone, as with --py-files.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=[lock],
    )
    _started.append(process)
    if process.stdin is not None:
        # It has died already, and its failure is counted.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(msgspec.msgpack.encode(order))
