"""The Dag that rescales a running query, run for real; a thread is the query's driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog import requests
from cairn.catalog.requests import Request
from metastore.enums import RequestStatus
from tests.dags.conftest import Airflow
from tests.metastore.steps import Steps

pytestmark = pytest.mark.airflow


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> Steps:
    steps = Steps(metastore_url, tmp_storage)
    steps.whole_batch(steps.register(2, supervisor_id=uuid4()), 0)
    return steps


def run(airflow: Airflow, of: Steps, /, **conf: Any) -> dict[str, Any]:
    given = {"dag": "rescale", "conf": conf, "overrides_params": True}
    outcome: dict[str, Any] = airflow.ask("run", given, of.url)
    return outcome


def asked(job: Steps) -> list[tuple[Any, ...]]:
    return job.sql("SELECT parallelism, status FROM cairn.run_requests WHERE job_id = :job")


@contextmanager
def driver(job: Steps, error: str | None = None) -> Iterator[None]:
    """Does the first request, or fails it with an error."""

    def do() -> None:
        found: Request | None = None
        while found is None:
            time.sleep(0.1)
            found = job.run(lambda c: requests.undone_request(c, job.name))
        one = found
        job.run(lambda c: requests.take(c, one, instead_of=2))
        if error is not None:
            job.run(lambda c: requests.finish(c, one, RequestStatus.FAILED, message=error))
            return
        job.whole_batch(job.register(one.parallelism or 0, supervisor_id=uuid4()), 1)
        job.run(lambda c: requests.finish(c, one, RequestStatus.DONE, checkpoint_id=2))

    with ThreadPoolExecutor(1) as threads:
        done: Future[None] = threads.submit(do)
        yield
        done.result(timeout=60)


def test_a_run_waits_until_the_query_has_the_new_parallelism(airflow: Airflow, job: Steps) -> None:
    with driver(job):
        outcome = run(airflow, job, job=job.name, parallelism=4)
    assert outcome == {"state": "success", "tasks": {"rescale[-1]": "success"}}
    assert asked(job) == [(4, "DONE")]


def test_a_request_that_fails_fails_the_run(airflow: Airflow, job: Steps) -> None:
    with driver(job, error="no memory for 4 subtasks"):
        outcome = run(airflow, job, job=job.name, parallelism=4)
    assert outcome == {"state": "failed", "tasks": {"rescale[-1]": "failed"}}


def test_what_cannot_be_done_and_a_dry_run_ask_nothing(airflow: Airflow, job: Steps) -> None:
    assert run(airflow, job, job=job.name, parallelism=9)["state"] == "failed"
    assert run(airflow, job, job=job.name, parallelism=4, dry_run=True)["state"] == "success"
    assert asked(job) == []
