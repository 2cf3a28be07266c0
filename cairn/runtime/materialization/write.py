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
from cairn.catalog.job.files import Uploaded, WrittenFile
from cairn.catalog.job.materializations import Materialized, Replay, install, replays_of
from cairn.catalog.job.segments import read_one_instant
from cairn.errors import RefusedError
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.layout import exclusive_file, shared_file
from cairn.runtime.commit.file_merging import AppendableFile, fill_files, is_full
from cairn.runtime.commit.file_pool import Slot, shared_slot
from cairn.runtime.commit.physical_files import FileWrite, write_files
from cairn.runtime.commit.uploads import Target
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_record import Digest
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.materialization.increment import Touched, net_changes, touched_by
from cairn.segments.format import CHUNK_BYTES
from cairn.segments.reader import read_segments
from cairn.state.view import PUT, Changes
from metastore.enums import Scope, SegmentKind

_log = logging.getLogger(__name__)

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
        DamagedStateError: local state is not what was written; nothing is installed.
        StorageError, MetastoreError: it may be tried again; the written bytes have no handle.
    """
    [made] = materialize_all([(context, reader)], full_from_share=full_from_share, compute=compute)
    return made


def materialize_all(
    subtasks: Sequence[tuple[SubtaskContext, LocalReader]],
    *,
    full_from_share: float = FULL_FROM_SHARE,
    compute: Compute = iter,
) -> list[Materialized | None]:
    """Does what `materialize` does for subtasks of one run, with one transaction of each kind.

    All or none of them is installed. The segments of several are in memory at once.
    """
    work: list[_Work | None] = [
        _work(context, reader, replay, full_from_share)
        for (context, reader), replay in zip(subtasks, _replays(subtasks), strict=True)
    ]
    to_do = [one for one in work if one is not None]
    with ExitStack() as held:
        slots = [shared_slot(one.context.manager, one.context.subtask, held) for one in to_do]
        if len(to_do) == 1:
            written = [_write_all(to_do[0], compute(_encoded(to_do[0])), slots[0])]
        else:
            written = _write_together(to_do, slots, compute)
        if to_do:
            _install(to_do, written)
        # After the installation: more may follow only bytes that have handles.
        for one, slot, files in zip(to_do, slots, written, strict=True):
            _leave_open(slot, one.context, *files[-1])
    made = iter(written)
    return [
        None
        if one is None
        else Materialized.of(
            [handle for _, handle in next(made)], one.replaced.bases if one.replaced else ()
        )
        for one in work
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is to be written for a subtask: bases, or an increment on `replaced` (None: bases)."""

    context: SubtaskContext
    as_of_checkpoint: int
    replaced: Replay | None
    pieces: Iterator[Chunk]


def _replays(subtasks: Sequence[tuple[SubtaskContext, LocalReader]]) -> list[Replay | None]:
    """Returns what each subtask would replay, as of one instant; None where it must not be read."""
    wanted: dict[int, list[int]] = {}
    for place, (context, reader) in enumerate(subtasks):
        at = reader.position()
        if at is not None and at.checkpoint_id and at.epoch <= context.run.epoch:
            wanted.setdefault(at.checkpoint_id, []).append(place)
    replays: list[Replay | None] = [None] * len(subtasks)
    if not wanted:
        return replays
    run = subtasks[0][0].run

    def look_up(connection: Connection) -> None:
        read_one_instant(connection)
        for as_of, places in wanted.items():
            shares = [subtasks[place][0].key_groups for place in places]
            found = replays_of(connection, run.job_id, as_of, shares)
            for place, replay in zip(places, found, strict=True):
                replays[place] = replay

    names = ", ".join(str(context.subtask) for context, _ in subtasks)
    run.catalog.run(f"find what subtask {names} of job {run.job} would replay", look_up)
    return replays


def _work(
    context: SubtaskContext, reader: LocalReader, replay: Replay | None, full_from_share: float
) -> _Work | None:
    """Returns what is to be written, if anything has changed in a state that is to be read."""
    position = reader.position()
    if replay is None or position is None or replay.lineage != position.lineage:
        return None
    if replay.is_based and not replay.changes:
        return None
    is_increment = replay.is_based and replay.share <= full_from_share
    return _Work(
        context=context,
        as_of_checkpoint=position.checkpoint_id,
        replaced=replay if is_increment else None,
        pieces=_increment(context, reader, replay)
        if is_increment
        else chunks(reader, context.key_groups, CHUNK_BYTES),
    )


def _encoded(work: _Work) -> Iterator[Encoded]:
    # A generator, so that `compute` decides which thread does the work.
    kind = SegmentKind.KEYED_FULL if work.replaced is None else SegmentKind.KEYED_INCREMENT
    return (_encode(work.context, kind, chunk, work.as_of_checkpoint) for chunk in work.pieces)


def _install(
    to_do: Sequence[_Work], written: Sequence[Sequence[tuple[WrittenFile, SegmentHandle]]]
) -> None:
    run = to_do[0].context.run

    def work(connection: Connection) -> None:
        for one, segments in zip(to_do, written, strict=True):
            context = one.context
            install(connection, context.batch, context.subtask, segments, one.replaced)

    names = ", ".join(str(one.context.subtask) for one in to_do)
    run.catalog.run(f"install the materialization of subtask {names} of job {run.job}", work)


def _increment(context: SubtaskContext, reader: LocalReader, replay: Replay) -> Iterator[Chunk]:
    store, job, key_groups = context.store, context.run.job, context.key_groups
    segments = read_segments(
        store, replay.changes, job=job, key_groups=key_groups, use_threads=False
    )
    base_as_of = {
        group: base.as_of_checkpoint
        for base in sorted(replay.bases, key=lambda base: base.as_of_checkpoint)
        for group in range(base.key_groups.start, base.key_groups.end)
    }
    changed = ((segment.as_of_checkpoint, changes) for segment, changes in segments)
    touched, untouched = touched_by(changed, base_as_of), Touched()
    changes = (net_changes(reader, touched.get(group, untouched)) for group in _each(key_groups))
    yield from _chunked(key_groups, changes, CHUNK_BYTES)


def chunks(reader: LocalReader, key_groups: KeyGroupRange, chunk_bytes: int) -> Iterator[Chunk]:
    """Yields the state in chunks that together cover all the key groups, empty ones too.

    Raises, after the last one:
        DamagedStateError: what was read is not what was written.
    """
    seen = Digest()
    changes = (
        _all_of(reader, KeyGroupRange(group, group + 1), seen) for group in _each(key_groups)
    )
    yield from _chunked(key_groups, changes, chunk_bytes)
    reader.check(seen)


def _all_of(reader: LocalReader, key_groups: KeyGroupRange, seen: Digest) -> Changes:
    # Sorted again: in LMDB, keys over its limit are not in order (ADR 0006).
    entries = sorted(reader.range(key_groups, seen))
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
    work: _Work, segments: Iterable[Encoded], slot: Slot | None
) -> list[tuple[WrittenFile, SegmentHandle]]:
    """Writes files, the first at the end of the one at rest in the slot; returns each segment."""
    # Before the bytes, as in a group commit: a killed writer leaves no file to continue.
    appends_to = slot.give_up() if slot is not None else None
    context, as_of = work.context, work.as_of_checkpoint
    written: list[tuple[WrittenFile, SegmentHandle]] = []
    for file in fill_files(segments, lambda s: len(s.data), context.settings, appends_to):
        try:
            written += _write(context, file, as_of, appends_to)
        except RefusedError as refused:
            # Nothing of it has a handle. Cleanup may have deleted the file that was to be
            # continued, once another executor's bases replaced all segments in it.
            if appends_to is None:
                raise
            facts = {"job": context.run.job, "subtask": context.subtask, "error": str(refused)}
            _log.warning("materialization refused; again, to a new file", extra=facts)
            written += _write(context, file, as_of, None)
        appends_to = None
    return written


def _write_together(
    to_do: Sequence[_Work], slots: Sequence[Slot | None], compute: Compute
) -> list[list[tuple[WrittenFile, SegmentHandle]]]:
    """Writes a file for each subtask, or the end of the one at rest; returns their segments."""
    files = [
        (one, list(compute(_encoded(one))), slot.give_up() if slot is not None else None)
        for one, slot in zip(to_do, slots, strict=True)
    ]
    if not files:
        return []
    context = to_do[0].context
    done = write_files(
        context.manager,
        context.store,
        [
            _file_of(one.context, segments, one.as_of_checkpoint, appends_to)
            for one, segments, appends_to in files
        ],
        claims=[claim for one in to_do if (claim := _claim_of(one.context)) is not None],
    )
    return [
        list(_placed(uploaded, segments, appends_to))
        for uploaded, (_, segments, appends_to) in zip(done, files, strict=True)
    ]


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
    """Writes one file, or the end of one; returns each of its segments with it."""
    file, claim = _file_of(context, segments, as_of_checkpoint, appends_to), _claim_of(context)
    claims = [] if claim is None else [claim]
    [written] = write_files(context.manager, context.store, [file], claims=claims)
    return _placed(written, segments, appends_to)


def _claim_of(context: SubtaskContext) -> DirectoryHandle | None:
    run = context.run
    return run.shared_directory(context.subtask) if run.settings.merging_enabled else None


def _file_of(
    context: SubtaskContext,
    segments: Sequence[Encoded],
    as_of_checkpoint: int,
    appends_to: AppendableFile | None,
) -> FileWrite:
    run, subtask = context.run, context.subtask
    path_of = partial(shared_file, run.job_id, subtask, run.parallelism)
    if not run.settings.merging_enabled:
        path_of = partial(exclusive_file, run.job_id, as_of_checkpoint, subtask)
    target = Target(
        batch=context.batch,
        scope=Scope.SHARED,
        path_of=path_of,
        is_changelog=False,
        materialization_id=context.materialization_id,
    )
    return FileWrite(target, lambda: [segment.data for segment in segments], appends_to)


def _placed(
    written: Uploaded, segments: Sequence[Encoded], appends_to: AppendableFile | None
) -> Iterator[tuple[WrittenFile, SegmentHandle]]:
    """Yields each of a file's segments with it."""
    offset = appends_to.size_bytes if appends_to else 0
    for segment in segments:
        yield written.file, segment.spec.at(written.path, offset)
        offset += segment.spec.size_bytes
