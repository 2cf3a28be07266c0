"""The Dag of the orphan sweep, run for real."""

from __future__ import annotations

import pytest

from tests.dags.conftest import Airflow
from tests.maintenance.sweeping import (
    cleaned_job,
    let_time_pass,
    orphans_of,
    put,
    quarantine,
)

pytestmark = pytest.mark.airflow

SET_ASIDE = (
    "INSERT INTO cairn.quarantined_objects (quarantine_id, job_id, path, reason, size_bytes,"
    " version, modified_at, maintenance_run_id, quarantined_until) VALUES"
    " (gen_random_uuid(), :job, :path, 'a test', 1, 'another', now(), gen_random_uuid(),"
    " now() + INTERVAL '7 days')"
)


def test_a_run_deletes_what_is_due_sets_nothing_young_aside_and_reports(
    airflow: Airflow, metastore_url: str, tmp_storage: str
) -> None:
    job = cleaned_job(metastore_url, tmp_storage)
    *others, orphan = orphans_of(job)
    put(job.store, orphan)
    job.execute(SET_ASIDE, path=others[-1])
    let_time_pass(job)
    given = {"dag": "orphan_sweep", "conf": {"job": job.name}, "overrides_params": True}
    outcome = airflow.ask("run", given, metastore_url)
    assert outcome == {
        "state": "success",
        "tasks": {
            "pool_slot[-1]": "success",
            "preflight[-1]": "success",
            "list_jobs[-1]": "success",
            **{f"sweep.{task}[0]": "success" for task in ("plan", "approve", "apply")},
            "summarise[-1]": "success",
        },
    }
    # Of the object in quarantine nothing is there any more; the other one is too young.
    assert quarantine(job) == {others[-1]: "DELETED"}
    assert orphan in job.objects()
    misspelt = {**given, "conf": {"jobb": job.name}}
    assert airflow.ask("run", misspelt, metastore_url)["state"] == "failed"


def test_a_sweep_of_most_of_a_root_asks_a_person_before_it_deletes(
    airflow: Airflow, metastore_url: str, tmp_storage: str
) -> None:
    job = cleaned_job(metastore_url, tmp_storage)
    paths = orphans_of(job)
    for path in paths:
        job.execute(SET_ASIDE, path=path)
    let_time_pass(job)
    given = {"dag": "orphan_sweep", "conf": {"job": job.name}, "overrides_params": True}
    rejected = airflow.ask("run", {**given, "answer": "Reject"}, metastore_url)
    assert (rejected["state"], rejected["tasks"]["sweep.apply[0]"]) == ("success", "skipped")
    assert quarantine(job) == dict.fromkeys(paths, "QUARANTINED")
    approved = airflow.ask("run", {**given, "answer": "Approve"}, metastore_url)
    assert (approved["state"], approved["tasks"]["sweep.apply[0]"]) == ("success", "success")
    assert quarantine(job) == dict.fromkeys(paths, "DELETED")
    runs = job.execute("SELECT status, passed_by FROM cairn.maintenance_runs ORDER BY planned_at")
    assert runs[-2:] == [("REFUSED", None), ("APPLIED", "ada")]
