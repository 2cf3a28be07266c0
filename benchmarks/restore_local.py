"""Restoring all subtasks of a job at once, each in a process of its own, from storage alone.

What is timed is `parent_state` (`cairn.runtime.executor.parent_state`) into a local directory that
is not there yet: the code that a Spark task runs before its rows. Bytes and requests are counted at
the store.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.restore_history import History, digest_of
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage import ObjectStore, open_store

_MASK = 2**64 - 1
_LONGEST_S = 900


class WrongStateError(Exception):
    """A restore did not bring back the state that was written, or read what it should not."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What was asked of the store."""

    size_bytes: int
    requests: int
    most_in_flight: int


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """One subtask's restore; moments are in s on the clock that all processes share."""

    began_s: float
    ended_s: float
    cpu_s: float
    reads: Reads
    entries: int
    digest: int


@dataclass(frozen=True, slots=True)
class Restore:
    """One restore of all subtasks, from the first one's start to the last one's end."""

    seconds: float
    cpu_s: float
    reads: Reads
    """`most_in_flight` is the sum over the subtasks."""


class CountingStore:
    """A store that counts what is read from it, by any thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._size_bytes = self._requests = self._in_flight = self._most_in_flight = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Reads a range, and counts it."""
        with self._lock:
            self._requests += 1
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            data = self._store.get(path, offset, size_bytes)
        finally:
            with self._lock:
                self._in_flight -= 1
        with self._lock:
            self._size_bytes += len(data)
        return data

    def reads(self) -> Reads:
        """Returns what was read so far."""
        return Reads(self._size_bytes, self._requests, self._most_in_flight)


def restore(history: History, local_directory: Path) -> Restore:
    """Restores the newest checkpoint into a directory that does not exist, and removes it again.

    Raises:
        WrongStateError: the state is not the one that was written, or not all recorded bytes of the
            checkpoint were read once.
    """
    if local_directory.exists():
        raise WrongStateError(f"{local_directory} is there before the restore")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(history.plan.parallelism)
    answers = context.SimpleQueue()
    processes = [
        context.Process(
            target=_restore_one, args=(history, local_directory, subtask, barrier, answers.put)
        )
        for subtask in range(history.plan.parallelism)
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(_LONGEST_S)
            if process.exitcode != 0:
                raise WrongStateError(f"a subtask's restore ended with {process.exitcode}")
    finally:
        for process in processes:
            process.kill()
    found = [answers.get() for _ in processes]
    shutil.rmtree(local_directory)
    check(history, found)
    return Restore(
        max(one.ended_s for one in found) - min(one.began_s for one in found),
        sum(one.cpu_s for one in found),
        Reads(
            sum(one.reads.size_bytes for one in found),
            sum(one.reads.requests for one in found),
            sum(one.reads.most_in_flight for one in found),
        ),
    )


def _restore_one(
    history: History,
    local_directory: Path,
    subtask: int,
    barrier: Barrier,
    answer: Callable[[SubtaskRestore], None],
) -> None:
    settings = replace(history.plan.settings, local_dir=str(local_directory))
    plan = replace(history.plan, settings=settings)
    manager = TaskManager(plan, "restore")
    batch, store = history.batch(), CountingStore(open_store(plan.storage))
    start = manager.begin(batch)
    context = SubtaskContext(manager=manager, store=store, batch=batch, subtask=subtask)
    barrier.wait(_LONGEST_S)
    before_s = _cpu_s()
    began_s = time.monotonic()
    with parent_state(context, start) as reader:
        ended_s = time.monotonic()
        cpu_s = _cpu_s() - before_s
        barrier.wait(_LONGEST_S)  # looking at one's state must not slow another one's restore
        entries = digest = 0
        for key, value in reader.range(plan.key_groups(subtask)):
            entries += 1
            digest = digest + digest_of(key, value) & _MASK
    answer(SubtaskRestore(began_s, ended_s, cpu_s, store.reads(), entries, digest))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def check(history: History, found: Sequence[SubtaskRestore]) -> None:
    """Does nothing if the subtasks' restores are a measurement.

    Raises:
        WrongStateError: see `restore`.
    """
    entries = sum(one.entries for one in found)
    digest = sum(one.digest for one in found) & _MASK
    if (entries, digest) != (history.entries, history.digest):
        raise WrongStateError(
            f"{history.name}: restored {entries} entries with digest {digest:x}, written were "
            f"{history.entries} with {history.digest:x}"
        )
    read_bytes = sum(one.reads.size_bytes for one in found)
    requests = sum(one.reads.requests for one in found)
    held = history.holds
    if (requests, read_bytes) != (sum(held.segments.values()), sum(held.size_bytes.values())):
        raise WrongStateError(
            f"{history.name}: {requests} requests read {read_bytes} bytes, the checkpoint has "
            f"{held.segments} segments with {held.size_bytes} bytes"
        )
