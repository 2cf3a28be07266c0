"""Housekeeping that is killed before each commit: another process that applies its plan goes on."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from cairn.catalog.savepoints.pins import pin_checkpoint
from cairn.maintenance.actions import plan_action
from cairn.maintenance.housekeeping import housekeep_job
from metastore.enums import MaintenanceAction, PinKind
from tests.forked import Forked
from tests.maintenance import killed
from tests.maintenance.history_job import (
    TRIMMED_CHECKPOINTS,
    TRIMMED_FILES,
    job_with_history,
    totals,
)
from tests.metastore.ageing import let_time_pass
from tests.metastore.steps import Steps


def left(job: Steps) -> list[Any]:
    """Returns what is there of each kind that housekeeping closes or trims."""
    return job.sql(
        "SELECT (SELECT count(*) FROM cairn.checkpoints WHERE job_id = :job),"
        " (SELECT count(*) FROM cairn.physical_files WHERE job_id = :job),"
        " (SELECT count(*) FROM cairn.pins WHERE job_id = :job AND removed_at IS NULL),"
        " (SELECT count(*) FROM cairn.runs WHERE job_id = :job AND ended_at IS NULL)"
    )


def test_killed_before_any_commit_another_process_continues_its_plan(
    metastore_url: str, tmp_storage: str
) -> None:
    job = job_with_history(metastore_url, tmp_storage)
    job.run(
        lambda c: pin_checkpoint(
            c, job.name, None, pin_id=uuid4(), kind=PinKind.PIN, name=None, lasts_ms=1
        )
    )
    let_time_pass(job.url, job.job_id, "8 days")
    before, [(checkpoints, files, _, _)] = totals(job), left(job)
    plan = plan_action(job.catalog, MaintenanceAction.HOUSEKEEPING, job.name)
    assert plan is not None
    # Each continues what those before have left.
    for number in range(1, 40):
        is_done = Forked(killed.housekeep, job.url, plan.run_id, kill_at=("commit", number)).run()
        assert totals(job) == before
        if is_done:
            break
        job.sql("UPDATE cairn.maintenance_runs SET leased_until = now() WHERE holder IS NOT NULL")
    assert number > 5
    expected = (checkpoints - TRIMMED_CHECKPOINTS, files - TRIMMED_FILES, 0, 1)
    assert left(job) == [expected]
    report = housekeep_job(job.catalog, job.name, dry_run=True)
    assert (report.expired_pins, report.closed_runs, report.trimmed_files) == (0, 0, 0)
    assert job.sql("SELECT status FROM cairn.maintenance_runs WHERE action = 'housekeeping'") == [
        ("APPLIED",)
    ]
