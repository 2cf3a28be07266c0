"""What the model plays of one job: Spark's driver and its tasks, the disk, the network and time.

Everything that changes the metastore or the storage is Cairn's own code, in actors
(`tests.model.actors`) that may stop for good, or for a while, before any transaction and any
request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cairn.catalog.job.run_ends import record_run_end, renew_lease
from tests.model.actors import Actor, gates
from tests.model.application import Application
from tests.model.faults import Faults, is_expected
from tests.model.surroundings import BEAT_S, Hearts, played
from tests.model.truth import Truth
from tests.model.world import World, seeded

HOUR_S = 3600.0
MOST_ALIVE = 6
"""Processes beside each other; one more, and the one that waits longest is killed."""
few = st.integers(1, 4)
any_one = st.integers(0, 11)


class Running(RuleBasedStateMachine):
    """A job that runs, is killed, restarted and slow, on a store that fails.

    Attributes:
        happened: how often each thing has happened that is to happen, in all jobs.
        total_steps: of processes, each a transaction or a request, and events; after each of them
            all that must hold is looked at.
    """

    url: ClassVar[str]
    happened: ClassVar[Counter[str]] = Counter()
    total_steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.url)
        self.truth = Truth(self.world)
        self.hearts = Hearts()
        self.faults = Faults(self.now_s)
        self._held = ExitStack()
        self._held.enter_context(played(self.now_s, self.world.seen_at, self.hearts))
        self._held.enter_context(gates(self.faults, self.now_s, self.truth.watch))
        self.alive: list[Actor] = []
        self.attempts = 0
        self.next_batch = 0
        self.done: set[int] = set()
        # No two machines agree on the time.
        self._skews_s = cycle((0.0, HOUR_S, -HOUR_S))

    def now_s(self) -> float:
        return self.world.now_s

    def look(self) -> None:
        """Looks whether all is as it must be."""

    @initialize(
        parallelism=st.integers(1, 2), seed=st.integers(0, 2**32), batches=st.integers(2, 4)
    )
    def begin(self, parallelism: int, seed: int, batches: int) -> None:
        self._held.enter_context(seeded(seed))
        self.start(parallelism)
        self.run_batches(batches, together=True)

    # ------------------------------------------------------------------ the application

    def start(self, parallelism: int) -> None:
        self.app = Application.start(self.url, self.world.storage, "words", parallelism, self.now_s)
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
        self.go_on(self.task([which % self.app.parallelism], hedges), steps)

    @rule(which=any_one, steps=st.integers(1, 8), is_increment=st.booleans())
    def materialize(self, which: int, steps: int, is_increment: bool) -> None:
        self.go_on(self.materialization(which, is_increment), steps)

    @rule(which=any_one, is_increment=st.booleans())
    def materialize_whole(self, which: int, is_increment: bool) -> None:
        self.run_now(self.materialization(which, is_increment))

    @precondition(lambda self: self.alive)
    @rule(which=any_one, steps=few)
    def let_somebody_go_on(self, which: int, steps: int) -> None:
        self.go_on(self.alive[which % len(self.alive)], steps)

    # Drawn as often as all of these: it is what interleaves processes.
    _2 = _3 = _4 = _5 = _6 = _7 = _8 = _9 = _10 = let_somebody_go_on

    @rule()
    def renew_the_lease(self) -> None:
        self.app.catalog.run("lease", lambda c: renew_lease(c, self.app.ref(0)))

    @rule()
    def end_the_run(self) -> None:
        self.app.catalog.run("end", lambda c: record_run_end(c, self.app.ref(0)))

    def actor(
        self, name: str, work: Callable[[], Any], then: Callable[[Any], None] | None = None
    ) -> Actor:
        """Returns a process on a machine whose clock is wrong."""
        return Actor(name, work, skew_s=next(self._skews_s), then=then)

    def task(self, subtasks: list[int], hedges: bool = False) -> Actor:
        self.attempts += 1
        work = partial(self.app.run_task, self.next_batch, subtasks, self.attempts, hedges)
        actor = self.actor(f"task {self.attempts} of {subtasks}", work)
        actor.result = subtasks
        return actor

    def materialization(self, which: int, is_increment: bool) -> Actor:
        subtask = which % self.app.parallelism
        work = partial(self.app.materialize, self.next_batch, subtask, is_increment)
        return self.actor(f"materialization of {subtask}", work)

    def step(self, actor: Actor) -> None:
        """Lets an actor do one step: a transaction or a request, and what follows from it."""
        actor.advance()
        assert is_expected(actor.error), f"{actor} ended with {actor.error!r}"
        self.look()
        Running.total_steps += 1

    def run_now(self, actor: Actor) -> bool:
        """Runs an actor to its end, in which it may fail; tells whether it did not."""
        subtasks = actor.result
        while not actor.is_over:
            self.step(actor)
        if actor.error is None and subtasks:
            self.done |= set(subtasks)
        return actor.error is None

    def go_on(self, actor: Actor, steps: int) -> None:
        """Lets an actor do some steps, and keeps it, and the newest few, if it has more to do."""
        # It may be a zombie.
        actor.is_watched = True
        for _ in range(steps):
            if not actor.is_over:
                self.step(actor)
        self.alive = [one for one in self.alive if one is not actor]
        if not actor.is_over:
            self.alive.append(actor)
            if len(self.alive) > MOST_ALIVE:
                self.alive.pop(0).kill()
        elif actor.error is not None:
            self.happened[f"{actor.name.split()[0]}: {type(actor.error).__name__}"] += 1
        elif actor.then is not None:
            actor.then(actor.result)

    # ------------------------------------------------------------------ the world

    @rule()
    def break_the_next_commit(self) -> None:
        """Its answer is lost, so it is made again."""
        self.faults.commit = True

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
        self.pass_s(minutes * 60, lands=lands)

    def pass_s(self, seconds: float, *, lands: bool = False) -> None:
        self.faults.before_time_passes(seconds, lands=lands)
        self.world.pass_time(seconds)

    @precondition(lambda self: self.hearts.beating)
    @rule(beats=few)
    def work_for_long(self, beats: int) -> None:
        """Time passes in which whoever has a lease keeps it."""
        for _ in range(beats):
            self.pass_s(BEAT_S)
            self.hearts.beat()

    @rule(hours=st.sampled_from([-1, 0, 1]))
    def set_the_clock_of_the_storage(self, hours: int) -> None:
        self.world.skew_s = hours * HOUR_S
