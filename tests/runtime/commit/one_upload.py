"""Uploads in a process of its own, which is killed or kills itself on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cairn.errors import CairnError
from cairn.runtime.commit.in_flight import in_flight
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.posix import PosixStore
from tests.runtime.one_task import die
from tests.runtime.tasks import Task, plan_of, remember

Fault = Callable[[Callable[[], None]], None]
"""What happens at a write instead of it; it is given the write."""


class FaultyStore(PosixStore):
    """A service whose next writes have a fault each; `written` has the paths of all, in order."""

    sends_requests = True

    def __init__(self, storage: str, *faults: Fault) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.faults = list(faults)
        self.written: list[str] = []

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        self.written.append(path)
        fault = self.faults.pop(0) if self.faults else no_fault
        fault(lambda: PosixStore.put(self, path, chunks))


def no_fault(write: Callable[[], None]) -> None:
    """Just writes."""
    write()


def fails(error: CairnError) -> Fault:
    """Fails, and writes nothing."""

    def fault(_: Callable[[], None]) -> None:
        raise error

    return fault


def waits(gate: threading.Event) -> Fault:
    """Writes once the gate is open."""

    def fault(write: Callable[[], None]) -> None:
        gate.wait()
        write()

    return fault


def hold(pipe: Connection, facts: dict[str, Any], executor: str, size_bytes: int) -> None:
    """Has so many bytes in flight until it is killed."""
    with in_flight(TaskManager(plan_of(facts), executor), "changelog", size_bytes):
        pipe.send("in flight")
        pipe.recv()


def die_in_second_request(facts: dict[str, Any], executor: str, when: str) -> None:
    """Runs subtask 0 of batch 0, whose first write hangs; dies before or after the second."""

    def dies(write: Callable[[], None]) -> None:
        if when == "after":
            write()
        die()

    plan = plan_of(facts)
    hangs = waits(threading.Event())
    store = FaultyStore(plan.storage, hangs, dies, hangs)  # a third one follows a slow second
    Task(plan, executor, 0, 0, 1, remember(0), store=store).run()
