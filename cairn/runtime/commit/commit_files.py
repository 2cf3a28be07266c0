"""The files and the one acknowledging transaction of a group commit."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cairn.batch_ref import BatchRef
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.files import Uploaded
from cairn.catalog.job.group_commits import Ack
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from cairn.layout import exclusive_file, task_manager_file
from cairn.runtime.commit.file_merging import (
    AppendableFile,
    Piece,
    PlannedFile,
    is_full,
    plan_files,
)
from cairn.runtime.commit.file_pool import FilePool
from cairn.runtime.commit.physical_files import FileWrite, write_files
from cairn.runtime.commit.uploads import Target
from cairn.runtime.executor.spool import Spool, SpooledSegment
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.store import ObjectStore
from metastore.enums import Scope

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskResult:
    """What one subtask did in an attempt. It has no changelog if it changed nothing."""

    subtask: int
    input_rows: int
    late_rows: int
    max_event_ms: tuple[int | None, ...]
    restore_ms: int
    segments: tuple[SpooledSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One task's wish that its subtasks be acknowledged."""

    checkpoint_id: int
    attempt_id: str
    task_attempt: int
    results: tuple[SubtaskResult, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that are to be written."""
        segments = (segment for result in self.results for segment in result.segments)
        return sum(segment.spec.size_bytes for segment in segments if segment.uploaded is None)


@dataclass(frozen=True, slots=True)
class Owned:
    """A segment with the request and the subtask it belongs to."""

    request: Request
    subtask: int
    segment: SpooledSegment


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def results(self) -> list[tuple[Request, SubtaskResult]]:
        """Returns all results in order of subtask."""
        pairs = [(request, result) for request in self.requests for result in request.results]
        return sorted(pairs, key=lambda pair: pair[1].subtask)

    def segments(self) -> list[Owned]:
        """Returns the results' segments in order of subtask."""
        return [
            Owned(request, result.subtask, segment)
            for request, result in self.results()
            for segment in result.segments
        ]

    def waiting(self) -> list[Owned]:
        """Returns those that are to be written."""
        return [one for one in self.segments() if one.segment.uploaded is None]


def commit_group(group: Group, pool: FilePool) -> None:
    """Returns once the group's segments are durable and acknowledged.

    Raises:
        StorageError, MetastoreError, FencedError, RefusedError: see `group_commit.commit`.
    """
    settings = group.manager.run.settings
    pieces = [Piece(one.subtask, one.segment.spec.size_bytes) for one in group.waiting()]
    # Planned twice: it takes a slot to see which files are at rest, and a plan to know how many
    # slots.
    new_files = plan_files(pieces, settings)
    pool.take(len(new_files))
    files = plan_files(pieces, settings, pool.appendable_files())
    try:
        _write_and_acknowledge(group, pool, files)
    except RefusedError as refused:
        # Nothing was acknowledged. Cleanup may have condemned a file that was to be continued;
        # a run that was replaced is refused again.
        if not any(file.appends_to for file in files):
            raise
        facts = {"job": group.batch.job, "checkpoint": group.checkpoint_id, "error": str(refused)}
        _log.warning("commit refused; again, to new files", extra=facts)
        _write_and_acknowledge(group, pool, new_files)


def _write_and_acknowledge(group: Group, pool: FilePool, files: Sequence[PlannedFile]) -> None:
    manager, waiting = group.manager, group.waiting()
    settings = manager.run.settings
    # Before the bytes: a kill after them must not let anybody append behind an unknown end.
    for file in files:
        if file.appends_to is not None:
            pool.give_up(file.appends_to)
    inside = [[waiting[place] for place in file.pieces] for file in files]
    written = write_files(
        manager,
        group.store,
        [_write_of(group, *one) for one in zip(files, inside, strict=True)],
        claims=[manager.owned] if settings.merging_enabled else [],
        writers=pool.writers,
    )
    handles = defaultdict[tuple[str, int], list[SegmentHandle]](list)
    for done, file, segments in zip(written, files, inside, strict=True):
        offset = file.appends_to.size_bytes if file.appends_to else 0
        for one in segments:
            of_subtask = handles[one.request.attempt_id, one.subtask]
            of_subtask.append(one.segment.spec.at(done.path, offset))
            offset += one.segment.spec.size_bytes
    # Sealed by the same ack: what was uploaded early counts only with its whole batch.
    early = []
    for one in group.segments():
        if one.segment.uploaded is not None:
            early.append(one.segment.uploaded)
            of_subtask = handles[one.request.attempt_id, one.subtask]
            of_subtask.append(one.segment.spec.at(one.segment.uploaded.path))
    acks = [
        _ack(request, result, handles[request.attempt_id, result.subtask])
        for request, result in group.results()
    ]
    _acknowledge(group, [*written, *early], acks, pool.waited_ms)
    # After the ack: whatever follows in the file is behind bytes that have handles.
    pool.keep(
        [
            AppendableFile(
                file_id=done.file.file_id,
                path=done.path,
                size_bytes=file.size_bytes,
                subtasks=frozenset(file.subtasks),
            )
            for done, file in zip(written, files, strict=True)
            if not is_full(file.size_bytes, settings)
        ]
    )


def _write_of(group: Group, file: PlannedFile, inside: Sequence[Owned]) -> FileWrite:
    target = changelog_target(group.manager, group.batch, group.checkpoint_id, inside[0].subtask)
    return FileWrite(target, lambda: list(_spooled(group, inside)), file.appends_to)


def changelog_target(
    manager: TaskManager, batch: BatchRef, checkpoint_id: int, subtask: int
) -> Target:
    """Returns the path of a file with changelog of a subtask, of others too if merging is on."""
    run = manager.run
    path_of = partial(task_manager_file, run.job_id, manager.tm_id)
    if not run.settings.merging_enabled:
        path_of = partial(exclusive_file, run.job_id, checkpoint_id, subtask)
    return Target(batch=batch, scope=Scope.TASK_MANAGER, path_of=path_of, is_changelog=True)


def _spooled(group: Group, inside: Sequence[Owned]) -> Iterable[bytes]:
    for one in inside:
        spool = Spool(
            manager=group.manager,
            checkpoint_id=group.checkpoint_id,
            attempt_id=one.request.attempt_id,
            subtask=one.subtask,
        )
        yield spool.read(one.segment)


def _acknowledge(
    group: Group, written: Sequence[Uploaded], acks: Sequence[Ack], pool_wait_ms: int
) -> None:
    run = group.manager.run
    run.catalog.run_each(
        f"acknowledge checkpoint {group.checkpoint_id} of job {run.job}",
        lambda connection: acknowledge(
            connection,
            group.batch,
            checkpoint_id=group.checkpoint_id,
            tm_id=group.manager.tm_id,
            acks=acks,
            files={one.path: one.file for one in written},
            uploads=[one.stats for one in written],
            pool_wait_ms=pool_wait_ms,
        ),
    )


def _ack(request: Request, result: SubtaskResult, handles: Sequence[SegmentHandle]) -> Ack:
    return Ack(
        subtask=result.subtask,
        attempt_id=request.attempt_id,
        task_attempt=request.task_attempt,
        input_rows=result.input_rows,
        restore_ms=result.restore_ms,
        segments=tuple(sorted(handles, key=lambda handle: handle.sequence_number)),
        late_rows=result.late_rows,
        max_event_ms=result.max_event_ms,
    )
