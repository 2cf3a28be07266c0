"""Group commit: few physical files and one transaction for all waiting subtasks of an executor.

A task leaves its segment in the spool and a request beside it, then waits for the executor's lock.
Whoever gets the lock takes every waiting request, its own among them, by locking the requests, and
releases the executor's lock: others may commit later requests. What it has committed it makes
receipts. No daemon, and nothing to leak: locks die with their holder, and the next one finds the
same requests.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from cairn.batch_ref import BatchRef
from cairn.errors import FencedError
from cairn.locks import try_lock, wait_for_lock
from cairn.runtime.commit.commit_files import Group, Request, commit_group
from cairn.runtime.commit.file_pool import FilePool
from cairn.runtime.executor.private_files import FILE_MODE
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed, write_whole
from cairn.storage.store import ObjectStore

_POLL_S = 0.002


class Running:
    """Marks a task as running, so that the lock's holder knows whom it may wait for."""

    def __init__(self, manager: TaskManager, checkpoint_id: int, attempt_id: str) -> None:
        self._mark = manager.directory / "running" / f"{checkpoint_id}-{attempt_id}-{os.getpid()}"

    def __enter__(self) -> Running:
        with fenced_if_removed(self._mark):
            self._mark.touch(FILE_MODE)
        return self

    def __exit__(self, *_: object) -> None:
        self._mark.unlink(missing_ok=True)


def ask(manager: TaskManager, request: Request) -> None:
    """Leaves a request where whoever commits next finds it. Once only: it may be taken at once.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    write_whole(_request_file(manager, request), msgspec.msgpack.encode(request))


def commit(manager: TaskManager, store: ObjectStore, batch: BatchRef, request: Request) -> None:
    """Returns once a request that was left is durable and acknowledged, by this task or another.

    Raises:
        StorageError, MetastoreError: nothing was acknowledged by this task; it may be run again.
        FencedError, RefusedError: see `acknowledge`; or a newer run or batch has removed the
            request before anybody committed it.
    """
    asked = _request_file(manager, request)
    while not _receipt_file(manager, request).exists():
        with ExitStack() as held:
            pool = FilePool(manager, held)
            group = _gather(manager, batch, request, pool, held)
            if group:
                # Receipts follow the ack: after a kill in between, the requests are committed
                # again, and acks of attempts that were recorded change nothing.
                commit_group(Group(manager=manager, store=store, batch=batch, requests=group), pool)
                with fenced_if_removed(asked):
                    for done in group:
                        _request_file(manager, done).rename(_receipt_file(manager, done))
                return
        # Free when its holder is done or dead; the receipt tells which.
        wait_for_lock(asked)


def _gather(
    manager: TaskManager, batch: BatchRef, request: Request, pool: FilePool, held: ExitStack
) -> list[Request]:
    """Returns the requests to commit, locked; none if another task has taken this one.

    Where the pool blocks, requests gather while it waits for a slot.
    """
    with manager.lock("commit"):
        asked = _request_file(manager, request)
        if try_lock(asked, held) is None:
            if asked.exists() or _receipt_file(manager, request).exists():
                return []
            raise FencedError(
                "the task's request was removed before it was committed: a newer run or batch has "
                "begun here",
                job=batch.job,
                checkpoint=request.checkpoint_id,
            )
        pool.take(1)
        # Of two attempts at a subtask the later one counts, so it is acknowledged last.
        return sorted(_collect(manager, request, held), key=lambda each: each.task_attempt)


def _collect(manager: TaskManager, request: Request, held: ExitStack) -> list[Request]:
    """Returns the requests to commit with one that is locked, locked too.

    Waits for every running task of the batch to ask, at most `persist-delay`, and no longer once
    `persist-size-threshold` bytes are to be written (FLIP-158, "Implementation notes").
    """
    settings = manager.run.settings
    give_up = time.monotonic() + settings.persist_delay_ms / 1000
    found = {_request_file(manager, request): request}
    while True:
        # Decided before the look, so that a request which arrives in between is still taken.
        is_last = time.monotonic() >= give_up or _all_have_asked(manager, request.checkpoint_id)
        _take_waiting(manager, request.checkpoint_id, found, held)
        size_bytes = sum(one.size_bytes for one in found.values())
        if is_last or size_bytes >= settings.persist_size_bytes:
            return list(found.values())
        # Requests are files of other processes; a look costs less than any way to be told.
        time.sleep(_POLL_S)


def _request_file(manager: TaskManager, request: Request) -> Path:
    return manager.directory / "pending" / f"{request.checkpoint_id}-{request.attempt_id}"


def _receipt_file(manager: TaskManager, request: Request) -> Path:
    return manager.directory / "acked" / f"{request.checkpoint_id}-{request.attempt_id}"


def _take_waiting(
    manager: TaskManager, checkpoint_id: int, found: dict[Path, Request], held: ExitStack
) -> None:
    """Adds the other requests for the checkpoint that nobody has locked, locked."""
    for file in (manager.directory / "pending").glob(f"{checkpoint_id}-*"):
        is_done = (manager.directory / "acked" / file.name).exists()
        if file in found or file.suffix == ".draft" or is_done:
            continue
        if try_lock(file, held) is not None:
            found[file] = msgspec.msgpack.decode(file.read_bytes(), type=Request)


def _all_have_asked(manager: TaskManager, checkpoint_id: int) -> bool:
    """Tells whether every running task of the batch has asked to be committed."""
    ready = {
        file.name.split("-", 1)[1]
        for name in ("pending", "acked")
        for file in (manager.directory / name).glob(f"{checkpoint_id}-*")
    }
    marks = (manager.directory / "running").glob(f"{checkpoint_id}-*")
    # A killed task leaves its mark: waiting for it would cost the whole delay.
    return all(_attempt_and_pid(mark)[0] in ready or _is_dead(mark) for mark in marks)


def _attempt_and_pid(mark: Path) -> tuple[str, int]:
    _, rest = mark.name.split("-", 1)
    attempt_id, pid = rest.rsplit("-", 1)
    return attempt_id, int(pid)


def _is_dead(mark: Path) -> bool:
    return not Path(f"/proc/{_attempt_and_pid(mark)[1]}").exists()
