"""The cleanup Dag, run for real: what the metastore and the storage look like after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.maintenance.test_stored_plans import lose_what_is_live

pytestmark = pytest.mark.airflow

RunDag = Callable[..., dict[str, Any]]


@pytest.fixture
def run_dag(airflow: Airflow) -> RunDag:
    def run(
        url: str, *, overrides_params: bool = True, answer: str = "", **conf: Any
    ) -> dict[str, Any]:
        given = {"conf": conf, "overrides_params": overrides_params, "answer": answer}
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
            "pool_slot[-1]": "success",
            "preflight[-1]": "success",
            "list_jobs[-1]": "success",
            **{
                f"clean.{task}[{index}]": "success"
                for task in ("plan", "approve", "apply")
                for index in range(2)
            },
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
    assert "clean.apply[1]" not in outcome["tasks"]
    assert (dump(metastore_url), [job.objects() for job in jobs]) == before


def test_a_refusal_fails_the_run_without_a_retry(run_dag: RunDag, metastore_url: str) -> None:
    outcome = run_dag(metastore_url, job="nobody")
    assert outcome["state"] == "failed"
    assert outcome["tasks"]["clean.plan[0]"] == "failed"
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


@pytest.mark.parametrize(("answer", "is_applied"), [("Approve", True), ("Reject", False)])
def test_where_a_circuit_breaker_spoke_a_person_is_asked_and_other_jobs_go_on(
    run_dag: RunDag, metastore_url: str, tmp_storage: str, answer: str, is_applied: bool
) -> None:
    broken = SyntheticJob(metastore_url, tmp_storage, name="broken").create()
    lose_what_is_live(broken)
    objects = broken.objects()
    healthy = SyntheticJob(metastore_url, tmp_storage, name="healthy").create()
    outcome = run_dag(metastore_url, answer=answer)
    assert outcome["state"] == "success"
    assert outcome["tasks"]["clean.apply[0]"] == ("success" if is_applied else "skipped")
    assert outcome["tasks"]["clean.apply[1]"] == "success"
    assert healthy.objects() == healthy.needed
    passed = broken.execute(
        "SELECT status, passed_by FROM cairn.maintenance_runs"
        " WHERE job_id = :job ORDER BY planned_at LIMIT 1"
    )
    assert passed == [("APPLIED", "ada") if is_applied else ("REFUSED", None)]
    assert (broken.objects() == objects) is not is_applied
