"""Starting the materializing process of an executor and a run, once at a time.

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
from pathlib import Path

import msgspec

from cairn.locks import try_lock
from cairn.runtime.executor.private_files import FILE_MODE
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed
from cairn.runtime.materialization.parent import identity_of
from cairn.runtime.materialization.progress import (
    count_as_failed,
    progress_of,
    raise_if_given_up,
)
from cairn.runtime.materialization.serve import Start
from cairn.settings import Settings

LEAST_PATIENCE_S = 60

_started: list[subprocess.Popen[bytes]] = []


def lock_file(manager: TaskManager) -> Path:
    """Returns the file whose lock the materializing process holds for its life."""
    return manager.directory / "materializing.lock"


def patience_s(settings: Settings) -> int:
    """Returns for how long the process, or one order, computes only while nobody wants a core."""
    return max(LEAST_PATIENCE_S, settings.materialize_interval_ms // 2000)


def start_unless_there(manager: TaskManager) -> None:
    """Starts the process that carries out the orders, if there is none.

    Raises:
        StorageError: it has ended before its first order
            `cairn.changelog.max-failures-allowed` times in a row.
        FencedError: a newer run has removed this run's directory.
    """
    with ExitStack() as held:
        file = lock_file(manager)
        with fenced_if_removed(file):
            file.touch(FILE_MODE)
        lock = try_lock(file, held)
        if lock is None:
            return
        starts = progress_of(manager, "process")
        raise_if_given_up(manager, "process", starts)
        count_as_failed(manager, "process", starts)
        _start(manager, lock, is_patient=not starts.failures)


def _start(manager: TaskManager, lock: int, *, is_patient: bool) -> None:
    """Starts the process; it inherits the lock, so there is no moment at which nobody holds it."""
    start = Start(
        # Without what only a first batch reads: the pipe takes so much before anybody reads it.
        run=replace(manager.run, initial_rows=()),
        executor_root=manager.executor_root,
        lock=lock,
        parent=identity_of(os.getppid()),
        patience_s=patience_s(manager.run.settings),
    )
    # Reaps those that have ended; nobody waits for them.
    _started[:] = [process for process in _started if process.poll() is None]
    alarm_s = start.patience_s if is_patient else 0
    process = subprocess.Popen(  # noqa: S603 - the program is ours
        [sys.executable, "-m", "cairn.runtime.materialization.process", str(alarm_s)],
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
            pipe.write(msgspec.msgpack.encode(start))
