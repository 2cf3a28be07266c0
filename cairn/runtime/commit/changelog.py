"""The changelog of one subtask in one attempt: segments with sequence numbers (FLIP-158, "API").

A segment is a file in the executor's spool until the next batch has read it. So a query for the
segments after a number, or before it, never returns half a segment. Durable are the files in
storage: those of the group commit, or a segment's own file if it was uploaded early.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, replace

import cairn.segments.format as segment_format
from cairn.catalog.job.files import Uploaded
from cairn.errors import StoreFailedError
from cairn.runtime.commit.commit_files import changelog_target
from cairn.runtime.commit.file_pool import FilePool
from cairn.runtime.commit.physical_files import FileWrite, write_files
from cairn.runtime.executor.private_files import make_private
from cairn.runtime.executor.spool import Spool, SpooledSegment, place_of
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import fenced_if_removed
from cairn.state.view import Changes
from metastore.enums import SegmentKind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class SequenceNumber:
    """A place in a subtask's changelog: after so many segments of an attempt's for a checkpoint.

    All places of a checkpoint are before those of the next one.
    """

    checkpoint_id: int
    number: int


@dataclass(slots=True)
class _Segment:
    segment: SpooledSegment
    upload: Future[Uploaded] | None = None


class Changelog:
    """What one attempt changes in one subtask, in segments. Not for several threads.

    `uploads` uploads segments before the batch ends. Once it is shut down, those that have not
    begun are left to whoever runs the batch again.

    Raises, each of its methods:
        FencedError: a newer run has removed this run's directory.
    """

    def __init__(self, context: SubtaskContext, spool: Spool, uploads: Executor) -> None:
        self.subtask = context.subtask
        self.start = SequenceNumber(spool.checkpoint_id, 0)
        """The place that the parent's state is up to."""
        self._context = context
        self._spool = spool
        self._uploads = uploads
        self._active: list[Changes] = []
        self._segments: list[_Segment] = []
        self._directory = context.manager.spool_directory(context.subtask)
        if not self._directory.exists():
            with fenced_if_removed(self._directory):
                make_private(self._directory)

    def append(self, changes: Changes) -> None:
        """Adds changes to the active segment, in memory. They are lost if the process ends."""
        if changes.keys:
            self._active.append(changes)

    def last_appended(self) -> SequenceNumber:
        """Ends the active segment, which is spooled, and returns the place after it.

        A segment that is empty does not end, so two calls in a row return the same.
        """
        if self._active:
            changes, self._active = _by_key_group(self._active), []
            self._segments.append(_Segment(self._keep(changes)))
        return replace(self.start, number=len(self._segments))

    def preempt(self) -> None:
        """Ends the active segment and begins to upload it, while the batch is running."""
        self.last_appended()
        for each in self._segments:
            if each.upload is None:
                each.upload = self._uploads.submit(self._upload, each.segment)

    def persist(self, after: SequenceNumber) -> tuple[SpooledSegment, ...]:
        """Returns the segments after a place, in order, for the group commit to make durable.

        Ends the active segment. Waits for an upload in flight, so that segment has its
        file. The group commit writes the others: also those whose upload has not begun, which will
        not begin any more, and those whose upload has failed.

        Raises:
            FencedError, RefusedError, BadInputError: an upload failed, and would fail again.
            OutcomeUnknownError: its thread died.
        """
        self.last_appended()
        segments = self._segments[after.number if after > self.start else 0 :]
        # An upload that has not begun is cheaper in the group's file than in one of its own.
        is_left = [each.upload is None or each.upload.cancel() for each in segments]
        return tuple(
            each.segment if left else _uploaded(each)
            for each, left in zip(segments, is_left, strict=True)
        )

    def truncate(self, before: SequenceNumber) -> None:
        """Removes segments before a place from the spool, those of other attempts too.

        What is in storage, or on the way there, stays: handles in the metastore say what becomes of
        it. So do this attempt's own segments, whose checkpoint has yet to become whole.
        """
        limit = min(before, self.start)
        with fenced_if_removed(self._directory):
            for name in os.listdir(self._directory):
                if SequenceNumber(*place_of(name)) < limit:
                    (self._directory / name).unlink(missing_ok=True)

    def _keep(self, changes: Changes) -> SpooledSegment:
        kind = SegmentKind.CHANGELOG
        data = segment_format.encode(changes, metadata=self._spool.metadata(kind))
        return self._spool.add(data, len(changes), kind, len(self._segments))

    def _upload(self, segment: SpooledSegment) -> Uploaded:
        """Writes a segment to a file of its own, which stays WRITING until the ack."""
        context, manager = self._context, self._context.manager
        target = changelog_target(manager, context.batch, self.start.checkpoint_id, self.subtask)
        with ExitStack() as held:
            # Only a blocking pool bounds the open files; beside another one this opens its own.
            if context.settings.pool_blocking:
                FilePool(manager, held).take(1)
            [uploaded] = write_files(
                manager,
                context.store,
                [FileWrite(target, lambda: [self._spool.read(segment)])],
                claims=[manager.owned] if context.settings.merging_enabled else [],
            )
        return uploaded


def _uploaded(each: _Segment) -> SpooledSegment:
    """Returns a segment with its file, once that is written; without one if that failed."""
    if each.upload is None:
        return each.segment
    try:
        return replace(each.segment, uploaded=each.upload.result())
    except StoreFailedError as error:
        _log.warning("early upload failed; left to the commit", extra={"error": str(error)})
        return each.segment


def _by_key_group(appended: Sequence[Changes]) -> Changes:
    """Returns changes that were appended one after the other as a segment has them."""
    if len(appended) == 1:
        return appended[0]
    rows = [
        row
        for changes in appended
        for row in zip(changes.ops, changes.keys, changes.values, strict=True)
    ]
    # By key group alone, and stable: the changes of a key stay in order.
    rows.sort(key=lambda row: row[1][:2])
    return Changes(*map(list, zip(*rows, strict=True)))
