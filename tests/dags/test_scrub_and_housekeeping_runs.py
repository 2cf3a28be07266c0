"""The Dags that scrub and keep house, run for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.synthetic import SyntheticJob, dump

pytestmark = pytest.mark.airflow


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def run(airflow: Airflow, dag: str, of: SyntheticJob, /, **conf: Any) -> dict[str, Any]:
    given = {"dag": dag, "conf": conf, "overrides_params": True}
    outcome: dict[str, Any] = airflow.ask("run", given, of.url)
    return outcome


def test_a_scrub_that_finds_damage_records_it_and_fails_without_a_retry(
    airflow: Airflow, job: SyntheticJob
) -> None:
    before = dump(job.url)
    # Its segments have no right bytes at all.
    outcome = run(airflow, "scrub", job, whole=True, dry_run=True)
    assert outcome["tasks"]["scrub.apply[0]"] == "success"
    assert dump(job.url) == before
    outcome = run(airflow, "scrub", job, whole=True, max_bytes_per_s=1_000_000_000)
    assert outcome["state"] == "failed"
    assert outcome["tasks"] == {
        "pool_slot[-1]": "success",
        "preflight[-1]": "success",
        "list_jobs[-1]": "success",
        "scrub.plan[0]": "success",
        "scrub.approve[0]": "success",
        "scrub.apply[0]": "failed",
        "summarise[-1]": "upstream_failed",
    }
    damage = job.execute("SELECT DISTINCT damage FROM cairn.v_damaged_segments")
    assert damage == [("corrupt",)]
    assert Path(job.storage.removeprefix("file://")).exists()


def test_housekeeping_does_every_job_in_a_task_of_its_own(
    airflow: Airflow, job: SyntheticJob
) -> None:
    SyntheticJob(job.url, job.storage).create()
    before = dump(job.url)
    dry = run(airflow, "metastore_housekeeping", job, dry_run=True)
    assert dry["state"] == "success"
    assert dump(job.url) == before
    done = run(airflow, "metastore_housekeeping", job)
    assert done["tasks"] == {
        "pool_slot[-1]": "success",
        "preflight[-1]": "success",
        "list_jobs[-1]": "success",
        **{
            f"housekeep.{task}[{index}]": "success"
            for task in ("plan", "approve", "apply")
            for index in range(2)
        },
        "summarise[-1]": "success",
    }
    ended = job.execute("SELECT epoch FROM cairn.runs WHERE job_id = :job AND ended_at IS NOT NULL")
    assert ended == [(1,)]


def test_the_materialization_folds_a_job_that_is_named_and_else_those_that_leave_it(
    airflow: Airflow, job: SyntheticJob
) -> None:
    """This job does it itself: without its name nothing is due."""
    before = dump(job.url)
    named = run(airflow, "materialization", job, job=job.name, dry_run=True)
    assert (named["state"], named["tasks"]["materialize.apply[0]"]) == ("success", "success")
    unnamed = run(airflow, "materialization", job)
    assert unnamed["tasks"]["summarise[-1]"] == "success"
    assert "materialize.plan[0]" not in unnamed["tasks"]
    assert dump(job.url) == before
