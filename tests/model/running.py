"""What the model plays of one job: Spark's driver and its tasks, the disk, the network and time.

Everything that changes the metastore or the storage is Cairn's own code, in actors
(`tests.model.actors`) that may stop for good, or for a while, before any transaction and any
request.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cairn.catalog.job.run_ends import record_run_end, renew_lease
from cairn.errors import FencedError
from cairn.storage import posix_inventory
from tests.model.actors import Actor, gates
from tests.model.application import Application
from tests.model.faults import Faults, is_expected
from tests.model.world import World, seeded

_NO_BREAKERS = {"CAIRN_MIN_MATCH_RATE": "0", "CAIRN_MAX_DELETED_SHARE": "100"}
"""Circuit breakers speak at jobs as small as these."""
few = st.integers(1, 4)
any_one = st.integers(0, 11)


class Running(RuleBasedStateMachine):
    """A job that runs, is killed, restarted and slow, on a store that fails."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.url)
        self.faults = Faults()
        self._held = ExitStack()
        later = posix_inventory._later
        seen = patch.object(posix_inventory, "_later", lambda of: self.world.seen_at(later(of)))
        self._held.enter_context(seen)
        self._held.enter_context(patch.dict(os.environ, _NO_BREAKERS))
        self._held.enter_context(gates(self.faults, lambda: self.world.now_s))
        self.tasks: list[Actor] = []
        self.attempts = 0
        self.next_batch = 0
        self.done: set[int] = set()
        self.counted = 0
        self.gone: list[str] = []

    @initialize(parallelism=st.integers(1, 2), seed=st.integers(0, 2**32))
    def begin(self, parallelism: int, seed: int) -> None:
        self._held.enter_context(seeded(seed))
        self.start(parallelism)

    # ------------------------------------------------------------------ the application

    def start(self, parallelism: int) -> None:
        self.app = Application.start(
            self.url, self.world.storage, "words", parallelism, lambda: self.world.now_s
        )
        self.done = set()

    @rule(parallelism=st.integers(1, 2))
    def restart(self, parallelism: int) -> None:
        self.start(parallelism)

    @rule(batches=few, together=st.booleans())
    def run_batches(self, batches: int, together: bool) -> None:
        for _ in range(batches):
            left = sorted(set(range(self.app.parallelism)) - self.done)
            for subtasks in [left] if together else [[one] for one in left]:
                if subtasks and not self.run_now(self.task(subtasks)):
                    return
            self.next_batch += 1
            self.done = set()

    @rule()
    def run_a_batch_and_materialize(self) -> None:
        self.run_batches(1, together=True)
        self.materialize_whole(self.next_batch, is_increment=bool(self.next_batch % 3))

    @rule(which=any_one, steps=st.integers(1, 5), hedges=st.booleans())
    def lose_a_task(self, which: int, steps: int, hedges: bool) -> None:
        """Spark gives a task up that is somewhere: killed, or a zombie that goes on later."""
        actor = self.task([which % self.app.parallelism], hedges)
        actor.advance(steps)
        self.keep(self.tasks, actor)

    @rule(which=any_one, steps=st.integers(1, 8), is_increment=st.booleans())
    def materialize(self, which: int, steps: int, is_increment: bool) -> None:
        subtask = which % self.app.parallelism
        work = partial(self.app.materialize, self.next_batch, subtask, is_increment)
        actor = Actor(f"materialization of {subtask}", work)
        actor.advance(steps)
        self.keep(self.tasks, actor)

    @rule(which=any_one, is_increment=st.booleans())
    def materialize_whole(self, which: int, is_increment: bool) -> None:
        subtask = which % self.app.parallelism
        work = partial(self.app.materialize, self.next_batch, subtask, is_increment)
        self.run_now(Actor(f"materialization of {subtask}", work))

    @precondition(lambda self: self.tasks)
    @rule(which=any_one, steps=few)
    def let_a_task_go_on(self, which: int, steps: int) -> None:
        actor = self.tasks[which % len(self.tasks)]
        for _ in range(steps):
            self.step(actor)
        self.keep(self.tasks, actor)

    @rule()
    def renew_the_lease(self) -> None:
        self.app.catalog.run("lease", lambda c: renew_lease(c, self.app.ref(0)))

    @rule()
    def end_the_run(self) -> None:
        self.app.catalog.run("end", lambda c: record_run_end(c, self.app.ref(0)))

    def task(self, subtasks: list[int], hedges: bool = False) -> Actor:
        self.attempts += 1
        work = partial(self.app.run_task, self.next_batch, subtasks, self.attempts, hedges)
        actor = Actor(f"task {self.attempts} of {subtasks}", work)
        actor.result = subtasks
        return actor

    def run_now(self, actor: Actor) -> bool:
        """Runs an actor to its end, in which it may fail; tells whether it did not."""
        subtasks = actor.result
        while not actor.is_over:
            self.step(actor)
        if actor.error is None and subtasks:
            self.done |= set(subtasks)
        return actor.error is None

    def step(self, actor: Actor) -> None:
        """Does a step, and looks at what a process that is fenced in it has changed."""
        is_zombie = actor in self.tasks
        before = self.dump() if is_zombie else {}
        actor.advance()
        if isinstance(actor.error, FencedError) and is_zombie:
            assert self.dump() == before, f"{actor} was fenced and has changed something"
        assert is_expected(actor.error), f"{actor} ended with {actor.error!r}"

    def dump(self) -> dict[str, list[Any]]:
        return self.world.dump(self.app.job_id)

    def keep(self, some: list[Actor], actor: Actor) -> None:
        """Keeps an actor that may go on, and the newest few of them."""
        assert is_expected(actor.error), f"{actor} ended with {actor.error!r}"
        if actor in some:
            some.remove(actor)
        if not actor.is_over:
            some.append(actor)
            if len(some) > 4:
                some.pop(0).kill()

    # ------------------------------------------------------------------ the world

    @rule(fault=st.sampled_from(Faults.PUTS))
    def break_the_next_write(self, fault: str) -> None:
        self.faults.put = fault

    @rule(fault=st.sampled_from(Faults.DELETES))
    def break_the_next_delete(self, fault: str) -> None:
        self.faults.delete = fault

    @rule(which=any_one)
    def let_a_late_write_land(self, which: int) -> None:
        self.faults.land(which)

    @rule(minutes=st.sampled_from([1, 3, 10, 25, 61, 60 * 26]), lands=st.booleans())
    def pass_time(self, minutes: int, lands: bool) -> None:
        if minutes > 3:  # a request that is older is refused
            if lands:
                self.faults.land_all()
            self.faults.late.clear()
        self.world.pass_time([self.app.job_id, *self.gone], minutes * 60)
