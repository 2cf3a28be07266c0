"""Scrubs and housekeeping leave a row of what was planned and what was done."""

from __future__ import annotations

from typing import Any

import pytest

from cairn.errors import FencedError, StorageError
from cairn.maintenance import recorded_work
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.recorded_work import housekeep_and_record, scrub_and_record
from metastore.enums import MaintenanceAction
from tests.maintenance.synthetic import SyntheticJob, dump


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def runs(job: SyntheticJob) -> list[Any]:
    return job.execute(
        "SELECT action, status, result FROM cairn.maintenance_runs WHERE job_id = :job"
        " ORDER BY planned_at"
    )


def test_a_scrub_and_housekeeping_are_rows_with_their_outcome(job: SyntheticJob) -> None:
    scrubbed = scrub_and_record(job.catalog, job.name, sample_percent=None)
    kept = housekeep_and_record(job.catalog, job.name)
    [(action, status, result), (other, other_status, other_result)] = runs(job)
    assert (action, status, other, other_status) == (
        "scrub",
        "APPLIED",
        "housekeeping",
        "APPLIED",
    )
    assert result["damaged_segments"] == scrubbed.damaged_segments > 0
    assert other_result["closed_runs"] == kept.closed_runs == 1
    housekeep_and_record(job.catalog, job.name)
    assert len(runs(job)) == 2, "there was nothing to do"


def test_dry_runs_leave_no_row(job: SyntheticJob) -> None:
    before = dump(job.url)
    scrub_and_record(job.catalog, job.name, dry_run=True)
    housekeep_and_record(job.catalog, job.name, dry_run=True)
    assert dump(job.url) == before


@pytest.mark.parametrize("action", [MaintenanceAction.SCRUB, MaintenanceAction.HOUSEKEEPING])
def test_a_plan_is_applied_by_another_process_and_again(
    job: SyntheticJob, action: MaintenanceAction
) -> None:
    plan = plan_action(job.catalog, action, job.name)
    assert plan is not None
    with held_lease(job.catalog, job.job_id, plan.run_id), pytest.raises(FencedError):
        apply_plan(job.catalog, plan.run_id)
    job.execute("UPDATE cairn.maintenance_runs SET leased_until = now() - interval '1 s'")
    first = apply_plan(job.catalog, plan.run_id)
    assert apply_plan(job.catalog, plan.run_id) == first


def test_a_scrub_that_fails_is_applied_again(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_action(job.catalog, MaintenanceAction.SCRUB, job.name)
    assert plan is not None

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk says no")

    with monkeypatch.context() as patch:
        patch.setattr(recorded_work, "scrub_job", fail)
        with pytest.raises(StorageError):
            apply_plan(job.catalog, plan.run_id)
    apply_plan(job.catalog, plan.run_id)
    assert [row[1] for row in runs(job)] == ["APPLIED"]
