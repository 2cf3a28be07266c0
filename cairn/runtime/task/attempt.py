"""One attempt of one Spark task at a batch: each of its subtasks in turn, then one group commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import BatchStart
from cairn.runtime.commit.changelog import Changelog
from cairn.runtime.commit.commit_files import Request, SubtaskResult
from cairn.runtime.commit.group_commit import Running, ask, commit
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.private_files import disk_errors_below
from cairn.runtime.executor.spool import Spool, SpooledSegment
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.schedule import order_if_due
from cairn.runtime.processing.task_input import InputCounts
from cairn.state.view import Overlay
from cairn.storage.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSubtask:
    """A subtask whose rows are processed: changes in its log, operator lists in the spool."""

    log: Changelog
    counts: InputCounts
    restore_ms: int
    lists: tuple[SpooledSegment, ...] = ()

    def result(self) -> SubtaskResult:
        """Returns the segments to acknowledge; waits for an early upload in flight.

        Raises:
            CairnError: see `Changelog.persist`.
        """
        counts = self.counts
        return SubtaskResult(
            subtask=self.log.subtask,
            input_rows=counts.rows,
            late_rows=counts.late_rows,
            max_event_ms=counts.max_event_ms,
            restore_ms=self.restore_ms,
            segments=(*self.log.persist(after=self.log.start), *self.lists),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What all steps of an attempt need. `early` uploads segments while their batch is running."""

    manager: TaskManager
    store: ObjectStore
    batch: BatchRef
    start: BatchStart
    task_attempt: int
    attempt_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    early: Executor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Marks the task as running while the context lasts; early uploads begin only in it."""
        with (
            disk_errors_below(self.manager.job_directory),
            Running(self.manager, self.start.checkpoint_id, self.attempt_id),
        ):
            try:
                yield
            finally:
                # Not waited for: an upload that hangs must not hold up a task that has failed.
                self.early.shutdown(wait=False, cancel_futures=True)

    def context_of(self, subtask: int) -> SubtaskContext:
        """Returns the context of one of the task's subtasks."""
        return SubtaskContext(
            manager=self.manager, store=self.store, batch=self.batch, subtask=subtask
        )

    def spool_of(self, subtask: int) -> Spool:
        """Returns the place of the segments that the attempt makes of a subtask."""
        return Spool(
            manager=self.manager,
            checkpoint_id=self.start.checkpoint_id,
            attempt_id=self.attempt_id,
            subtask=subtask,
        )

    def run_subtask(
        self, subtask: int, counts: InputCounts, work: Callable[[LocalReader, Changelog], Overlay]
    ) -> FinishedSubtask:
        """Does one subtask: its parent's state, a materialization's order, the work, the spool.

        `work` may append to the log what it takes from its overlay.
        """
        began, context = time.monotonic(), self.context_of(subtask)
        # The changes are not applied here: local state has only what was confirmed.
        with parent_state(context, self.start) as reader:
            restore_ms = round((time.monotonic() - began) * 1000)
            order_if_due(context, self.start.clock, reader.weight())
            log = self.open_log(subtask)
            overlay = work(reader, log)
        return self.spool(log, overlay, counts, restore_ms)

    def open_log(self, subtask: int) -> Changelog:
        """Returns the log of a subtask whose local state is the parent's, truncated up to there."""
        log = Changelog(self.context_of(subtask), self.spool_of(subtask), self.early)
        # The parent's segments are in local state by now, and nobody reads older ones.
        log.truncate(before=log.last_appended())
        return log

    def spool(
        self, log: Changelog, overlay: Overlay, counts: InputCounts, restore_ms: int = 0
    ) -> FinishedSubtask:
        """Writes the rest of a subtask's changes to the spool."""
        log.append(overlay.changes())
        # On disk before it is asked for: another task may commit it.
        log.last_appended()
        return FinishedSubtask(log=log, counts=counts, restore_ms=restore_ms)

    def request(self, finished: Sequence[FinishedSubtask]) -> Request:
        """Returns the request to acknowledge the subtasks."""
        # The newest first: its uploads wait the longest, and are taken back before they begin.
        results = tuple(one.result() for one in reversed(finished))
        return Request(
            checkpoint_id=self.start.checkpoint_id,
            attempt_id=self.attempt_id,
            task_attempt=self.task_attempt,
            results=results[::-1],
        )

    def commit(self, finished: Sequence[FinishedSubtask]) -> None:
        """Returns once the subtasks are durable and acknowledged; see `group_commit.commit`."""
        request = self.request(finished)
        ask(self.manager, request)
        commit(self.manager, self.store, self.batch, request)
