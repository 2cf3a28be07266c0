"""Drops, renames, starts and cleanups beside each other, each stopped before each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import rename_job
from cairn.catalog.job.run_ends import record_run_end
from cairn.errors import BadInputError, CairnError, RefusedError, StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.drop import drop_job, find_job_to_drop
from cairn.ownership.take import take_over
from cairn.storage import open_store
from tests.model.actors import Actor, gates
from tests.model.application import Application
from tests.model.faults import Faults
from tests.model.truth import Truth
from tests.model.world import World

NAME = "words"


class Place(World):
    """A world whose checkpoints are compared with what they should be."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.truth = Truth(self)

    def check_readable(self, job_id: str) -> None:
        self.truth.check(job_id, knows_all=False)


@pytest.fixture
def world(metastore_url: str) -> Iterator[Place]:
    made = Place(metastore_url)
    with ExitStack() as held:
        held.callback(made.close)
        held.callback(made.truth.close)
        held.enter_context(gates(Faults(lambda: made.now_s), lambda: made.now_s, made.truth.watch))
        yield made


def ended_job(world: Place, name: str = NAME) -> Application:
    """Makes a job of a few batches, with files to delete, whose run has ended."""
    app = Application.start(world.url, world.storage, name, 2, lambda: world.now_s)
    for batch_id in range(4):
        app.run_task(batch_id, [0, 1], 1, hedges=False)
        world.check_readable(app.job_id)
        if batch_id == 2:
            app.materialize(batch_id, 0, is_increment=False)
    world.rows("UPDATE cairn.jobs SET file_retention_ms = 0 WHERE job_id = :job", job=app.job_id)
    app.catalog.run("end", lambda c: record_run_end(c, app.ref(0)))
    return app


@dataclass(frozen=True)
class Paused:
    """How an actor ended that had waited after so many steps."""

    after_steps: int
    error: BaseException | None
    result: Any

    @property
    def came_too_late(self) -> bool:
        """Whether it had not found the job yet, and says that there is none."""
        return self.after_steps <= 2 and is_missing(self.error)


def is_missing(error: BaseException | None) -> bool:
    return isinstance(error, BadInputError) and f"no job '{NAME}'" in str(error)


def at_each_step(
    world: Place, work: Callable[[Application], object], beside: Callable[[Application], object]
) -> Iterator[tuple[Application, Paused, CairnError | None]]:
    """Runs `beside` whole while `work` waits before its nth step, for each n; yields both ends."""
    for steps in range(1, 100):
        app = ended_job(world)
        actor = Actor("the first", partial(work, app))
        actor.advance(steps)
        was_over, refused = actor.is_over, None
        try:
            beside(app)
        except CairnError as error:
            refused = error
        while not actor.is_over:
            actor.advance()
        yield app, Paused(steps, actor.error, actor.result), refused
        clear(world, app)
        if was_over:
            assert steps > 3
            return


def clear(world: Place, app: Application) -> None:
    """Deletes the job, whatever it is called."""
    for row in world.rows("SELECT name, job_id FROM cairn.jobs"):
        world.pass_time(3601)
        drop(world.catalog, row.name)
    assert not world.rows("SELECT 1 FROM cairn.jobs")
    assert not world.objects(app.job_id)


def drop(catalog: Catalog, name: str) -> bool:
    return drop_job(catalog, find_job_to_drop(catalog, name)).is_gone


def is_dropped(app: Application) -> bool:
    return find_job_to_drop(app.catalog, NAME).is_dropped


@pytest.mark.slow
def test_of_two_drops_at_once_both_say_that_it_is_gone(world: Place) -> None:
    for app, actor, refused in at_each_step(
        world, lambda app: drop(app.catalog, NAME), lambda app: drop(app.catalog, NAME)
    ):
        assert refused is None or is_missing(refused)
        assert actor.came_too_late or (actor.error, actor.result) == (None, True), actor
        assert not (world.root / app.job_id).exists()


def test_a_cleanup_beside_a_drop_ends_or_says_that_the_job_is_gone(world: Place) -> None:
    for app, actor, refused in at_each_step(
        world,
        lambda app: cleanup_job(app.catalog, NAME),
        lambda app: drop(app.catalog, NAME),
    ):
        assert refused is None
        # Or it has listed the owner object, and not read it yet.
        is_told = is_missing(actor.error) or "dropped" in str(actor.error)
        is_told |= isinstance(actor.error, StorageError) and "/owner/" in str(actor.error)
        is_told |= isinstance(actor.error, BadInputError) and "row was trimmed" in str(actor.error)
        assert actor.error is None or is_told, actor
        assert not (world.root / app.job_id).exists()


@pytest.mark.slow
def test_a_drop_beside_a_cleanup_is_done(world: Place) -> None:
    for _app, actor, refused in at_each_step(
        world,
        lambda app: drop(app.catalog, NAME),
        lambda app: cleanup_job(app.catalog, app.job_id if is_dropped(app) else NAME),
    ):
        assert refused is None or "no job" in str(refused)
        assert actor.came_too_late or (actor.error, actor.result) == (None, True), actor


@pytest.mark.slow
def test_a_cleanup_beside_a_rename_goes_on_with_its_own_job(world: Place) -> None:
    """The old name is another job's at once, of which it changes nothing."""
    others: list[Application] = []

    def rename(app: Application) -> None:
        app.catalog.run("renaming", lambda c: rename_job(c, app.job_id, "letters"))
        others.append(ended_job(world))

    for app, actor, refused in at_each_step(
        world, lambda app: cleanup_job(app.catalog, NAME), rename
    ):
        assert (refused, actor.error) == (None, None), actor
        other = others.pop()
        if actor.after_steps > 2:  # it has read which job it is of
            assert {row["status"] for row in world.dump(other.job_id)["checkpoints"]} == {
                "CONFIRMED",
                "COMPLETED",
            }
        world.check_readable(other.job_id)
        world.check_readable(app.job_id)


def test_a_start_beside_a_rename_or_a_drop_is_one_before_or_one_after(world: Place) -> None:
    def start(app: Application) -> Application:
        return Application.start(world.url, world.storage, NAME, 2, lambda: world.now_s)

    def rename(app: Application) -> None:
        app.catalog.run("renaming", lambda c: rename_job(c, app.job_id, "letters"))

    for what in (rename, lambda app: drop(app.catalog, NAME)):
        for app, actor, refused in at_each_step(world, start, what):
            assert refused is None or isinstance(refused, RefusedError), refused
            assert actor.error is None or isinstance(actor.error, CairnError), actor.error
            if actor.error is None and refused is None:
                assert actor.result.job_id != app.job_id


def test_a_take_over_beside_a_cleanup_leaves_what_is_needed(world: Place) -> None:
    for app, actor, refused in at_each_step(
        world,
        lambda app: cleanup_job(app.catalog, NAME),
        lambda app: take_over(app.catalog, open_store(world.storage), app.job_id),
    ):
        assert (refused, actor.error) == (None, None), actor
        world.check_readable(app.job_id)


def test_a_root_that_was_not_taken_by_anybody_yet_can_be_dropped(world: Place) -> None:
    app = Actor(
        "start",
        lambda: Application.start(world.url, world.storage, NAME, 2, lambda: world.now_s),
    )
    app.advance(2)  # registered, and killed
    app.kill()
    assert len(world.rows("SELECT job_id FROM cairn.jobs")) == 1
    world.pass_time(3601)
    assert drop(world.catalog, NAME)
