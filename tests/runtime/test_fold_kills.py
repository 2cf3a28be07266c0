"""SIGKILL before every step of a fold, on both stores; then another process applies its plan."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from sqlalchemy import text

from cairn.maintenance.actions import apply_plan, plan_action
from metastore.enums import MaintenanceAction, SegmentKind
from tests.runtime import killed_at_a_step as killed
from tests.runtime.file_rows import rows
from tests.runtime.tasks import BIG
from tests.runtime.test_kills_at_every_step import (
    Query,
    assert_seen,
    kill_at_every_step,
    make,
    newest,
)

__all__ = ["make"]

pytestmark = pytest.mark.slow


def change(query: Query, statement: str) -> None:
    with query.plan.catalog.begin() as connection:
        connection.execute(text(statement))


def test_a_fold_killed_at_any_step_is_done_by_another_process(
    make: Callable[..., Query],
    storage: str,
) -> None:
    query = make(state=BIG, materialized=())
    plans: list[str] = []

    def start(number: int) -> str:
        query.batch()
        change(query, "UPDATE cairn.jobs SET materialize_interval_ms = 1")
        plan = plan_action(query.plan.catalog, MaintenanceAction.MATERIALIZATION, query.plan.job)
        assert plan is not None
        plans.append(str(plan.run_id))
        return query.kill(number, killed.fold, query.url, plans[-1])

    def again() -> None:
        # By the clock, it would be a minute: until then nobody takes over.
        change(
            query,
            "UPDATE cairn.maintenance_runs SET leased_until = now() WHERE leased_until > now()",
        )
        [done] = rows(
            query.plan,
            "SELECT status FROM cairn.maintenance_runs WHERE maintenance_run_id = :run",
            run=plans[-1],
        )
        apply_plan(query.plan.catalog, UUID(plans[-1]))
        checkpoint = query.batch()
        for subtask in range(2):
            as_of = newest(query, checkpoint, SegmentKind.KEYED_FULL, subtask)
            assert as_of == checkpoint - 2, f"of the newest confirmed one, {done}"
        statuses = "SELECT count(*) FROM cairn.placed_segments WHERE kind = 'keyed_full'"
        statuses += " AND status = 'LIVE' AND released_checkpoint IS NULL"
        assert rows(query.plan, statuses) == [2], "nothing is there twice"

    for _ in range(3):
        query.batch()
    seen = kill_at_every_step(query, start, again)
    assert_seen(seen, storage, "maintenance_runs", "physical_files", "placed_segments")
    left = "SELECT DISTINCT status FROM cairn.physical_files WHERE scope = 'maintenance'"
    assert set(rows(query.plan, left)) <= {"SEALED", "DELETED"}
