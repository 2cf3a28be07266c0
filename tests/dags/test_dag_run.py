"""The cleanup Dag, run for real: what the metastore and the storage look like after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.synthetic import SyntheticJob, dump

pytestmark = pytest.mark.airflow

RunDag = Callable[..., dict[str, Any]]


@pytest.fixture
def run_dag(airflow: Airflow) -> RunDag:
    def run(url: str, *, overrides_params: bool = True, **conf: Any) -> dict[str, Any]:
        given = {"conf": conf, "overrides_params": overrides_params}
        outcome: dict[str, Any] = airflow.ask("run", given, url)
        return outcome

    return run


def test_a_run_cleans_every_job_in_a_task_of_its_own(
    run_dag: RunDag, metastore_url: str, tmp_storage: str
) -> None:
    jobs = [SyntheticJob(metastore_url, tmp_storage).create() for _ in range(2)]
    assert run_dag(metastore_url) == {
        "state": "success",
        "tasks": {
            "list_jobs[-1]": "success",
            "clean[0]": "success",
            "clean[1]": "success",
            "summarise[-1]": "success",
        },
    }
    for job in jobs:
        assert job.objects() == job.needed
        [(deleted,)] = job.execute(
            "SELECT count(*) FROM cairn.physical_files WHERE job_id = :job AND status = 'DELETED'"
        )
        assert deleted == job.DOOMED


def test_a_dry_run_of_one_job_changes_nothing(
    run_dag: RunDag, metastore_url: str, tmp_storage: str
) -> None:
    jobs = [SyntheticJob(metastore_url, tmp_storage).create() for _ in range(2)]
    before = dump(metastore_url), [job.objects() for job in jobs]
    outcome = run_dag(metastore_url, job=jobs[0].name, dry_run=True)
    assert outcome["state"] == "success"
    assert "clean[1]" not in outcome["tasks"]
    assert (dump(metastore_url), [job.objects() for job in jobs]) == before


def test_a_refusal_fails_the_run_without_a_retry(run_dag: RunDag, metastore_url: str) -> None:
    outcome = run_dag(metastore_url, job="nobody")
    assert outcome["state"] == "failed"
    assert outcome["tasks"]["clean[0]"] == "failed"
    assert outcome["tasks"]["summarise[-1]"] == "upstream_failed"


@pytest.mark.parametrize("conf", [{"jobb": "one"}, {"job": "one", "dryrun": True}])
def test_a_misspelt_param_fails_the_run_and_changes_nothing(
    run_dag: RunDag, metastore_url: str, tmp_storage: str, conf: dict[str, Any]
) -> None:
    job = SyntheticJob(metastore_url, tmp_storage).create()
    before = dump(metastore_url), job.objects()
    outcome = run_dag(metastore_url, **conf)
    assert outcome["state"] == "failed"
    assert outcome["tasks"]["list_jobs[-1]"] == "failed"
    assert (dump(metastore_url), job.objects()) == before


def test_a_param_that_airflow_ignores_fails_the_run(
    run_dag: RunDag, metastore_url: str, tmp_storage: str
) -> None:
    job = SyntheticJob(metastore_url, tmp_storage).create()
    outcome = run_dag(metastore_url, job="another", overrides_params=False)
    assert outcome["tasks"]["list_jobs[-1]"] == "failed"
    assert len(job.objects()) > len(job.needed)


def test_a_metastore_without_jobs_is_a_success(run_dag: RunDag, metastore_url: str) -> None:
    outcome = run_dag(metastore_url)
    assert outcome["state"] == "success"
    assert outcome["tasks"]["summarise[-1]"] == "success"
