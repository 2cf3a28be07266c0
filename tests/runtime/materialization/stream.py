"""A query of one subtask that is materialized, and what stands for the materializing process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from sqlalchemy import text

from cairn.catalog.job.batch_start import Clock
from cairn.catalog.job.segments import segments_at
from cairn.handles import SegmentHandle
from cairn.locks import try_lock
from cairn.runtime.executor.local_record import Weight
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization import start
from cairn.runtime.materialization.order import is_placed, placed
from cairn.runtime.materialization.schedule import order_if_due
from cairn.runtime.materialization.serve import take
from cairn.runtime.materialization.start import lock_file
from cairn.runtime.materialization.write import Compute
from cairn.storage import open_store
from tests.runtime.commit.uploading import until
from tests.runtime.tasks import EVERYTHING, QUERY, Task, Write, new_run, remember

LIGHT = Weight()
DUE = Clock(now_ms=10_000_000, job_created_ms=0, base_made_ms={})
"""A tick of any phase has passed by then."""


class Stream:
    """A query of one subtask whose tasks run in this process."""

    def __init__(self, url: str, storage: str, local_dir: str) -> None:
        self._new_run = partial(new_run, url, storage, local_dir, parallelism=1)
        self.plan = self._new_run()
        self.batches = 0

    def restart(self, **options: object) -> None:
        self.plan = self._new_run(options=options)

    @property
    def manager(self) -> TaskManager:
        return TaskManager(self.plan, "one")

    def run(self, batches: int, writes: Callable[[int], Write] = remember) -> None:
        for _ in range(batches):
            write = writes(self.batches)
            Task(self.plan, "one", self.batches, 0, self.batches, write).run()
            self.batches += 1

    def order(self, clock: Clock = DUE, weight: Weight = LIGHT) -> None:
        """Does what a task does that finds the subtask due."""
        batch = self.plan.batch(QUERY, self.batches - 1)
        store = open_store(self.plan.storage)
        context = SubtaskContext(manager=self.manager, store=store, batch=batch, subtask=0)
        order_if_due(context, clock, weight)

    def materialize(self, clock: Clock = DUE) -> None:
        """Orders it, and waits until that is done or the process has died."""
        self.order(clock)
        until(lambda: not is_placed(self.manager, 0) or has_died(), most_s=60)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps processes from starting, once there is none."""
        with ExitStack() as held:
            lock_file(self.manager).touch()
            until(lambda: try_lock(lock_file(self.manager), held) is not None, most_s=60)
            yield

    def segments(self, checkpoint_id: int) -> list[SegmentHandle]:
        return self.plan.catalog.run(
            "reading the segments of a checkpoint",
            lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING),
        )

    def kinds(self, checkpoint_id: int) -> list[str]:
        return [handle.kind.value for handle in self.segments(checkpoint_id)]

    def sql(self, statement: str) -> list[object]:
        return self.plan.catalog.run(
            "looking", lambda c: list(c.scalars(text(statement), {"job": self.plan.job_id}))
        )


def at(ms: int) -> Clock:
    """Returns a time after `DUE`."""
    return replace(DUE, now_ms=DUE.now_ms + ms)


def has_died() -> bool:
    """Tells whether the last process that was started is over."""
    return bool(start._started) and start._started[-1].poll() is not None


def here(_is_patient: bool) -> AbstractContextManager[Compute]:
    """Gives what computes in this thread, without a limit."""
    return nullcontext(iter)


def carry_out_here(manager: TaskManager) -> None:
    """Stands for a process that is there: does what is ordered."""
    for order in placed(manager):
        take(manager, [order], here)
