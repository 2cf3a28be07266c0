"""The model: an application, maintainers and failures as interleaved steps, over the real SQL.

To a job that runs (`tests.model.running`) come maintainers, careless operators, and what must hold
whatever they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from cairn.catalog.cleanup.drop import JobToDrop
from cairn.catalog.cleanup.quarantine import confirm_root
from cairn.catalog.job.run_ends import record_run_end
from cairn.catalog.savepoints.pins import remove_pins
from cairn.errors import CairnError, RefusedError, StoreFailedError
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.drop import drop_job
from cairn.maintenance.sweep import QUARANTINE_MS, SweepReport, sweep_job
from cairn.ownership.take import take_over
from cairn.savepoints.write_manifest import pin
from cairn.storage import open_store
from metastore.enums import MaintenanceAction, PinKind
from tests.model.actors import Actor
from tests.model.application import RETENTION_S
from tests.model.faults import is_expected
from tests.model.running import Running, any_one

HOUR_S = 3600.0
_KNOWN = ("confirmed", "older than 60 min", "has failed", "was dropped", "lease", "no plan")
"""What is refused for good reason: a savepoint without a batch, an old plan, another's lease."""
_PLANNED = (MaintenanceAction.SUBSUMPTION, MaintenanceAction.ORPHAN_SWEEP)


@dataclass
class Backup:
    """The rows of the job some time ago."""

    job_id: str
    rows: dict[str, list[Any]]
    at_s: float
    next_batch: int


class Maintained(Running):
    """One job at a time, with all that is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.maintainers: list[Actor] = []
        self.plans: list[UUID] = []
        self.backup: Backup | None = None
        self.is_owner = True
        self.swept: list[SweepReport] = []

    # ------------------------------------------------------------------ maintainers

    @rule(steps=st.integers(1, 12))
    def begin_a_cleanup(self, steps: int) -> None:
        actor = Actor("cleanup", partial(cleanup_job, self.world.catalog, self.app.name))
        actor.advance(steps)
        self.keep(self.maintainers, actor)

    @precondition(lambda self: self.maintainers)
    @rule(which=any_one, steps=st.integers(1, 12))
    def let_a_maintainer_go_on(self, which: int, steps: int) -> None:
        actor = self.maintainers[which % len(self.maintainers)]
        actor.advance(steps)
        self.keep(self.maintainers, actor)

    @rule()
    def clean(self) -> None:
        self.tolerant(lambda: cleanup_job(self.world.catalog, self.app.name))

    @rule(steps=st.integers(1, 20))
    def begin_a_sweep(self, steps: int) -> None:
        actor = Actor("sweep", partial(sweep_job, self.world.catalog, self.app.name))
        actor.advance(steps)
        self.keep(self.maintainers, actor)

    @precondition(lambda self: len(self.plans) < 3)
    @rule(action=st.sampled_from(_PLANNED))
    def plan(self, action: MaintenanceAction) -> None:
        """One maintainer plans."""
        work = partial(plan_action, self.world.catalog, action, self.app.name)
        stored = self.tolerant(work)
        if stored is not None:
            self.plans.append(stored.run_id)

    @precondition(lambda self: self.plans)
    @rule(which=any_one, steps=st.integers(1, 12), is_whole=st.booleans(), again=st.booleans())
    def apply(self, which: int, steps: int, is_whole: bool, again: bool) -> None:
        """Another one applies, now or later, whole or in part, once or more often."""
        run_id = self.plans[which % len(self.plans)]
        work = partial(apply_plan, self.world.catalog, run_id)
        if is_whole:
            self.tolerant(work)
        else:
            actor = Actor(f"application of {run_id}", work)
            actor.advance(steps)
            self.keep(self.maintainers, actor)
        if not again:
            self.plans.remove(run_id)

    @rule()
    def do_what_the_dry_run_says(self) -> None:
        """What a dry run says is what is done, if nothing comes between."""
        self.faults.delete = None
        said = self.tolerant(lambda: cleanup_job(self.world.catalog, self.app.name, dry_run=True))
        before = self.world.objects(self.app.job_id)
        done = self.tolerant(lambda: cleanup_job(self.world.catalog, self.app.name))
        if said is None or done is None:
            assert said is done
            return
        gone = before.keys() - self.world.objects(self.app.job_id).keys()
        assert len(gone) <= said.deleted_files, gone
        said = replace(said, dry_run=False, next_delete_at=done.next_delete_at)
        assert said == done, f"said {said}, done {done}"

    # ------------------------------------------------------------------ people

    @rule(named=st.booleans())
    def keep_a_checkpoint(self, named: bool) -> None:
        """Somebody pins the newest checkpoint, or takes a savepoint of it."""
        kind = PinKind.SAVEPOINT if named else PinKind.PIN
        self.tolerant(lambda: pin(self.world.catalog, self.app.name, None, kind=kind))

    @rule(which=any_one)
    def unpin(self, which: int) -> None:
        pins = self.pins()
        if pins:
            self.unpin_all(pins[which % len(pins) :][:1])

    def pins(self) -> list[UUID]:
        found = self.world.rows(
            "SELECT pin_id FROM cairn.pins WHERE job_id = :job AND removed_at IS NULL ORDER BY 1",
            job=self.app.job_id,
        )
        return [row.pin_id for row in found]

    def unpin_all(self, pins: list[UUID]) -> None:
        name = self.app.name
        self.world.catalog.run("unpinning", lambda c: remove_pins(c, name, pins))

    @rule()
    def back_up(self) -> None:
        self.backup = Backup(self.app.job_id, self.dump(), self.world.now_s, self.next_batch)

    @precondition(
        lambda self: (
            self.backup is not None
            and self.backup.job_id == self.app.job_id
            and self.world.now_s - self.backup.at_s < RETENTION_S
        )
    )
    @rule(parallelism=st.integers(1, 2))
    def lose_the_metastore(self, parallelism: int) -> None:
        """It is restored from a backup that is younger than the retention of files."""
        assert self.backup is not None
        age_s = self.world.now_s - self.backup.at_s
        self.world.restore(self.app.job_id, self.backup.rows)
        self.world.pass_time([self.app.job_id], age_s)
        self.world.now_s -= age_s
        self.is_owner = False
        self.plans.clear()
        # An operator removes what Spark has committed since, see docs/protocol.md.
        self.next_batch = self.committed() + 1
        self.backup = None
        try:
            self.start(parallelism)
        except RefusedError:
            # The root was taken over since, which this metastore does not know.
            take_over(self.world.catalog, open_store(self.world.storage), self.app.job_id)
            self.is_owner = True
            self.start(parallelism)

    @rule(is_careful=st.booleans())
    def take_the_root_over(self, is_careful: bool) -> None:
        """Somebody says that this metastore counts."""
        store = open_store(self.world.storage)
        if is_careful or not self.is_owner:
            self.tolerant(lambda: take_over(self.world.catalog, store, self.app.job_id))
            self.is_owner = True

    @rule(parallelism=st.integers(1, 2), steps=st.integers(1, 40))
    def drop_the_job(self, parallelism: int, steps: int) -> None:
        """Its query is over; another job has the name at once."""
        if not self.is_owner or len(self.gone) > 1:
            return
        catalog, old = self.world.catalog, self.app
        self.unpin_all(self.pins())
        catalog.run("end", lambda c: record_run_end(c, old.ref(0)))
        # Plans that were never started, too.
        self.world.pass_time([old.job_id], HOUR_S + 1)
        self.faults.late.clear()
        job = JobToDrop(job_id=old.job_id, name=old.name, is_dropped=False)
        actor = Actor("drop", partial(drop_job, catalog, job))
        actor.advance(steps)
        assert is_expected(actor.error), f"{actor} ended with {actor.error!r}"
        marked = self.world.rows(
            "SELECT 1 FROM cairn.jobs WHERE job_id = :job AND dropped_at IS NULL", job=old.job_id
        )
        if marked:
            actor.kill()
            return
        self.gone.append(old.job_id)
        self.keep(self.maintainers, actor)
        self.plans.clear()
        self.backup = None
        self.next_batch = 0
        self.start(parallelism)

    def tolerant(self, work: Callable[[], Any]) -> Any:
        """Does what may be refused for a reason that the model knows."""
        try:
            return work()
        except StoreFailedError:
            return None
        except CairnError as error:
            is_known = any(what in str(error).lower() for what in _KNOWN)
            if self.is_owner and not is_known:
                raise
            return None

    def committed(self) -> int:
        [(newest,)] = self.world.rows(
            "SELECT coalesce(max(batch_id), -1) FROM cairn.checkpoints"
            " WHERE job_id = :job AND status IN ('CONFIRMED', 'SUBSUMED')",
            job=self.app.job_id,
        )
        return int(newest)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def every_retained_or_pinned_checkpoint_reads_bit_for_bit(self) -> None:
        Maintained.total_steps += 1
        self.world.check_readable(self.app.job_id)

    @invariant()
    def every_file_is_there_and_every_object_is_known(self) -> None:
        # Objects that only a lost history knew stay.
        if self.world.timeline == 1:
            self.world.check_files(self.app.job_id)

    total_steps: ClassVar[int] = 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "app"):
                self.end_well()
        finally:
            for actor in [*self.tasks, *self.maintainers]:
                actor.kill()
            self._held.close()
            self.world.close()

    def end_well(self) -> None:
        """Whatever was left: later, nothing is there that nothing needs."""
        for actor in [*self.tasks, *self.maintainers]:
            actor.kill()
        self.faults.put = self.faults.delete = None
        self.faults.late.clear()
        catalog = self.world.catalog
        if self.world.timeline > 1:
            for job_id in [self.app.job_id, *self._dropped()]:
                take_over(catalog, open_store(self.world.storage), job_id)
        self.world.check_manifests(self.app.job_id)
        for hours in (26, 26, QUARANTINE_MS / 3_600_000):
            self.world.pass_time([self.app.job_id, *self.gone], hours * HOUR_S)
            for name in [self.app.name, *self._dropped()]:
                if self._is_owned(name):
                    job_id = self.app.job_id if name == self.app.name else name
                    # Somebody says that what a lost history has left may go.
                    catalog.run("confirming", partial(confirm_root, job_id=job_id))
                    self.swept.append(sweep_job(catalog, name))
                cleanup_job(catalog, name)
        self.world.check_readable(self.app.job_id)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        files = self.world.rows(
            "SELECT path, status, live_segments FROM cairn.physical_files"
            " WHERE job_id = :job AND status <> 'DELETED'",
            job=self.app.job_id,
        )
        useless = [row for row in files if row.status != "SEALED" or not row.live_segments]
        # A manifest that a killed process has intended may be finished as long as its
        # checkpoint is retained.
        useless = [row for row in useless if not row.path.endswith("/_metadata")]
        assert not useless, useless
        unknown = self.world.objects(self.app.job_id).keys() - {row.path for row in files}
        assert not unknown, f"no row knows {unknown}; {self.swept}"
        for job_id in self.gone:
            assert not (self.world.root / job_id).exists(), f"{job_id} was dropped"
            assert not any(self.world.dump(job_id).values())

    def _is_owned(self, name: str) -> bool:
        """Tells whether a root was not given up yet by who deletes what is left of its job."""
        owned = "SELECT 1 FROM cairn.ownerships JOIN cairn.jobs USING (job_id) WHERE name = :name"
        return bool(self.world.rows(owned, name=name))

    def _dropped(self) -> list[str]:
        found = self.world.rows("SELECT name FROM cairn.jobs WHERE dropped_at IS NOT NULL")
        return [row.name for row in found]
