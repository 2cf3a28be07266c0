"""SIGKILL before every step of a scrub and of a heal; then another process applies the plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.job.damage import restore_around
from cairn.catalog.job.segments import read_one_instant
from cairn.handles import SegmentHandle
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.plans import store
from cairn.maintenance.recorded_work import plan_scrub
from cairn.maintenance.scrub import scrub_job
from cairn.segments.snapshot import snapshot
from cairn.storage import open_store
from metastore.enums import MaintenanceAction, SegmentKind
from tests.runtime import killed_at_a_step as killed
from tests.runtime.file_rows import rows
from tests.runtime.tasks import BIG, EVERYTHING
from tests.runtime.test_kills_at_every_step import (
    Query,
    assert_seen,
    kill_at_every_step,
    newest,
)

pytestmark = pytest.mark.slow

OPEN_BASES = (
    "SELECT f.path FROM cairn.placed_segments AS s JOIN cairn.physical_files AS f USING (file_id)"
    " WHERE s.kind = 'keyed_full' AND s.status = 'LIVE' AND s.released_checkpoint IS NULL"
)


class DamagedQuery(Query):
    """A query whose checkpoints are read as a restore does: around what is known as damaged."""

    def handles(self, checkpoint_id: int) -> list[SegmentHandle]:
        def work(connection: Connection) -> list[SegmentHandle]:
            read_one_instant(connection)
            found = restore_around(connection, self.plan.job_id, checkpoint_id, EVERYTHING)
            assert not found.damaged
            return found.handles

        return self.plan.catalog.run("reading around damage", work)

    def assert_whole(self, step: str) -> None:
        for checkpoint_id, batch_id in rows(
            self.plan,
            "SELECT checkpoint_id, batch_id FROM cairn.checkpoints"
            " WHERE status IN ('COMPLETED', 'CONFIRMED')",
        ):
            handles = self.handles(checkpoint_id)
            objects = open_store(self.storage)
            state = snapshot(objects, handles, EVERYTHING, job=self.plan.job)
            assert state == self.expected(batch_id), step
        found = rows(self.plan, "SELECT path, status FROM cairn.physical_files")
        stored = self.stored()
        assert {path for path, status in found if status == "SEALED"} <= stored, step
        assert stored <= {path for path, status in found if status != "DELETED"}, step

    def assert_cleanup_leaves_nothing_unknown(self) -> None:
        # Checkpoints that were made before the heal stay damaged, and outlive its source by one.
        for _ in range(3):
            self.batch()
        self.clean()
        super().assert_cleanup_leaves_nothing_unknown()

    def change(self, statement: str) -> None:
        with self.plan.catalog.begin() as connection:
            connection.execute(text(statement))

    def planned(self, action: MaintenanceAction) -> UUID:
        plan = plan_action(self.plan.catalog, action, self.plan.job)
        assert plan is not None
        return plan.run_id

    def apply(self, run_id: UUID) -> None:
        """Applies a plan whose applier was killed, once its lease is over."""
        ended = "UPDATE cairn.maintenance_runs SET leased_until = now() WHERE leased_until > now()"
        self.change(ended)
        apply_plan(self.plan.catalog, run_id)

    def fold(self) -> None:
        self.change("UPDATE cairn.jobs SET materialize_interval_ms = 1")
        apply_plan(self.plan.catalog, self.planned(MaintenanceAction.MATERIALIZATION))

    def flip(self, path: str) -> None:
        """Changes a bit of each half of an object, or changes them back."""
        objects = open_store(self.storage)
        data = bytearray(objects.get(path))
        for place in (len(data) // 4, len(data) * 3 // 4):
            data[place] ^= 1
        assert objects.delete_many([path]) == {}
        objects.put(path, [bytes(data)])


@pytest.fixture
def make(metastore_url: str, tmp_path: Path) -> Callable[[str], DamagedQuery]:
    """Makes a query on a store."""

    def new(storage: str) -> DamagedQuery:
        made = DamagedQuery(
            metastore_url, storage, str(tmp_path / "local"), state=BIG, materialized=()
        )
        for _ in range(3):
            made.batch()
        return made

    return new


def test_a_heal_killed_at_any_step_is_done_by_another_process(
    make: Callable[[str], DamagedQuery], storage: str
) -> None:
    query = make(storage)
    plans: list[UUID] = []

    def start(number: int) -> str:
        query.batch()
        query.fold()
        query.batch()
        [path] = set(rows(query.plan, OPEN_BASES))
        query.flip(path)
        scrub_job(query.plan.catalog, query.plan.job, sample_percent=None)
        plans.append(query.planned(MaintenanceAction.HEAL))
        return query.kill(number, killed.fold, query.url, str(plans[-1]))

    def again() -> None:
        query.apply(plans[-1])
        checkpoint = query.batch()
        for subtask in range(2):
            as_of = newest(query, checkpoint, SegmentKind.KEYED_FULL, subtask)
            assert as_of == checkpoint - 2, "of the newest confirmed one"
        needed = "SELECT count(*) FROM cairn.v_damaged_segments WHERE is_needed_by_next"
        assert rows(query.plan, needed) == [0]
        assert len(rows(query.plan, OPEN_BASES)) == 2, "nothing is there twice"

    seen = kill_at_every_step(query, start, again)
    assert_seen(seen, storage, "maintenance_runs", "physical_files", "placed_segments")


def test_a_scrub_killed_at_any_step_is_done_by_another_process(
    make: Callable[[str], DamagedQuery], tmp_storage: str
) -> None:
    query = make(tmp_storage)
    query.fold()
    query.batch()
    [path] = set(rows(query.plan, OPEN_BASES))
    known = "SELECT path FROM cairn.v_damaged_segments"
    unread = "SELECT path FROM cairn.physical_files WHERE live_segments > 0 AND verified_at IS NULL"
    seen: list[str] = []
    while True:
        # What was damaged is whole in the next round.
        query.flip(path)
        query.change("UPDATE cairn.physical_files SET verified_at = NULL")
        scrub = plan_scrub(query.plan.catalog, query.plan.job, sample_percent=None)
        plan = store(query.plan.catalog, scrub).run_id
        step = query.kill(len(seen) + 1, killed.fold, query.url, str(plan))
        query.apply(plan)
        is_damaged = len(seen) % 2 == 0
        assert set(rows(query.plan, known)) == ({path} if is_damaged else set()), step
        assert rows(query.plan, unread) == [], step
        if not step:
            break
        seen.append(step)
    for table in ("maintenance_runs", "damaged_segments", "physical_files"):
        for when in ("before", "after"):
            assert any(s.startswith(f"{when} COMMIT") and table in s for s in seen), seen
