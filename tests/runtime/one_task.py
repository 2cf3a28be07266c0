"""A task in a process of its own, which can kill itself.

It says "restored" once it runs with its parent's state, goes on when told to, and says
"acknowledged" or what it failed with. `kill_at` is where it kills itself:

    before put, after put          writing the object
    before append, half append, after append
                                   writing at the end of an object
    before record, after record    noting that a later checkpoint may go on with the file
    before COMMIT, after COMMIT    the transaction that acknowledges
    before intent, after intent    the transaction of the write intent
    receipt 1, receipt 2 …         before it makes the nth request a receipt
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import Engine, Pool, event

from cairn.errors import CairnError
from cairn.storage import ObjectStore, open_store
from tests.runtime.sent import watch
from tests.runtime.tasks import Task, plan_of, remember

MARKS = {"COMMIT": "cairn.acknowledge(", "intent": "cairn.intend_files("}
"""What only the transaction's statement has."""


def die() -> None:
    """Kills this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """A store whose writer dies before, half-way through or after a write by one of the verbs."""

    def __init__(self, store: ObjectStore, when: str, verb: str) -> None:
        self._store = store
        self._when = when
        self._verb = verb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Writes and dies, or dies and does not write."""
        if self._verb != "put" or self._when == "after":
            self._store.put(path, chunks)
        if self._verb == "put":
            die()

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """Writes all, half or nothing, and dies."""
        if self._verb != "append" or self._when == "after":
            self._store.append(path, offset, chunks)
        elif self._when == "half":
            data = b"".join(chunks)
            self._store.append(path, offset, [data[: len(data) // 2]])
        if self._verb == "append":
            die()


def die_at_transaction(when: str, mark: str) -> None:
    """Arranges for death right before or after the commit of a transaction."""
    seen: list[str] = []

    def look(_session: Any, statement: str, is_transaction: bool) -> None:
        seen.append(statement.strip())
        if is_transaction and when == "before":
            end()

    def end(*_: Any) -> None:
        if any(mark in statement for statement in seen):
            die()

    watch(look)
    if when == "before":
        event.listen(Engine, "commit", end)
    else:
        event.listen(Pool, "checkin", end)


def die_at_rename(into: str, number: int) -> None:
    """Arranges for death before the nth file is renamed into a directory."""
    left = [number]

    def hook(name: str, arguments: Any) -> None:
        if name == "os.rename" and f"/{into}/" in os.fspath(arguments[1]):
            left[0] -= 1
            if left[0] == 0:
                die()

    sys.addaudithook(hook)


def arrange_death(kill_at: str, store: ObjectStore) -> ObjectStore:
    """Arranges for this process to kill itself; returns the store to use."""
    when, _, what = kill_at.partition(" ")
    if what in ("put", "append"):
        return DyingStore(store, when, what)
    if what in MARKS:
        die_at_transaction(when, MARKS[what])
    elif what == "record" and when == "before":
        die_at_rename("pool", 1)
    elif what == "record":
        die_at_rename("acked", 1)  # the record is the last before
    elif when == "receipt":
        die_at_rename("acked", int(what))
    return store


def run_task(
    pipe: Connection,
    facts: dict[str, Any],
    executor: str,
    subtask: int,
    kill_at: str,
    batch_id: int = 0,
    early: Executor | None = None,
) -> None:
    """Runs a subtask's part of a batch and tells how it ends."""
    plan = plan_of(facts)
    store = arrange_death(kill_at, open_store(plan.storage))
    write = remember(batch_id)
    task = Task(plan, executor, batch_id, subtask, 1, write, store=store, early=early).steps()
    assert [next(task), next(task)] == ["begun", "restored"]
    pipe.send("restored")
    pipe.recv()
    try:
        pipe.send(list(task)[-1])
    except CairnError as error:
        pipe.send(f"{type(error).__name__}: {error}")
