"""The spool: an executor's segments, as files, from when they are made until the next batch.

A group commit copies them to storage. The next batch takes them from here if its parent's attempt
ran on this executor, and from storage otherwise.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cairn.catalog.job.files import Uploaded
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed, write_whole
from cairn.segments.format import segment_metadata
from metastore.enums import SegmentKind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpooledSegment:
    """A segment in the spool. It is to be written to storage, unless it has a file there already.

    That file holds nothing else, and is not sealed yet.
    """

    spec: SegmentSpec
    uploaded: Uploaded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """The segments that one attempt at a checkpoint keeps of one subtask: changelog and lists."""

    manager: TaskManager
    checkpoint_id: int
    attempt_id: str
    subtask: int

    def metadata(self, kind: SegmentKind) -> Mapping[str, str]:
        """Returns the metadata of a segment of it."""
        return segment_metadata(self.manager.run.job, self.checkpoint_id, self.subtask, kind)

    def add(self, data: bytes, entries: int, kind: SegmentKind, number: int = 0) -> SpooledSegment:
        """Keeps an encoded segment, whole or not at all.

        Raises:
            FencedError: a newer run has removed this run's directory.
        """
        write_whole(self._file(number, kind), data)
        spec = SegmentSpec.of(
            data,
            kind=kind,
            key_groups=self.manager.run.key_groups(self.subtask),
            entries=entries,
            checkpoint_id=self.checkpoint_id,
            sequence_number=number,
        )
        return SpooledSegment(spec)

    def read(self, segment: SpooledSegment) -> bytes:
        """Returns the bytes of a segment that was added.

        Raises:
            FencedError: a newer run has removed this run's directory.
        """
        file = self._file(segment.spec.sequence_number, segment.spec.kind)
        with fenced_if_removed(file):
            return file.read_bytes()

    def find(self, segment: SegmentHandle) -> bytes | None:
        """Returns a recorded segment's bytes; None if they are to be read from storage."""
        try:
            data = self._file(segment.sequence_number, segment.kind).read_bytes()
        except FileNotFoundError:
            # As expected after a restart, or where another executor ran the attempt.
            level, found = logging.INFO, "not in the spool"
        else:
            # Checked as storage is: nothing here is fsynced, and a zombie may have written it.
            if hashlib.sha256(data).hexdigest() == segment.sha256:
                return data
            level, found = logging.WARNING, "damaged in the spool"
        facts = {
            "job": self.manager.run.job,
            "subtask": self.subtask,
            "checkpoint": self.checkpoint_id,
            "kind": segment.kind.value,
            "size_bytes": segment.size_bytes,
        }
        _log.log(level, "segment %s, so it is read from storage", found, extra=facts)
        return None

    def _file(self, number: int, kind: SegmentKind) -> Path:
        # By attempt, so that a zombie of the same batch writes beside it and not over it.
        name = f"{self.checkpoint_id}-{number}-{self.attempt_id}-{kind}.seg"
        return self.manager.spool_directory(self.subtask) / name


def place_of(name: str) -> tuple[int, int]:
    """Returns the checkpoint and the sequence number of a file in the spool."""
    checkpoint_id, number, _ = name.split("-", 2)
    return int(checkpoint_id), int(number)
