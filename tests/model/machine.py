"""The model: an application, maintainers and failures as interleaved steps, over the real SQL.

To a job that runs (`tests.model.running`) and its maintainers (`tests.model.maintaining`) come
careless operators, other jobs that are restored from it, and what must hold whatever they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from cairn.catalog.cleanup.drop import JobToDrop
from cairn.catalog.cleanup.quarantine import confirm_root
from cairn.catalog.job.run_ends import record_run_end
from cairn.catalog.savepoints.pins import remove_pins
from cairn.errors import RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.drop import drop_job
from cairn.maintenance.sweep import QUARANTINE_MS, SweepReport, sweep_job
from cairn.ownership.take import own_root, take_over
from cairn.savepoints.write_manifest import pin
from cairn.storage import open_store
from metastore.enums import PinKind
from tests.model.application import RETENTION_S, restore_job
from tests.model.maintaining import Maintaining
from tests.model.running import HOUR_S, Running, any_one

_COPY = "copy"
"""The job that is restored from a manifest of the other one."""


@dataclass
class Backup:
    """The rows of the job some time ago."""

    job_id: str
    rows: dict[str, list[Any]]
    at_s: float
    next_batch: int


class Maintained(Maintaining):
    """One job at a time, with all that is done to it, and one that is restored from it."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = Running.total_steps
        self.backup: Backup | None = None
        self.gone: list[str] = []
        self.swept: list[SweepReport] = []
        self.copies: list[str] = []

    # ------------------------------------------------------------------ people

    @rule(named=st.booleans())
    def keep_a_checkpoint(self, named: bool) -> None:
        """Somebody pins the newest checkpoint, or takes a savepoint of it."""
        kind = PinKind.SAVEPOINT if named else PinKind.PIN
        self.tolerant(lambda: pin(self.world.catalog, self.app.name, None, kind=kind))

    @rule(steps=st.integers(1, 5), named=st.booleans())
    def begin_to_keep_a_checkpoint(self, steps: int, named: bool) -> None:
        """The same, and who does it may be killed, or be slow."""
        kind = PinKind.SAVEPOINT if named else PinKind.PIN
        work = partial(pin, self.world.catalog, self.app.name, None, kind=kind)
        self.go_on(self.actor("pin", work), steps)

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

    @precondition(lambda self: not self.copies)
    @rule(which=any_one, steps=st.integers(1, 30))
    def restore_another_job(self, which: int, steps: int) -> None:
        """Another job starts from a manifest of this one, which is maintained meanwhile."""
        kept = self.world.manifests(self.app.job_id)
        if not kept or any(one.name == "restore" for one in self.alive):
            return
        origin = (self.app.job_id, kept[which % len(kept)])
        state = self.truth.expected[origin]

        def adopt(job_id: str) -> None:
            self.copies.append(job_id)
            self.truth.adopt(job_id, origin[1], state)
            self.happened["a job was restored"] += 1

        url = self.truth.manifest_url(*origin)
        work = partial(restore_job, self.url, self.world.storage, _COPY, url)
        self.go_on(self.actor("restore", work, adopt), steps)

    # ------------------------------------------------------------------ disasters

    @rule()
    def back_up(self) -> None:
        rows = self.world.dump(self.app.job_id)
        self.backup = Backup(self.app.job_id, rows, self.world.now_s, self.next_batch)

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
        self.world.restore(self.app.job_id, self.backup.rows, age_s)
        self.truth.forget(self.app.job_id)
        self.is_owner = False
        self.plans.clear()
        # An operator removes what Spark has committed since, see docs/protocol.md.
        self.next_batch = self.committed() + 1
        self.backup = None
        self.happened["the metastore was lost"] += 1
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
        if not self.is_owner or self.gone:
            return
        catalog, old = self.world.catalog, self.app
        self.unpin_all(self.pins())
        catalog.run("end", lambda c: record_run_end(c, old.ref(0)))
        # Plans that were never started, too.
        self.pass_s(HOUR_S + 1)
        job = JobToDrop(job_id=old.job_id, name=old.name, is_dropped=False)
        actor = self.actor("drop", partial(drop_job, catalog, job))
        self.go_on(actor, steps)
        marked = self.world.rows(
            "SELECT 1 FROM cairn.jobs WHERE job_id = :job AND dropped_at IS NULL", job=old.job_id
        )
        if marked:
            actor.kill()
            self.alive = [one for one in self.alive if one is not actor]
            return
        self.happened["a job was dropped"] += 1
        self.gone.append(old.job_id)
        self.plans.clear()
        self.backup = None
        self.next_batch = 0
        self.start(parallelism)

    def committed(self) -> int:
        [(newest,)] = self.world.rows(
            "SELECT coalesce(max(batch_id), -1) FROM cairn.checkpoints"
            " WHERE job_id = :job AND status IN ('CONFIRMED', 'SUBSUMED')",
            job=self.app.job_id,
        )
        return int(newest)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def every_checkpoint_reads_bit_for_bit_and_every_file_is_known(self) -> None:
        if hasattr(self, "app"):
            self.look()
        # An event, or all of an action at once.
        self.happened["a rule was played"] += 1
        if Running.total_steps == self._steps:
            Running.total_steps += 1
        self._steps = Running.total_steps

    def look(self) -> None:
        for job_id in (self.app.job_id, *self.copies):
            # Objects that only a lost history knew stay.
            self.truth.check(job_id, knows_all=self.world.timeline == 1)
        damaged, _ = self.truth.watch.rows()["damaged_segments"]
        assert not damaged, "a scrub has found damage where there is none"

    def teardown(self) -> None:
        try:
            if hasattr(self, "app"):
                self.end_well()
        finally:
            self.kill_all()
            self._held.close()
            self.truth.close()
            self.world.close()

    def kill_all(self) -> None:
        for actor in self.alive:
            actor.kill()
        self.alive.clear()

    def end_well(self) -> None:
        """Whatever was left: later, nothing is there that nothing needs."""
        self.kill_all()
        self.faults.end()
        self.world.skew_s = 0.0
        catalog, store = self.world.catalog, open_store(self.world.storage)
        if self.world.timeline > 1:
            for job_id in [self.app.job_id, *self._dropped()]:
                take_over(catalog, store, job_id)
        copies = self._ids_of(_COPY)
        for job_id in copies:
            (take_over if self.world.timeline > 1 else own_root)(catalog, store, job_id)
        for job_id in [self.app.job_id, *self.copies]:
            self.truth.check_manifests(job_id)
        for hours in (26, QUARANTINE_MS / 3_600_000):
            self.world.pass_time(hours * HOUR_S)
            for name in [self.app.name, *([_COPY] if copies else []), *self._dropped()]:
                self._sweep_and_clean(name)
        self.look()
        for job_id in [self.app.job_id, *copies]:
            self.check_nothing_is_left(job_id)
        for job_id in self.gone:
            assert not (self.world.root / job_id).exists(), f"{job_id} was dropped"
            assert not any(self.world.dump(job_id).values())

    def _sweep_and_clean(self, name: str) -> None:
        catalog = self.world.catalog
        cleanup_job(catalog, name)
        if self._is_owned(name):
            [job_id] = self._ids_of(name)
            # Somebody says that what a lost history has left may go.
            catalog.run("confirming", partial(confirm_root, job_id=job_id))
            self.swept.append(sweep_job(catalog, name))
            self.note(self.swept[-1])
        if self._ids_of(name):
            cleanup_job(catalog, name)

    def check_nothing_is_left(self, job_id: str) -> None:
        files = self.world.rows(
            "SELECT path, status, live_segments FROM cairn.physical_files"
            " WHERE job_id = :job AND status <> 'DELETED'",
            job=job_id,
        )
        useless = [row for row in files if row.status != "SEALED" or not row.live_segments]
        # A manifest that a killed process has intended may be finished as long as its
        # checkpoint is retained.
        useless = [row for row in useless if not row.path.endswith("/_metadata")]
        assert not useless, useless
        unknown = self.world.objects(job_id).keys() - {row.path for row in files}
        assert not unknown, f"no row knows {unknown}; {self.swept}"

    def _is_owned(self, name: str) -> bool:
        """Tells whether a root was not given up yet by who deletes what is left of its job."""
        owned = "SELECT 1 FROM cairn.ownerships JOIN cairn.jobs USING (job_id) WHERE name = :name"
        return bool(self.world.rows(owned, name=name))

    def _dropped(self) -> list[str]:
        found = self.world.rows("SELECT name FROM cairn.jobs WHERE dropped_at IS NOT NULL")
        return [row.name for row in found]

    def _ids_of(self, name: str) -> list[str]:
        found = self.world.rows("SELECT job_id FROM cairn.jobs WHERE name = :name", name=name)
        return [row.job_id for row in found]
