"""Materialization: compacts one subtask's changelog, which can be deleted then (FLIP-158).

The source is a snapshot of the subtask's local state, which is always that of a confirmed
checkpoint. So the result is right whether the batches that run meanwhile succeed or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

import cairn.segments.format as segment_format
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.materializations import Materialized, Replay, install, replay_of
from cairn.catalog.job.segments import read_one_instant
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.layout import exclusive_file, shared_file
from cairn.runtime.commit.file_merging import AppendableFile, fill_files, is_full
from cairn.runtime.commit.file_pool import Slot, shared_slot
from cairn.runtime.commit.physical_files import FileWrite, write_files
from cairn.runtime.commit.uploads import Target
from cairn.runtime.executor.local_store import LocalReader
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.materialization.increment import net_changes, touched_by
from cairn.segments.reader import read_segments
from cairn.state.view import PUT, Changes
from metastore.enums import Scope, SegmentKind

_log = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20
"""About how much of the state one segment holds; a key group is never split."""
FULL_FROM_SHARE = 0.25
"""Most bytes on top of the bases before the next materialization, as a share of the bases' bytes.

An increment is written again with each materialization until it would be more. So this bounds both
the bytes that a restore reads beyond the state itself and the cost of an increment.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some key groups, and what replaces or changes their state, sorted by key."""

    key_groups: KeyGroupRange
    changes: Changes


@dataclass(frozen=True, slots=True)
class Encoded:
    """A segment to write."""

    spec: SegmentSpec
    data: bytes


Compute = Callable[[Iterator[Encoded]], Iterator[Encoded]]
"""Gives the same segments. They are computed where it draws them from the iterator."""


def materialize(
    context: SubtaskContext,
    reader: LocalReader,
    *,
    full_from_share: float = FULL_FROM_SHARE,
    compute: Compute = iter,
) -> Materialized | None:
    """Writes the subtask's state, or the changes since its bases, and releases the changelog.

    Returns the written segments; None if nothing has changed. Local state that another run has
    moved forward, or of a history that the metastore has lost, is left alone.

    Raises:
        FencedError: a newer run has begun a batch.
        StorageError, MetastoreError: it may be tried again; the written bytes have no handle.
    """
    run, subtask, position = context.run, context.subtask, reader.position()
    if position is None or position.checkpoint_id == 0 or position.epoch > run.epoch:
        return None
    key_groups, as_of = context.key_groups, position.checkpoint_id

    def look_up(connection: Connection) -> Replay:
        read_one_instant(connection)
        return replay_of(connection, run.job_id, as_of, key_groups)

    replay = run.catalog.run(f"find what subtask {subtask} of job {run.job} would replay", look_up)
    if replay.lineage != position.lineage or (replay.is_based and not replay.changes):
        return None
    replaced: Sequence[SegmentHandle] | None = None
    if replay.is_based and replay.share <= full_from_share:
        replaced = replay.changes
        pieces = _increment(context, reader, replay)
    else:
        pieces = chunks(reader, key_groups, CHUNK_BYTES)
    kind = SegmentKind.KEYED_FULL if replaced is None else SegmentKind.KEYED_INCREMENT
    # A generator, so that `compute` decides which thread does the work.
    encoded = (_encode(context, kind, chunk, as_of) for chunk in pieces)
    with ExitStack() as held:
        slot = shared_slot(context.manager, subtask, held)
        written = _write_all(context, compute(encoded), as_of, slot)
        run.catalog.run(
            f"install the materialization of subtask {subtask} of job {run.job}",
            lambda connection: install(connection, context.batch, subtask, written, replaced),
        )
        # After the installation: more may follow only bytes that have handles.
        _leave_open(slot, context, *written[-1])
    return Materialized.of([handle for _, handle in written])


def _increment(context: SubtaskContext, reader: LocalReader, replay: Replay) -> Iterator[Chunk]:
    store, job, key_groups = context.store, context.run.job, context.key_groups
    segments = read_segments(
        store, replay.changes, job=job, key_groups=key_groups, use_threads=False
    )
    touched = touched_by(changes for _, changes in segments)
    changes = (net_changes(reader, touched.get(group, ())) for group in _each(key_groups))
    yield from _chunked(key_groups, changes, CHUNK_BYTES)


def chunks(reader: LocalReader, key_groups: KeyGroupRange, chunk_bytes: int) -> Iterator[Chunk]:
    """Yields the state in chunks that together cover all the key groups, empty ones too."""
    changes = (_all_of(reader, KeyGroupRange(group, group + 1)) for group in _each(key_groups))
    return _chunked(key_groups, changes, chunk_bytes)


def _all_of(reader: LocalReader, key_groups: KeyGroupRange) -> Changes:
    # Sorted again: in LMDB, keys over its limit are not in order (ADR 0006).
    entries = sorted(reader.range(key_groups))
    keys, values = map(list, zip(*entries, strict=True)) if entries else ([], [])
    return Changes([PUT] * len(keys), keys, values)


def _each(key_groups: KeyGroupRange) -> range:
    return range(key_groups.start, key_groups.end)


def _chunked(
    key_groups: KeyGroupRange, by_key_group: Iterable[Changes], chunk_bytes: int
) -> Iterator[Chunk]:
    """Yields what replaces or changes each of the key groups, some of them at a time."""
    start, chunk, size_bytes = key_groups.start, Changes([], [], []), 0
    for end, changes in enumerate(by_key_group, start=start + 1):
        chunk.ops.extend(changes.ops)
        chunk.keys.extend(changes.keys)
        chunk.values.extend(changes.values)
        size_bytes += changes.size_bytes
        if size_bytes >= chunk_bytes or end == key_groups.end:
            yield Chunk(KeyGroupRange(start, end), chunk)
            start, chunk, size_bytes = end, Changes([], [], []), 0


def _encode(
    context: SubtaskContext, kind: SegmentKind, chunk: Chunk, as_of_checkpoint: int
) -> Encoded:
    job, subtask = context.run.job, context.subtask
    metadata = segment_format.segment_metadata(job, as_of_checkpoint, subtask, kind)
    # Arrow's threads would keep the priority of the one that needed them first.
    data = segment_format.encode(chunk.changes, metadata=metadata, use_threads=False)
    spec = SegmentSpec.of(
        data,
        kind=kind,
        key_groups=chunk.key_groups,
        entries=len(chunk.changes),
        checkpoint_id=as_of_checkpoint,
    )
    return Encoded(spec, data)


def _write_all(
    context: SubtaskContext,
    segments: Iterable[Encoded],
    as_of_checkpoint: int,
    slot: Slot | None,
) -> list[tuple[WrittenFile, SegmentHandle]]:
    """Writes files, the first at the end of the one at rest in the slot; returns each segment."""
    # Before the bytes, as in a group commit: a killed writer leaves no file to continue.
    appends_to = slot.give_up() if slot is not None else None
    written: list[tuple[WrittenFile, SegmentHandle]] = []
    for file in fill_files(segments, lambda s: len(s.data), context.settings, appends_to):
        try:
            written += _write(context, file, as_of_checkpoint, appends_to)
        except RefusedError as refused:
            # Nothing of it has a handle. Cleanup may have deleted the file that was to be
            # continued, once another executor's bases replaced all segments in it.
            if appends_to is None:
                raise
            facts = {"job": context.run.job, "subtask": context.subtask, "error": str(refused)}
            _log.warning("materialization refused; again, to a new file", extra=facts)
            written += _write(context, file, as_of_checkpoint, None)
        appends_to = None
    return written


def _leave_open(
    slot: Slot | None, context: SubtaskContext, last: WrittenFile, handle: SegmentHandle
) -> None:
    if slot is not None and not is_full(last.size_bytes, context.settings):
        slot.keep(
            AppendableFile(
                file_id=last.file_id,
                path=handle.path,
                size_bytes=last.size_bytes,
                subtasks=frozenset({context.subtask}),
            )
        )


def _write(
    context: SubtaskContext,
    segments: Sequence[Encoded],
    as_of_checkpoint: int,
    appends_to: AppendableFile | None,
) -> Iterator[tuple[WrittenFile, SegmentHandle]]:
    """Writes one file, or the end of one; yields each of its segments with it."""
    run, subtask = context.run, context.subtask
    directory = run.shared_directory(subtask) if run.settings.merging_enabled else None
    path_of = partial(shared_file, run.job_id, subtask, run.parallelism)
    if directory is None:
        path_of = partial(exclusive_file, run.job_id, as_of_checkpoint, subtask)
    target = Target(batch=context.batch, scope=Scope.SHARED, path_of=path_of, is_changelog=False)
    write = FileWrite(target, lambda: [segment.data for segment in segments], appends_to)
    [written] = write_files(context.manager, context.store, [write], claim=directory)
    offset = appends_to.size_bytes if appends_to else 0
    for segment in segments:
        yield written.file, segment.spec.at(written.path, offset)
        offset += segment.spec.size_bytes
