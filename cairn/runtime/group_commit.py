"""Group commit: one physical file and one transaction for all waiting subtasks of an executor.

A task leaves its segment in the spool and a request beside it, then waits for the executor's lock.
Whoever gets the lock commits every waiting request, its own among them, and makes them receipts.
No daemon, and nothing to leak: the lock dies with its holder, and the next one finds the same
requests.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from cairn.errors import FencedError
from cairn.handles import Scope, SegmentHandle, SegmentKind
from cairn.layout import task_manager_file
from cairn.runtime.executor import TaskManager, fenced_if_removed, write_whole
from cairn.runtime.uploads import Target, Uploaded, upload
from cairn.storage.store import ObjectStore
from metastore.acks import Ack, acknowledge
from metastore.batches import BatchRef
from metastore.engine import run_transaction

_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class SubtaskPart:
    """What one subtask did in an attempt. `size_bytes` is 0 if it changed nothing."""

    subtask: int
    input_rows: int
    late_rows: int
    max_event_ms: tuple[int | None, ...]
    restore_ms: int
    size_bytes: int
    sha256: str
    entries: int


@dataclass(frozen=True, slots=True)
class Request:
    """One task's wish that its subtasks be acknowledged."""

    checkpoint_id: int
    attempt_id: str
    task_attempt: int
    parts: tuple[SubtaskPart, ...]


class Running:
    """Marks a task as running, so that the lock's holder knows whom it may wait for."""

    def __init__(self, manager: TaskManager, checkpoint_id: int, attempt_id: str) -> None:
        self._mark = manager.directory / "running" / f"{checkpoint_id}-{attempt_id}-{os.getpid()}"

    def __enter__(self) -> Running:
        with fenced_if_removed(self._mark):
            self._mark.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self._mark.unlink(missing_ok=True)


def commit(manager: TaskManager, store: ObjectStore, batch: BatchRef, request: Request) -> None:
    """Returns once the request is durable and acknowledged, by this task or by another.

    Raises:
        StorageError, MetastoreError: nothing was acknowledged by this task; it may be run again.
        FencedError, RefusedError: see `metastore.acks.acknowledge`; or a newer run or batch has
            removed the request before anybody committed it.
    """
    asked = _request_file(manager, request)
    write_whole(asked, msgspec.msgpack.encode(request))
    with manager.lock("commit"):
        if _receipt_file(manager, request).exists():
            return
        if not asked.exists():
            raise FencedError(
                "the task's request was removed before it was committed: a newer run or batch has "
                "begun here",
                job=batch.job,
                checkpoint=request.checkpoint_id,
            )
        _wait_for_others(manager, request.checkpoint_id)
        waiting = _waiting(manager, request.checkpoint_id)
        _commit_all(manager, store, batch, waiting)
        with fenced_if_removed(asked):
            for done in waiting:
                _request_file(manager, done).rename(_receipt_file(manager, done))


def _request_file(manager: TaskManager, request: Request) -> Path:
    return manager.directory / "pending" / f"{request.checkpoint_id}-{request.attempt_id}"


def _receipt_file(manager: TaskManager, request: Request) -> Path:
    return manager.directory / "acked" / f"{request.checkpoint_id}-{request.attempt_id}"


def _waiting(manager: TaskManager, checkpoint_id: int) -> list[Request]:
    files = (manager.directory / "pending").glob(f"{checkpoint_id}-*")
    requests = [
        msgspec.msgpack.decode(file.read_bytes(), type=Request)
        for file in files
        if file.suffix != ".draft"
    ]
    return sorted(requests, key=lambda request: request.task_attempt)


def _wait_for_others(manager: TaskManager, checkpoint_id: int) -> None:
    """Waits until every running task of the batch has asked too, at most `persist-delay`."""
    give_up = time.monotonic() + manager.plan.settings.persist_delay_ms / 1000
    while time.monotonic() < give_up:
        ready = {
            file.name.split("-", 1)[1]
            for name in ("pending", "acked")
            for file in (manager.directory / name).glob(f"{checkpoint_id}-*")
        }
        marks = (manager.directory / "running").glob(f"{checkpoint_id}-*")
        if all(_attempt_and_pid(mark)[0] in ready or _is_dead(mark) for mark in marks):
            return
        time.sleep(_POLL_S)


def _attempt_and_pid(mark: Path) -> tuple[str, int]:
    _, rest = mark.name.split("-", 1)
    attempt_id, pid = rest.rsplit("-", 1)
    return attempt_id, int(pid)


def _is_dead(mark: Path) -> bool:
    return not Path(f"/proc/{_attempt_and_pid(mark)[1]}").exists()


def _commit_all(
    manager: TaskManager, store: ObjectStore, batch: BatchRef, requests: Sequence[Request]
) -> None:
    plan = manager.plan
    checkpoint_id = requests[0].checkpoint_id
    parts = [(request, part) for request in requests for part in request.parts]
    parts.sort(key=lambda pair: pair[1].subtask)
    spooled = [
        manager.spool_file(checkpoint_id, request.attempt_id, part.subtask)
        for request, part in parts
        if part.size_bytes
    ]
    uploaded = _write_file(manager, store, batch, spooled) if spooled else None
    acks, offset = [], 0
    for request, part in parts:
        acks.append(_ack(manager, request, part, offset, uploaded.path if uploaded else ""))
        offset += part.size_bytes
    run_transaction(
        plan.metastore_url,
        lambda connection: acknowledge(
            connection,
            batch,
            checkpoint_id=checkpoint_id,
            tm_id=manager.tm_id,
            acks=acks,
            file=uploaded.file if uploaded else None,
            uploads=[uploaded.stats] if uploaded else [],
        ),
        timeout_ms=plan.settings.metastore_timeout_ms,
        what=f"acknowledge checkpoint {checkpoint_id} of job {plan.job}",
    )


def _write_file(
    manager: TaskManager, store: ObjectStore, batch: BatchRef, spooled: Sequence[Path]
) -> Uploaded:
    path_of = partial(task_manager_file, batch.job_id, manager.tm_id)
    segments = [file.read_bytes() for file in spooled]
    target = Target(batch, Scope.TASK_MANAGER, path_of, is_changelog=True)
    return upload(manager, store, target, segments)


def _ack(manager: TaskManager, request: Request, part: SubtaskPart, offset: int, path: str) -> Ack:
    segment = None
    if part.size_bytes:
        segment = SegmentHandle(
            str(uuid.uuid4()),
            SegmentKind.CHANGELOG,
            path,
            offset,
            part.size_bytes,
            part.sha256,
            manager.plan.key_groups(part.subtask),
            part.entries,
            request.checkpoint_id,
            request.checkpoint_id,
        )
    return Ack(
        part.subtask,
        request.attempt_id,
        request.task_attempt,
        part.input_rows,
        part.restore_ms,
        segment,
        part.late_rows,
        part.max_event_ms,
    )
