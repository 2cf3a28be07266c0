"""The Dag that drops a job, run for real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.synthetic import SyntheticJob, dump

pytestmark = pytest.mark.airflow

LOOKED = {"pool_slot[-1]": "success", "preflight[-1]": "success"}


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def run(airflow: Airflow, of: SyntheticJob, /, **conf: Any) -> dict[str, Any]:
    given = {"dag": "drop_job", "conf": conf, "overrides_params": True}
    outcome: dict[str, Any] = airflow.ask("run", given, of.url)
    return outcome


def end_runs(job: SyntheticJob) -> None:
    job.execute("UPDATE cairn.runs SET ended_at = now() WHERE job_id = :job")


def test_a_run_drops_the_job_and_no_other(airflow: Airflow, job: SyntheticJob) -> None:
    other = SyntheticJob(job.url, job.storage).create()
    objects = other.objects()
    end_runs(job)
    outcome = run(airflow, job, job=job.name)
    assert outcome == {
        "state": "success",
        "tasks": LOOKED | {"find[-1]": "success", "drop[-1]": "success"},
    }
    assert job.objects() == set()
    assert job.execute("SELECT name FROM cairn.jobs") == [(other.name,)]
    assert other.objects() == objects


def test_a_dry_run_and_a_job_that_is_alive_change_nothing(
    airflow: Airflow, job: SyntheticJob
) -> None:
    before = dump(job.url), job.objects()
    outcome = run(airflow, job, job=job.name)
    assert outcome["tasks"] == LOOKED | {"find[-1]": "success", "drop[-1]": "failed"}
    assert (dump(job.url), job.objects()) == before
    end_runs(job)
    before = dump(job.url), job.objects()
    assert run(airflow, job, job=job.name, dry_run=True)["state"] == "success"
    assert (dump(job.url), job.objects()) == before


def test_a_misspelt_param_drops_nothing(airflow: Airflow, job: SyntheticJob) -> None:
    end_runs(job)
    before = dump(job.url), job.objects()
    assert run(airflow, job, job=job.name, dryrun=True)["state"] == "failed"
    assert (dump(job.url), job.objects()) == before
