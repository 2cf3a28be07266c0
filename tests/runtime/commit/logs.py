"""The changelog of one subtask, driven by hand on real files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cairn.catalog.job.segments import segments_at
from cairn.runtime.commit.changelog import Changelog
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.processing.task_input import InputCounts
from cairn.runtime.task.attempt import Attempt, FinishedSubtask
from cairn.segments.reader import read_segment
from cairn.state.entries import entry_prefix, list_suffix, split
from cairn.state.view import Changes, Overlay
from cairn.storage import ObjectStore, open_store
from tests.runtime.tasks import EVERYTHING, QUERY, AtOnce, read_back

LIST = entry_prefix(0, 1, b"list")
EXECUTOR = "executor"


@dataclass
class Work:
    """A subtask's attempt at a batch, with its parent's state, its overlay and its log."""

    attempt: Attempt
    log: Changelog
    overlay: Overlay

    def add(self, *words: bytes) -> None:
        """Adds words to the list and appends that to the log, in one change."""
        words_of_key = self.overlay.under(LIST)
        for word in words:
            last = words_of_key.last()
            place = 0 if last is None else int.from_bytes(last, "big") + 1
            words_of_key.put(list_suffix(place), word)
        self.log.append(self.overlay.take())

    def commit(self) -> None:
        """Makes the batch's changes durable and acknowledges them."""
        self.attempt.commit(
            [FinishedSubtask(log=self.log, counts=InputCounts(rows=1), restore_ms=0)]
        )


@dataclass
class Query:
    """A query of one subtask, whose batches are worked on by hand."""

    plan: RunContext
    attempts: int = 0
    store: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_store(self.plan.storage)

    @property
    def manager(self) -> TaskManager:
        """The one executor."""
        return TaskManager(self.plan, EXECUTOR)

    @contextmanager
    def batch(
        self,
        batch_id: int,
        *,
        subtask: int = 0,
        store: ObjectStore | None = None,
        early: Executor | None = None,
    ) -> Iterator[Work]:
        """Yields an attempt at a batch that runs with its parent's state."""
        self.attempts += 1
        batch, manager = self.plan.batch(QUERY, batch_id), self.manager
        attempt = Attempt(
            manager=manager,
            store=store or self.store,
            batch=batch,
            start=manager.begin(batch),
            task_attempt=self.attempts,
            early=early or AtOnce(),
        )
        with (
            attempt.running(),
            parent_state(attempt.context_of(subtask), attempt.start) as reader,
        ):
            yield Work(attempt, attempt.open_log(subtask), Overlay(reader))

    def handles(self, checkpoint_id: int) -> list[Any]:
        """Returns the segments that a restore of a checkpoint replays, in order."""
        return self.plan.catalog.run(
            "reading a checkpoint",
            lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING),
        )

    def replayed(self, checkpoint_id: int) -> list[list[bytes]]:
        """Returns the words in each segment that a restore of a checkpoint replays, in order."""
        return [
            [
                word
                for changes in read_segment(self.store, handle, job="words")
                for word in words(changes)
            ]
            for handle in self.handles(checkpoint_id)
        ]

    def restored(self, checkpoint_id: int) -> list[bytes]:
        """Returns the list as of a checkpoint, from the metastore and storage alone."""
        return list(read_back(self.plan, checkpoint_id).values())

    def local(self, subtask: int = 0) -> list[bytes]:
        """Returns the list in local state."""
        with open_local(self.manager.subtask_directory(subtask)).read() as reader:
            return [value for _, value in reader.range(EVERYTHING)]

    def spooled(self, subtask: int = 0) -> list[tuple[int, int]]:
        """Returns checkpoint and number of the segments in the spool."""
        names = [file.name for file in self.manager.spool_directory(subtask).iterdir()]
        return sorted((int(name.split("-")[0]), int(name.split("-")[1])) for name in names)

    def forget_local_state(self, local_dir: str) -> None:
        """Goes on on another host."""
        self.plan = replace(self.plan, settings=replace(self.plan.settings, local_dir=local_dir))


def words(changes: Changes) -> Sequence[bytes]:
    """Returns the words that changes put into the list."""
    return [
        value
        for key, value in zip(changes.keys, changes.values, strict=True)
        if value is not None and split(key).key == b"list"
    ]
