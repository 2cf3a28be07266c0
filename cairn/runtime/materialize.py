"""Materialisation: a full snapshot of one subtask's state, so that its changelog can go (FLIP-158).

Taken from the read transaction of the parent checkpoint, which is confirmed, so the snapshot stays
right whatever becomes of the batch that made it.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cairn.segments.format as segment_format
from cairn.errors import StoreFailedError
from cairn.handles import Scope, SegmentHandle, SegmentKind
from cairn.keygroups import KeyGroupRange
from cairn.layout import exclusive_file, shared_file
from cairn.runtime.executor import TaskManager, write_whole
from cairn.runtime.file_pool import slot_of
from cairn.runtime.local_store import LocalReader
from cairn.runtime.merging import fill_files
from cairn.runtime.physical_files import FileWrite, write_files
from cairn.runtime.plan import RunPlan
from cairn.state.view import PUT
from cairn.storage.store import ObjectStore
from metastore.acks import WrittenFile
from metastore.bases import install_base
from metastore.batches import BatchRef, Clock
from metastore.engine import run_transaction

CHUNK_BYTES = 32 << 20
"""About how much of the state one segment holds; a key group is never split."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The whole state of some key groups, sorted by key."""

    key_groups: KeyGroupRange
    keys: list[bytes]
    values: list[bytes]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A segment to write, and what it covers."""

    key_groups: KeyGroupRange
    entries: int
    data: bytes


def is_due(clock: Clock, *, subtask: int, parallelism: int, start: int, interval_ms: int) -> bool:
    """Tells whether a tick of the subtask's own phase has passed since its last base.

    Each subtask ticks once per interval, `1/parallelism` of it after the one before, so that
    materialisations stay spread over subtasks whatever restarts.
    """
    phase_ms = interval_ms * subtask // parallelism
    last_ms = clock.base_made_ms.get(start, clock.job_created_ms)
    return (clock.now_ms - phase_ms) // interval_ms > (last_ms - phase_ms) // interval_ms


def materialize(
    manager: TaskManager,
    store: ObjectStore,
    batch: BatchRef,
    subtask: int,
    reader: LocalReader,
) -> None:
    """Writes the subtask's state as new bases and releases what they replace.

    A store that fails is noted and tried again with the next batch; after
    `cairn.changelog.max-failures-allowed` failures in a row the error is raised, and a restart
    counts from the start.
    """
    failures = manager.subtask_directory(subtask).with_suffix(".failures")
    try:
        _materialize(manager, store, batch, subtask, reader)
    except StoreFailedError as error:
        count = _count(failures) + 1
        if count >= manager.plan.settings.materialize_max_failures:
            failures.unlink(missing_ok=True)
            raise
        write_whole(failures, str(count).encode())
        _log.warning("materialisation %d of subtask %d failed: %s", count, subtask, error)
    else:
        failures.unlink(missing_ok=True)


def _count(failures: Path) -> int:
    return int(failures.read_text()) if failures.exists() else 0


def _materialize(
    manager: TaskManager,
    store: ObjectStore,
    batch: BatchRef,
    subtask: int,
    reader: LocalReader,
) -> None:
    plan = manager.plan
    position = reader.position()
    if position is None or position.checkpoint_id == 0:
        return
    segments = (
        _encode(plan, subtask, chunk, position.checkpoint_id)
        for chunk in chunks(reader, plan.key_groups(subtask), CHUNK_BYTES)
    )
    bases = [
        base
        for file in fill_files(segments, lambda segment: len(segment.data), plan.settings)
        for base in _write(manager, store, batch, subtask, file, position.checkpoint_id)
    ]
    run_transaction(
        plan.metastore_url,
        lambda connection: install_base(connection, batch, subtask, bases),
        timeout_ms=plan.settings.metastore_timeout_ms,
        what=f"install the materialisation of subtask {subtask} of job {plan.job}",
    )


def _encode(plan: RunPlan, subtask: int, chunk: Chunk, as_of_checkpoint: int) -> Encoded:
    data = segment_format.encode(
        [PUT] * len(chunk.keys),
        chunk.keys,
        chunk.values,
        metadata={
            "job": plan.job,
            "checkpoint": str(as_of_checkpoint),
            "subtask": str(subtask),
            "kind": SegmentKind.KEYED_FULL.value,
        },
    )
    return Encoded(chunk.key_groups, len(chunk.keys), data)


def _write(
    manager: TaskManager,
    store: ObjectStore,
    batch: BatchRef,
    subtask: int,
    segments: Sequence[Encoded],
    as_of_checkpoint: int,
) -> Iterator[tuple[WrittenFile, SegmentHandle]]:
    """Writes one file; yields each of its segments with it."""
    plan = manager.plan
    file_id = str(uuid.uuid4())
    directory = plan.shared_directory(subtask) if plan.settings.merging_enabled else None
    if directory is not None:
        path = shared_file(plan.job_id, subtask, plan.parallelism, file_id)
    else:
        path = exclusive_file(plan.job_id, as_of_checkpoint, subtask, file_id)
    write = FileWrite(file_id, path, 0, lambda: [segment.data for segment in segments])
    with slot_of(manager):
        write_files(manager, store, batch, Scope.SHARED, [write], claim=directory)
    offset = 0
    written = WrittenFile(file_id, path, sum(len(segment.data) for segment in segments))
    for segment in segments:
        yield (
            written,
            SegmentHandle(
                str(uuid.uuid4()),
                SegmentKind.KEYED_FULL,
                path,
                offset,
                len(segment.data),
                hashlib.sha256(segment.data).hexdigest(),
                segment.key_groups,
                segment.entries,
                as_of_checkpoint,
                as_of_checkpoint,
            ),
        )
        offset += len(segment.data)


def chunks(reader: LocalReader, key_groups: KeyGroupRange, chunk_bytes: int) -> Iterator[Chunk]:
    """Yields the state in chunks that together cover all the key groups, empty ones too."""
    start = key_groups.start
    entries: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key_group in range(key_groups.start, key_groups.end):
        for entry in reader.range(KeyGroupRange(key_group, key_group + 1)):
            entries.append(entry)
            size_bytes += len(entry[0]) + len(entry[1])
        if size_bytes >= chunk_bytes or key_group + 1 == key_groups.end:
            entries.sort()
            yield Chunk(
                KeyGroupRange(start, key_group + 1),
                [key for key, _ in entries],
                [value for _, value in entries],
            )
            start, entries, size_bytes = key_group + 1, [], 0
