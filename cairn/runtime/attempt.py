"""One attempt of one Spark task at a batch: each of its subtasks in turn, then one group commit."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import cairn.segments.format as segment_format
from cairn.handles import SegmentKind
from cairn.runtime.executor import TaskManager, write_whole
from cairn.runtime.group_commit import Running, ask, commit
from cairn.runtime.group_files import Request, SubtaskPart
from cairn.runtime.local_store import LocalReader
from cairn.runtime.materializer import start_if_due
from cairn.runtime.restore import parent_state
from cairn.state.view import Overlay
from cairn.storage.store import ObjectStore
from metastore.batches import BatchRef, BatchStart


@dataclass(frozen=True, slots=True)
class Input:
    """How many rows a subtask was given, how many were late, the latest event time by input."""

    rows: int = 0
    late_rows: int = 0
    max_event_ms: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """What all steps of an attempt need."""

    manager: TaskManager
    store: ObjectStore
    batch: BatchRef
    start: BatchStart
    task_attempt: int
    attempt_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def running(self) -> Running:
        """Marks the task as running while the context lasts."""
        return Running(self.manager, self.start.checkpoint_id, self.attempt_id)

    def run_subtask(
        self, subtask: int, given: Input, work: Callable[[LocalReader], Overlay]
    ) -> SubtaskPart:
        """Does one subtask: its parent's state, a materialisation's start, the work, the spool."""
        began = time.monotonic()
        with parent_state(self.manager, self.store, subtask, self.start) as reader:
            restore_ms = round((time.monotonic() - began) * 1000)
            start_if_due(self.manager, self.batch, self.start.clock, subtask)
            overlay = work(reader)
        return self.spool(subtask, overlay, given, restore_ms)

    def spool(
        self, subtask: int, overlay: Overlay, given: Input, restore_ms: int = 0
    ) -> SubtaskPart:
        """Writes a subtask's changes to the spool."""
        changes = overlay.changes()
        size_bytes, sha256 = 0, ""
        if changes.keys:
            data = segment_format.encode(
                changes.ops,
                changes.keys,
                changes.values,
                metadata={
                    "job": self.batch.job,
                    "checkpoint": str(self.start.checkpoint_id),
                    "subtask": str(subtask),
                    "kind": SegmentKind.CHANGELOG.value,
                },
            )
            size_bytes, sha256 = len(data), hashlib.sha256(data).hexdigest()
            spooled = self.manager.spool_file(self.start.checkpoint_id, self.attempt_id, subtask)
            write_whole(spooled, data)
        return SubtaskPart(
            subtask,
            given.rows,
            given.late_rows,
            given.max_event_ms,
            restore_ms,
            size_bytes,
            sha256,
            len(changes.keys),
        )

    def request(self, parts: Sequence[SubtaskPart]) -> Request:
        """Returns the request to acknowledge the subtasks."""
        return Request(self.start.checkpoint_id, self.attempt_id, self.task_attempt, tuple(parts))

    def commit(self, parts: Sequence[SubtaskPart]) -> None:
        """Returns once the subtasks are durable and acknowledged; see `group_commit.commit`."""
        request = self.request(parts)
        ask(self.manager, request)
        commit(self.manager, self.store, self.batch, request)
