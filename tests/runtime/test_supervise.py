"""`cairn.run` around a query that a test scripts; the metastore is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import cairn
from cairn.catalog import requests
from cairn.catalog.requests import Wanted
from cairn.errors import BadInputError, FencedError, MetastoreError
from cairn.runtime.driver import supervise
from metastore.enums import RequestKind
from tests.metastore.steps import Steps

SOON = cairn.RestartPolicy(first_delay_ms=1, max_delay_ms=1)


class Query:
    """As much of a query as `cairn.run` looks at; it runs until it is stopped."""

    id = "q"
    lastProgress = None
    recentProgress: tuple[()] = ()

    def __init__(self, error: Exception | None = None, *, ends: bool = False) -> None:
        self.error = error
        self.over = threading.Event()
        self.in_batch = threading.Event()
        self.seen_in_batch = threading.Event()
        if ends:
            self.over.set()

    def awaitTermination(self, timeout_s: int) -> bool:
        if self.error is not None:
            raise self.error
        return self.over.wait(timeout_s)

    @property
    def isActive(self) -> bool:
        return not self.over.is_set()

    @property
    def status(self) -> dict[str, bool]:
        self.seen_in_batch.set()
        return {"isTriggerActive": self.in_batch.is_set()}

    def stop(self) -> None:
        self.over.set()


@dataclass
class Application:
    """Registers a run for each start, whose queries or errors are scripted."""

    job: Steps
    script: Callable[[int], Query | Exception]
    parallelism: list[int] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)

    def __call__(self, job: cairn.Job) -> StreamingQuery:
        self.parallelism.append(job.spec.parallelism)
        made = self.script(len(self.parallelism) - 1)
        if isinstance(made, Exception):
            raise made
        self.queries.append(made)
        self.job.register(job.spec.parallelism, supervisor_id=job.spec.supervisor_id)
        return cast("StreamingQuery", made)

    def run(self) -> None:
        job = cairn.Job(
            self.job.name, storage=self.job.storage, metastore=self.job.url, parallelism=2
        )
        cairn.run(self, job, restart=SOON)


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(supervise, "POLL_S", 0.02)
    return Steps(metastore_url, tmp_storage)


@contextmanager
def running(application: Application) -> Iterator[Future[None]]:
    """Runs it in a thread, up to its first start and until the block ends."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(application.run)
        try:
            wait_for(lambda: bool(application.job.job_id) or future.done())
            yield future
        finally:
            if not future.done():
                ask(application.job, RequestKind.STOP)
            future.exception(timeout=20)


def wait_for(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def ask(job: Steps, kind: RequestKind, **what: Any) -> None:
    wanted = Wanted(request_id=uuid4(), kind=kind, **what)
    job.run(lambda c: requests.ask(c, job.name, wanted))


def results(job: Steps) -> list[tuple[Any, ...]]:
    query = "SELECT kind, status FROM cairn.run_requests WHERE job_id = :job ORDER BY requested_at"
    return job.sql(query)


def test_an_outage_of_any_length_is_waited_for(job: Steps) -> None:
    away = MetastoreError("away")
    script: list[Query | Exception] = [
        Query(OSError("the source is away")),
        *[away] * 5,
        Query(ends=True),
    ]
    application = Application(job, lambda start: script[start])
    application.run()
    assert application.parallelism == [2] * 7


def test_a_first_start_that_fails_is_raised(job: Steps) -> None:
    application = Application(job, lambda _: MetastoreError("away"))
    with pytest.raises(MetastoreError, match="away"):
        application.run()
    assert application.parallelism == [2]


def test_what_waiting_does_not_mend_is_raised(job: Steps) -> None:
    script: list[Query | Exception] = [
        Query(OSError("away")),
        BadInputError("the schema has changed"),
    ]
    application = Application(job, lambda start: script[start])
    with pytest.raises(BadInputError, match="schema"):
        application.run()


def test_a_function_that_starts_nothing_is_told_so(job: Steps) -> None:
    wrong = cast("Query", "df.writeStream")
    with pytest.raises(BadInputError, match=r"returned str; it starts the query"):
        Application(job, lambda _: wrong).run()


def test_a_stop_that_is_withdrawn_within_a_batch_stops_nothing(job: Steps) -> None:
    application = Application(job, lambda _: Query())
    with running(application) as future:
        first = application.queries[0]
        first.in_batch.set()
        ask(job, RequestKind.STOP)
        first.seen_in_batch.wait(20)
        ask(job, RequestKind.RESCALE, parallelism=4)
        first.in_batch.clear()
        wait_for(lambda: application.parallelism == [2, 4])
        assert not future.done()
        assert results(job) == [("stop", "WITHDRAWN"), ("rescale", "TAKEN")]
    assert results(job)[-1] == ("stop", "DONE")


def test_a_query_that_fails_at_each_start_can_be_stopped(job: Steps) -> None:
    application = Application(job, lambda _: Query(OSError("away")))
    with running(application) as future:
        ask(job, RequestKind.STOP)
        future.result(timeout=20)
    assert results(job) == [("stop", "DONE")]


def test_a_rescale_that_cannot_be_built_is_given_up(job: Steps) -> None:
    def start(number: int) -> Query | Exception:
        return BadInputError("too many for this cluster") if number == 1 else Query()

    application = Application(job, start)
    with running(application):
        ask(job, RequestKind.RESCALE, parallelism=4)
        wait_for(lambda: len(application.parallelism) == 3)
    assert application.parallelism == [2, 4, 2]
    assert results(job)[0] == ("rescale", "FAILED")


def test_a_driver_that_another_has_replaced_ends_and_takes_nothing_back(job: Steps) -> None:
    application = Application(job, lambda _: Query())
    with running(application) as future:
        job.whole_batch(1, 0)
        job.whole_batch(job.register(3, supervisor_id=uuid4()), 1)
        with pytest.raises(FencedError, match="another driver"):
            future.result(timeout=20)
    assert application.parallelism == [2]


def test_a_query_that_ends_by_itself_answers_the_stop_that_it_was_asked_for(job: Steps) -> None:
    application = Application(job, lambda _: Query())
    with running(application) as future:
        query = application.queries[0]
        query.in_batch.set()
        ask(job, RequestKind.STOP)
        query.seen_in_batch.wait(20)
        query.over.set()
        future.result(timeout=20)
    assert results(job) == [("stop", "DONE")]
