"""Every Dag file: imports without errors, keeps the conventions, parses fast and the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dags.conftest import Airflow

pytestmark = pytest.mark.airflow

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts(airflow: Airflow) -> Facts:
    found: Facts = airflow.facts
    return found


def dags(facts: Facts) -> Iterator[tuple[str, Facts]]:
    assert facts["dags"]
    yield from facts["dags"].items()


def test_all_dag_files_import(facts: Facts) -> None:
    assert facts["import_errors"] == {}
    assert set(facts["dags"]) == {
        "drop_job",
        "materialization",
        "metastore_housekeeping",
        "orphan_sweep",
        "rescale",
        "scrub",
        "space_amplification_compaction",
        "subsumption_cleanup",
    }


def test_parsing_is_fast_and_imports_nothing_heavy(facts: Facts) -> None:
    assert facts["heavy"] == []
    assert facts["parse_s"] < 1


def test_two_parses_give_one_dag_version(facts: Facts) -> None:
    assert {file for file, warnings in facts["unstable"].items() if warnings} == set()
    assert facts["unstable"]


def test_dags_say_what_they_do_and_never_catch_up(facts: Facts) -> None:
    for dag_id, dag in dags(facts):
        assert len(dag["doc_md"]) > 500, dag_id
        assert "cairn" in dag["tags"], dag_id
        assert dag["catchup"] is False, dag_id
        assert dag["start_date"] == "2026-01-01T00:00:00+00:00", dag_id
        assert dag["max_active_runs"] == (16 if dag_id == "rescale" else 1), dag_id
        assert dag["dagrun_timeout_s"], dag_id


def test_tasks_have_an_owner_retries_and_a_timeout(facts: Facts) -> None:
    for dag_id, dag in dags(facts):
        for task_id, task in dag["tasks"].items():
            assert task["owner"] == "cairn", (dag_id, task_id)
            assert task["retries"] >= 1, (dag_id, task_id)
            assert task["exponential_backoff"], (dag_id, task_id)
            assert task["execution_timeout_s"], (dag_id, task_id)


def test_the_pool_is_looked_for_before_a_task_waits_in_it(facts: Facts) -> None:
    for dag_id, dag in dags(facts):
        for task_id, task in dag["tasks"].items():
            if task["pool"] == "cairn_maintenance" and task_id != "pool_slot":
                assert "preflight" in ancestors(dag["tasks"], task_id), (dag_id, task_id)


def ancestors(tasks: Facts, task_id: str) -> set[str]:
    above = set(tasks[task_id]["upstream"])
    return above.union(*(ancestors(tasks, name) for name in above))


GROUPS = {
    "materialization": "materialize",
    "metastore_housekeeping": "housekeep",
    "orphan_sweep": "sweep",
    "scrub": "scrub",
    "space_amplification_compaction": "compact",
    "subsumption_cleanup": "clean",
}
"""The task group of each Dag that plans."""


def test_each_dag_with_a_plan_asks_a_person_between_planning_and_applying_it(facts: Facts) -> None:
    assert set(GROUPS) == set(facts["dags"]) - {"drop_job", "rescale"}
    for dag_id, group in GROUPS.items():
        tasks = facts["dags"][dag_id]["tasks"]
        assert {name: task["upstream"] for name, task in tasks.items()} == {
            "pool_slot": [],
            "preflight": [],
            "list_jobs": ["preflight"],
            f"{group}.plan": ["list_jobs"],
            f"{group}.approve": [f"{group}.plan"],
            f"{group}.apply": [f"{group}.approve", f"{group}.plan"],
            "summarise": [f"{group}.apply"],
        }, dag_id
        for name in ("pool_slot", f"{group}.plan", f"{group}.apply"):
            assert tasks[name]["pool"] == "cairn_maintenance"


def test_who_waits_takes_no_slot_of_the_pool_and_no_worker(facts: Facts) -> None:
    """The look for the pool is rescheduled, an answer is awaited by no process, all else works."""
    for dag_id, dag in dags(facts):
        waiting = {
            task_id
            for task_id, task in dag["tasks"].items()
            if task["is_sensor"] or task["awaits_input"]
        }
        # That of `rescale` is deferred.
        looks = {"preflight"} & set(dag["tasks"])
        asks = {f"{GROUPS[dag_id]}.approve"} if dag_id in GROUPS else set()
        assert waiting == looks | asks, dag_id
        for task_id in waiting:
            task = dag["tasks"][task_id]
            assert task["pool"] == "default_pool", (dag_id, task_id)
            assert task["awaits_input"] or task["is_rescheduled"], (dag_id, task_id)


def test_the_approval_and_the_application_of_a_plan_link_to_it(facts: Facts) -> None:
    for dag_id, group in GROUPS.items():
        tasks = facts["dags"][dag_id]["tasks"]
        for name in ("approve", "apply"):
            [link] = tasks[f"{group}.{name}"]["links"]
            assert link.endswith(f"/dags/{dag_id}/runs/a/tasks/{group}.plan/mapped/3/xcom")


def test_the_trigger_form_defaults_to_all_jobs_for_real(facts: Facts) -> None:
    params = facts["dags"]["subsumption_cleanup"]["params"]
    assert params["job"]["value"] is None
    assert params["job"]["schema"]["type"] == ["null", "string"]
    assert params["dry_run"]["value"] is False
    assert params["dry_run"]["schema"]["type"] == "boolean"
    assert all(param["schema"]["description_md"] for param in params.values())


def test_the_doc_page_names_the_pool_and_the_variable(facts: Facts) -> None:
    page = facts["dags"]["subsumption_cleanup"]["doc_md"]
    assert "airflow pools set cairn_maintenance" in page
    assert "CAIRN_METASTORE" in page
