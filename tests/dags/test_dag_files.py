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
        assert dag["max_active_runs"] == 1, dag_id
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


def test_the_cleanup_maps_one_task_per_job_in_the_pool(facts: Facts) -> None:
    tasks = facts["dags"]["subsumption_cleanup"]["tasks"]
    assert {name: task["upstream"] for name, task in tasks.items()} == {
        "pool_slot": [],
        "preflight": [],
        "list_jobs": ["preflight"],
        "clean.plan": ["list_jobs"],
        "clean.approve": ["clean.plan"],
        "clean.apply": ["clean.approve", "clean.plan"],
        "summarise": ["clean.apply"],
    }
    for name in ("pool_slot", "clean.plan", "clean.apply"):
        assert tasks[name]["pool"] == "cairn_maintenance"
    # Who waits for an answer, or looks for the pool, takes no slot of it.
    for name in ("preflight", "clean.approve"):
        assert tasks[name]["pool"] == "default_pool"


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


def test_the_compaction_plans_and_applies_in_tasks_of_their_own(facts: Facts) -> None:
    tasks = facts["dags"]["space_amplification_compaction"]["tasks"]
    assert {name: task["upstream"] for name, task in tasks.items()} == {
        "pool_slot": [],
        "preflight": [],
        "list_jobs": ["preflight"],
        "plan": ["list_jobs"],
        "apply": ["plan"],
        "summarise": ["apply"],
    }
    assert all(tasks[name]["mapped"] for name in ("plan", "apply"))
    assert tasks["apply"]["pool"] == "cairn_maintenance"
