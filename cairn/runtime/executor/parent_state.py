"""Bringing a subtask's local state to the parent checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import lmdb
from sqlalchemy import Connection

from cairn.catalog.job.batch_start import BatchStart, Parent
from cairn.catalog.job.damage import Restore, restore_around
from cairn.catalog.job.segments import current_epoch, lineage_of, read_one_instant
from cairn.errors import CairnError, CorruptSegmentError, FencedError, RefusedError, StorageError
from cairn.handles import SegmentHandle
from cairn.runtime.executor.fetched_once import FetchedOnce, shared_ranges
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_record import Position, Weight
from cairn.runtime.executor.local_store import LocalStore, MapGrownError
from cairn.runtime.executor.local_writer import LocalWriter
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.spool import Spool
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.segments.format import decode
from cairn.segments.reader import expected_bytes, read_bytes, read_segment, read_segments
from cairn.storage.store import ObjectStore, find_object
from metastore.enums import SegmentKind

_log = logging.getLogger(__name__)

NOTHING = Position(0, "", 0)
"""An empty environment: checkpoint ids and epochs start at 1."""


@contextmanager
def parent_state(context: SubtaskContext, start: BatchStart) -> Iterator[LocalReader]:
    """Yields a snapshot of exactly the parent's state, catching up or restoring first.

    Raises:
        FencedError: a newer run, or a later batch, has moved the local state on.
        CorruptSegmentError: a segment's bytes are not those that were written.
        RefusedError: they are not, as a scrub has found, and nothing else has the state.
        DamagedStateError: the local state's are not. The next attempt restores them.
        StorageError, MetastoreError: a segment cannot be read, or not be found out.
    """
    wanted = NOTHING if start.parent is None else _position_of(start.parent)
    # With this run's epoch, so that a late task of an older run sees that it was overtaken.
    wanted = dataclasses.replace(wanted, epoch=context.run.epoch)
    local = open_local(context.directory)
    with local.watched():
        with local.read() as reader, _verified_at_failure(reader):
            # As after an attempt that failed once it had caught up: no write transaction.
            if reader.position() == wanted:
                yield reader
                return
        _bring(local, context, start.parent, wanted)
        with local.read() as reader, _verified_at_failure(reader):
            # Another process may have moved it on between the two transactions.
            if reader.position() != wanted:
                raise _moved_on(context, reader.position())
            yield reader


@contextmanager
def _verified_at_failure(reader: LocalReader) -> Iterator[None]:
    """Looks, where work on the state has failed, whether the state is what was written.

    A damaged value may be any error to who decodes it, and would be one in every attempt.

    Raises:
        DamagedStateError: it is not.
    """
    is_known = False
    try:
        yield
        is_known = True
    except (CairnError, lmdb.Error, GeneratorExit, KeyboardInterrupt):
        is_known = True
        raise
    finally:
        if not is_known:
            reader.verify()


def _position_of(parent: Parent) -> Position:
    return Position(parent.checkpoint_id, parent.run_id, 0)


def _before(parent: Parent) -> Position:
    """Returns the position that the parent's own changes start from."""
    return Position(parent.parent_checkpoint or 0, parent.parent_run_id or "", 0)


def _follows(here: Position, parent: Parent, context: SubtaskContext) -> bool:
    """Tells whether the subtask's own changes in the parent lead there from here.

    A checkpoint that a job was restored with, or that was rebuilt, has no acks that would say it.
    """
    return (
        context.subtask in parent.acks
        and parent.parallelism == context.run.parallelism
        and _same_state(here, _before(parent))
    )


def _moved_on(context: SubtaskContext, here: Position | None) -> FencedError:
    return FencedError(
        f"a newer run or a later batch has moved the local state on, to {here}",
        job=context.run.job,
        file=str(context.directory),
    )


def _bring(
    local: LocalStore, context: SubtaskContext, parent: Parent | None, wanted: Position
) -> None:
    while True:
        try:
            _catch_up(local, context, parent, wanted)
        except MapGrownError:
            continue
        return


def _catch_up(
    local: LocalStore, context: SubtaskContext, parent: Parent | None, wanted: Position
) -> None:
    with local.write() as writer:
        here, weight = writer.reader.position() or NOTHING, writer.reader.weight()
        # Being ahead proves nothing: a metastore from a backup gives ids and epochs again (ADR
        # 0005).
        if _is_ahead(here, wanted) and _is_overtaken(context.run, here, wanted):
            raise _moved_on(context, here)
        if parent is None:
            writer.clear(context.key_groups)
            weight = Weight()
        elif _same_state(here, wanted):
            # Only the epoch is new, as in the first batch of a run.
            pass
        elif _follows(here, parent, context):
            applied_bytes = _apply_parent(writer, context, parent)
            weight = Weight(weight.base_bytes, weight.change_bytes + applied_bytes)
        else:
            weight = _restore(writer, context, here, wanted)
        writer.move_to(wanted, weight)


def _is_ahead(here: Position, wanted: Position) -> bool:
    return (here.epoch, here.checkpoint_id) > (wanted.epoch, wanted.checkpoint_id)


def _is_overtaken(run: RunContext, here: Position, wanted: Position) -> bool:
    """Tells whether the metastore knows of the run or batch that has moved the local state on.

    One that was restored from a backup does not: the local state is of a history it has lost.
    """

    def look_up(connection: Connection) -> tuple[int, str | None]:
        return (
            current_epoch(connection, run.job_id),
            lineage_of(connection, run.job_id, here.checkpoint_id),
        )

    epoch, lineage = run.catalog.run(
        f"find out what moved local state of job {run.job} on", look_up
    )
    is_known_batch = here.checkpoint_id > wanted.checkpoint_id and lineage == here.lineage
    return epoch > run.epoch or is_known_batch


def _same_state(one: Position, other: Position) -> bool:
    return (one.checkpoint_id, one.lineage) == (other.checkpoint_id, other.lineage)


def _apply_parent(writer: LocalWriter, context: SubtaskContext, parent: Parent) -> int:
    """Applies the subtask's own changes in the parent; returns their bytes in storage."""
    ack = parent.acks[context.subtask]
    spool = Spool(
        manager=context.manager,
        checkpoint_id=parent.checkpoint_id,
        attempt_id=ack.attempt_id,
        subtask=context.subtask,
    )
    store, job = context.store, context.run.job
    for segment in ack.segments:
        here = spool.find(segment)
        stored = read_segment(store, segment, job=job) if here is None else decode(here)
        for changes in stored:
            writer.apply(changes)
    return sum(segment.size_bytes for segment in ack.segments)


def _refuse_damaged(context: SubtaskContext, damaged: Sequence[SegmentHandle]) -> None:
    """Raises where segments that a scrub has found damaged are so still, before all is read.

    Raises:
        RefusedError: one is.
        StorageError: the store failed, and may have it.
    """
    job = context.run.job
    for handle in damaged:
        try:
            read_bytes(context.store, handle, job=job)
        except (CorruptSegmentError, StorageError) as error:
            if isinstance(error, StorageError) and _may_be_there(context.store, handle):
                raise
            raise RefusedError(
                f"a scrub has found segment {handle.segment_id} damaged, and no retained "
                f"checkpoint has its state by other segments: {error.message}. `cairn scrub {job} "
                "--dry-run` lists what is damaged; put the objects back, or start a new job from "
                "the manifest of a checkpoint that is whole, which `cairn pin` writes",
                job=job,
                checkpoint=handle.first_checkpoint,
                file=handle.path,
                offset=handle.offset,
            ) from error


def _may_be_there(store: ObjectStore, handle: SegmentHandle) -> bool:
    """Tells whether a segment's object is as large as it was, so that the store failed to read it.

    Raises:
        StorageError: that cannot be found out now.
    """
    found = find_object(store, handle.path)
    return found is not None and found.size_bytes >= handle.offset + handle.size_bytes


def _restore(
    writer: LocalWriter, context: SubtaskContext, here: Position, wanted: Position
) -> Weight:
    """Brings the state to a checkpoint by what storage has; returns what all of that weighs."""
    run, key_groups = context.run, context.key_groups

    def look_up(connection: Connection) -> tuple[Restore, str | None]:
        read_one_instant(connection)
        found = restore_around(connection, run.job_id, wanted.checkpoint_id, key_groups)
        return found, lineage_of(connection, run.job_id, here.checkpoint_id)

    found, lineage = run.catalog.run(
        f"find the segments of checkpoint {wanted.checkpoint_id} of job {run.job}", look_up
    )
    # Of a lost history, or past the wanted checkpoint: nothing of it can be kept.
    if lineage != here.lineage or here.checkpoint_id > wanted.checkpoint_id:
        here = NOTHING
        writer.clear(key_groups)
    # Changes since then that were released are in an increment, or in a base, which replaces its
    # key groups whole.
    handles = found.handles
    missing = [handle for handle in handles if handle.as_of_checkpoint > here.checkpoint_id]
    _refuse_damaged(context, [one for one in found.damaged if one in missing])
    began_s, begun = time.monotonic(), None
    store = FetchedOnce(context.store, context.manager, shared_ranges(missing, key_groups))
    segments = read_segments(store, missing, job=run.job, key_groups=key_groups)
    for handle, changes in segments:
        # Once, at its first batch: a base replaces whatever its key groups held.
        if handle is not begun and handle.kind is SegmentKind.KEYED_FULL:
            writer.clear(handle.key_groups.intersect(key_groups))
        begun = handle
        writer.apply(changes)
    facts = {
        "job": run.job,
        "key_groups": f"{key_groups.start}-{key_groups.end}",
        "storage": run.storage,
        "from_checkpoint": here.checkpoint_id,
        "to_checkpoint": wanted.checkpoint_id,
        "segments": len(missing),
        "size_bytes": sum(expected_bytes(handle, key_groups) for handle in missing),
        "seconds": round(time.monotonic() - began_s, 3),
    }
    _log.info("local state restored from storage", extra=facts)
    bases = [handle for handle in handles if handle.kind is SegmentKind.KEYED_FULL]
    base_bytes = sum(expected_bytes(handle, key_groups) for handle in bases)
    all_bytes = sum(expected_bytes(handle, key_groups) for handle in handles)
    return Weight(base_bytes, all_bytes - base_bytes)
