"""The compaction Dag, run for real."""

from __future__ import annotations

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.wasteful_job import WastefulJob

pytestmark = pytest.mark.airflow


def test_a_run_plans_and_compacts_every_job_in_tasks_of_their_own(
    airflow: Airflow, metastore_url: str, tmp_storage: str
) -> None:
    job = WastefulJob(metastore_url, tmp_storage).create()
    path = job.waste()
    live = job.content(job.confirmed)
    given = {"conf": {}, "overrides_params": True, "dag": "space_amplification_compaction"}
    outcome = airflow.ask("run", given, metastore_url)
    assert outcome == {
        "state": "success",
        "tasks": {
            "pool_slot[-1]": "success",
            "preflight[-1]": "success",
            "list_jobs[-1]": "success",
            **{f"compact.{task}[0]": "success" for task in ("plan", "approve", "apply")},
            "summarise[-1]": "success",
        },
    }
    job.subsume()
    assert path not in job.objects()
    assert job.content(job.confirmed) == live
