"""The files and the one acknowledging transaction of a group commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cairn.errors import RefusedError
from cairn.handles import Scope, SegmentHandle, SegmentKind
from cairn.layout import exclusive_file, task_manager_file
from cairn.runtime.executor import TaskManager, fenced_if_removed
from cairn.runtime.file_pool import FilePool
from cairn.runtime.merging import OpenFile, Piece, PlannedFile, is_full, plan_files
from cairn.runtime.physical_files import FileWrite, write_files
from cairn.runtime.uploads import Target, Uploaded
from cairn.storage.store import ObjectStore
from metastore.acks import Ack, acknowledge
from metastore.batches import BatchRef
from metastore.engine import run_transaction


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


Part = tuple[Request, SubtaskPart]


@dataclass(frozen=True, slots=True)
class Group:
    """The requests that one task commits for all, at least one."""

    manager: TaskManager
    store: ObjectStore
    batch: BatchRef
    requests: Sequence[Request]

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that all requests are for."""
        return self.requests[0].checkpoint_id

    def parts(self) -> list[Part]:
        """Returns all parts in order of subtask."""
        pairs = [(request, part) for request in self.requests for part in request.parts]
        return sorted(pairs, key=lambda pair: pair[1].subtask)

    def changed(self) -> list[Part]:
        """Returns those that have a segment."""
        return [pair for pair in self.parts() if pair[1].size_bytes]


def commit_group(group: Group, pool: FilePool) -> None:
    """Returns once the group's segments are durable and acknowledged.

    Raises:
        StorageError, MetastoreError, FencedError, RefusedError: see `group_commit.commit`.
    """
    settings = group.manager.plan.settings
    pieces = [Piece(part.subtask, part.size_bytes) for _, part in group.changed()]
    new_files = plan_files(pieces, settings)
    pool.take(len(new_files))
    files = plan_files(pieces, settings, pool.open_files())
    try:
        _write_and_acknowledge(group, pool, files)
    except RefusedError:
        # Nothing was acknowledged. Cleanup may have condemned a file that was to go on; a run
        # that was replaced is refused again.
        if not any(file.goes_on for file in files):
            raise
        _write_and_acknowledge(group, pool, new_files)


def _write_and_acknowledge(group: Group, pool: FilePool, files: Sequence[PlannedFile]) -> None:
    manager, changed = group.manager, group.changed()
    settings = manager.plan.settings
    for file in files:
        if file.goes_on is not None:
            pool.give_up(file.goes_on)
    inside = [[changed[place] for place in file.pieces] for file in files]
    written = write_files(
        manager,
        group.store,
        [_write_of(group, *one) for one in zip(files, inside, strict=True)],
        claim=manager.owned if settings.merging_enabled else None,
        writers=pool.writers,
    )
    handles: dict[tuple[str, int], SegmentHandle] = {}
    for done, file, parts in zip(written, files, inside, strict=True):
        offset = file.goes_on.size_bytes if file.goes_on else 0
        for request, part in parts:
            handles[request.attempt_id, part.subtask] = _handle(group, part, done.path, offset)
            offset += part.size_bytes
    _acknowledge(group, written, [_ack(*pair, handles) for pair in group.parts()])
    pool.keep(
        [
            OpenFile(done.file.file_id, done.path, file.size_bytes, frozenset(file.subtasks))
            for done, file in zip(written, files, strict=True)
            if not is_full(file.size_bytes, settings)
        ]
    )


def _write_of(group: Group, file: PlannedFile, inside: Sequence[Part]) -> FileWrite:
    plan = group.manager.plan
    path_of = partial(task_manager_file, plan.job_id, group.manager.tm_id)
    if not plan.settings.merging_enabled:
        [(_, part)] = inside
        path_of = partial(exclusive_file, plan.job_id, group.checkpoint_id, part.subtask)
    target = Target(group.batch, Scope.TASK_MANAGER, path_of, is_changelog=True)
    return FileWrite(target, lambda: list(_spooled(group, inside)), file.goes_on)


def _spooled(group: Group, inside: Sequence[Part]) -> Iterable[bytes]:
    for request, part in inside:
        spooled = group.manager.spool_file(request.checkpoint_id, request.attempt_id, part.subtask)
        with fenced_if_removed(spooled):
            yield spooled.read_bytes()


def _acknowledge(group: Group, written: Sequence[Uploaded], acks: Sequence[Ack]) -> None:
    plan = group.manager.plan
    run_transaction(
        plan.metastore_url,
        lambda connection: acknowledge(
            connection,
            group.batch,
            checkpoint_id=group.checkpoint_id,
            tm_id=group.manager.tm_id,
            acks=acks,
            files={one.path: one.file for one in written},
            uploads=[one.stats for one in written],
        ),
        timeout_ms=plan.settings.metastore_timeout_ms,
        what=f"acknowledge checkpoint {group.checkpoint_id} of job {plan.job}",
    )


def _handle(group: Group, part: SubtaskPart, path: str, offset: int) -> SegmentHandle:
    return SegmentHandle(
        str(uuid.uuid4()),
        SegmentKind.CHANGELOG,
        path,
        offset,
        part.size_bytes,
        part.sha256,
        group.manager.plan.key_groups(part.subtask),
        part.entries,
        group.checkpoint_id,
        group.checkpoint_id,
    )


def _ack(request: Request, part: SubtaskPart, handles: dict[tuple[str, int], SegmentHandle]) -> Ack:
    return Ack(
        part.subtask,
        request.attempt_id,
        request.task_attempt,
        part.input_rows,
        part.restore_ms,
        handles.get((request.attempt_id, part.subtask)),
        part.late_rows,
        part.max_event_ms,
    )
