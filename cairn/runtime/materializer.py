"""Materialisation off the batch path: a process of its own, started by the task that finds it due.

It is not the task's own process, because that would share Python's interpreter lock with the next
batch. It belongs to the executor's process group, so it goes when the executor does.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from cairn.errors import CairnError, FencedError, StorageError
from cairn.runtime.executor import TaskManager, write_whole
from cairn.runtime.local_store import open_local
from cairn.runtime.materialize import materialize
from cairn.runtime.run_plan import RunPlan
from cairn.storage import open_store
from metastore.batches import BatchRef, Clock
from metastore.engine import run_transaction
from metastore.materializations import record_end, record_start

_NICENESS = 10
"""Batches come first where cores are few."""
_KILLED = "it ended without saying why, as a killed process does"

_log = logging.getLogger(__name__)
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Order:
    """What a materialising process is told, on its standard input."""

    plan: RunPlan
    executor_root: str
    batch: BatchRef
    subtask: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How the materialisations of a subtask went on this executor in this run."""

    done_ms: int = 0
    """The order's time of the last one that went well, even if there was nothing to write."""
    failures: int = 0
    """In a row, since then."""
    error: str = ""


def is_due(clock: Clock, last_ms: int, *, subtask: int, parallelism: int, interval_ms: int) -> bool:
    """Tells whether a tick of the subtask's own phase has passed since its last materialisation.

    Each subtask ticks once per interval, `1/parallelism` of it after the one before, so that
    materialisations stay spread over subtasks whatever restarts. `last_ms` is 0 before the first.
    """
    phase_ms = interval_ms * subtask // parallelism
    last_ms = max(last_ms, clock.job_created_ms)
    return (clock.now_ms - phase_ms) // interval_ms > (last_ms - phase_ms) // interval_ms


def start_if_due(manager: TaskManager, batch: BatchRef, clock: Clock, subtask: int) -> None:
    """Starts a process that materialises a subtask, if that is due and none does it already.

    Raises:
        StorageError: it has failed `cairn.changelog.max-failures-allowed` times in a row. A restart
            counts from the start.
    """
    plan, settings = manager.plan, manager.plan.settings
    is_due_since = partial(
        is_due,
        clock,
        subtask=subtask,
        parallelism=plan.parallelism,
        interval_ms=settings.materialize_interval_ms,
    )
    base_ms = clock.base_made_ms.get(plan.key_groups(subtask).start, 0)
    if not settings.materialize_enabled or not is_due_since(base_ms):
        return
    lock = os.open(lock_file(manager, subtask), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        progress = _progress(manager, subtask)
        if progress.failures >= settings.materialize_max_failures:
            _record(manager, subtask, Progress(progress.done_ms))
            raise StorageError(
                f"subtask {subtask} could not be materialised {progress.failures} times in a row, "
                f"so its changelog grows. The last time: {progress.error}",
                job=plan.job,
            )
        if is_due_since(progress.done_ms):
            # Counted before it starts, so that one that is killed, or cannot start, counts too.
            failures = progress.failures + 1
            _record(manager, subtask, Progress(progress.done_ms, failures, _KILLED))
            _start(Order(plan, manager.executor_root, batch, subtask, clock.now_ms), lock)
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def lock_file(manager: TaskManager, subtask: int) -> Path:
    """Returns the file whose lock a process holds that materialises the subtask."""
    return manager.directory / f"materialize-{subtask}.lock"


def _start(order: Order, lock: int) -> None:
    """Starts the process; it inherits the lock, so there is no moment at which nobody holds it."""
    _started[:] = [process for process in _started if process.poll() is None]
    process = subprocess.Popen(
        [sys.executable, "-m", "cairn.runtime.materializer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=[lock],
    )
    _started.append(process)
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(msgspec.msgpack.encode(order))


def _progress_file(manager: TaskManager, subtask: int) -> Path:
    return manager.directory / f"materialize-{subtask}.json"


def _progress(manager: TaskManager, subtask: int) -> Progress:
    try:
        data = _progress_file(manager, subtask).read_bytes()
    except FileNotFoundError:
        return Progress()
    return msgspec.json.decode(data, type=Progress)


def _record(manager: TaskManager, subtask: int, progress: Progress) -> None:
    write_whole(_progress_file(manager, subtask), msgspec.json.encode(progress))


def carry_out(order: Order) -> None:
    """Materialises a subtask and records how it went, here and in the metastore."""
    manager = TaskManager(order.plan, order.executor_root)
    done_ms, failures = _progress(manager, order.subtask).done_ms, 0
    made, error, materialization_id = None, None, uuid.uuid4()
    try:
        _in_metastore(
            order, lambda c: record_start(c, order.batch, order.subtask, materialization_id)
        )
        with open_local(manager.subtask_directory(order.subtask)).read() as reader:
            store = open_store(order.plan.storage)
            made = materialize(manager, store, order.batch, order.subtask, reader)
        done_ms = order.now_ms
    except FencedError as fenced:
        _log.info("materialisation of subtask %d stopped: %s", order.subtask, fenced)
        return
    except CairnError as failed:
        _log.warning("materialisation of subtask %d failed: %s", order.subtask, failed)
        failures, error = _progress(manager, order.subtask).failures, str(failed)
    _record(manager, order.subtask, Progress(done_ms, failures, error or ""))
    _in_metastore(order, lambda c: record_end(c, materialization_id, made, error))


def _in_metastore(order: Order, work: Callable[[Connection], None]) -> None:
    run_transaction(
        order.plan.metastore_url,
        work,
        timeout_ms=order.plan.settings.metastore_timeout_ms,
        what=f"record a materialisation of subtask {order.subtask} of job {order.plan.job}",
    )


def main() -> None:
    """Carries out the order on the standard input."""
    os.nice(_NICENESS)
    carry_out(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order))


if __name__ == "__main__":
    main()
