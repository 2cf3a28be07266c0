"""What a driver makes of requests, which may be killed after any of its transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from cairn.catalog import requests
from cairn.catalog.requests import Request, Wanted
from cairn.errors import FencedError, RefusedError
from cairn.runtime.driver.job_spec import JobSpec
from cairn.runtime.driver.requested import MOST_STARTS, Requested
from cairn.settings import Settings
from metastore.enums import RequestKind
from tests.metastore.steps import Steps

DRIVER = uuid4()


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> Steps:
    """A supervised run at parallelism 2 has done batch 0."""
    steps = Steps(metastore_url, tmp_storage)
    steps.whole_batch(steps.register(2, supervisor_id=DRIVER), 0)
    return steps


def driver(job: Steps, parallelism: int = 2, supervisor_id: UUID = DRIVER) -> Requested:
    """Starts a driver whose code says a parallelism; one that was there is as good as killed."""
    spec = JobSpec(
        name=job.name,
        storage=job.storage,
        metastore=job.url,
        parallelism=parallelism,
        settings=Settings.from_options({}),
    )
    return Requested(spec, supervisor_id)


def ask(job: Steps, kind: RequestKind = RequestKind.RESCALE, **what: Any) -> Request:
    wanted = Wanted(request_id=uuid4(), kind=kind, **what)
    return job.run(lambda c: requests.ask(c, job.name, wanted))


def now(job: Steps, asked: Request) -> Request:
    return job.run(lambda c: requests.request(c, asked.request_id))


def test_a_driver_without_requests_does_what_its_code_says(job: Steps) -> None:
    assert driver(job).parallelism() == 2
    assert driver(job).look() is None
    assert not driver(job).fail_rescale(RuntimeError("any"))


def test_a_rescale_is_finished_by_the_next_driver_whenever_the_first_is_killed(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    assert driver(job).look() == asked
    assert driver(job).parallelism() == 4, "killed before it has registered a run"
    assert driver(job).look() is None, "the query need not be ended for it"
    assert driver(job).parallelism() == 4
    epoch = job.register(4, supervisor_id=DRIVER)
    job.begin(job.ref(epoch, 1))
    assert driver(job).look() is None, "killed within the first batch"
    assert now(job, asked).status == "TAKEN"
    assert driver(job).parallelism() == 4
    job.whole_batch(epoch, 1)
    assert driver(job).look() is None
    assert (now(job, asked).status, now(job, asked).checkpoint_id) == ("DONE", 2)
    assert driver(job).parallelism() == 4


def test_the_code_has_its_way_once_it_says_another_parallelism(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    assert driver(job, 2).parallelism() == 4
    assert driver(job, 3).parallelism() == 3
    assert now(job, asked).status == "WITHDRAWN"
    assert "says 3" in str(now(job, asked).message)
    assert driver(job, 2).parallelism() == 2


def test_a_rescale_that_was_overruled_does_not_come_back(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    driver(job, 2).parallelism()
    job.whole_batch(job.register(4, supervisor_id=DRIVER), 1)
    driver(job, 2).look()
    assert driver(job, 2).parallelism() == 4
    assert driver(job, 3).parallelism() == 3
    assert now(job, asked).status == "DONE"
    assert driver(job, 2).parallelism() == 2


def test_a_parallelism_at_which_the_query_failed_is_left_again(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    one = driver(job)
    assert one.parallelism() == 4
    assert one.fail_rescale(RuntimeError("no memory"))
    assert (now(job, asked).status, now(job, asked).message) == ("FAILED", "no memory")
    assert one.parallelism() == 2
    assert not one.fail_rescale(RuntimeError("another")), "the query itself is broken"


def test_a_request_that_no_driver_has_taken_does_not_fail_for_an_error_before(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    assert not driver(job).fail_rescale(RuntimeError("of the old run"))
    assert now(job, asked).status == "OPEN"


def test_a_stop_that_was_not_done_is_withdrawn_by_the_next_start(job: Steps) -> None:
    asked = ask(job, RequestKind.STOP, savepoint="end")
    one = driver(job)
    assert one.look() == asked
    assert one.take(asked)
    assert now(job, asked).status == "TAKEN"
    again = driver(job)
    again.withdraw_stop()
    assert now(job, asked).status == "WITHDRAWN"
    assert again.look() is None
    one.finish(asked, checkpoint_id=1)
    assert now(job, asked).status == "WITHDRAWN", "the driver before, if it lives on"


def test_a_stop_saves_the_batch_that_spark_has_committed_last(job: Steps) -> None:
    job.whole_batch(1, 1)
    one = driver(job)
    with pytest.raises(RefusedError, match="not known"):
        one.last_checkpoint(None, None)
    assert one.last_checkpoint(1, "q") == 2
    assert one.last_checkpoint(None, None) == 2
    one.save("end", 2)
    assert job.sql("SELECT name, checkpoint_id FROM cairn.pins WHERE job_id = :job") == [("end", 2)]


def test_a_parallelism_at_which_no_start_gets_on_is_left_whoever_starts(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    for _ in range(MOST_STARTS):
        assert driver(job).parallelism() == 4
        job.begin(job.ref(job.register(4, supervisor_id=DRIVER), 1))
    assert driver(job).parallelism() == 2
    assert now(job, asked).status == "FAILED"
    assert "3 starts at parallelism 4" in str(now(job, asked).message)


def test_a_rescale_that_is_whole_does_not_fail_for_a_later_error(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    one = driver(job)
    one.parallelism()
    job.whole_batch(job.register(4, supervisor_id=DRIVER), 1)
    assert not one.fail_rescale(RuntimeError("in the batch after"))
    assert now(job, asked).status == "DONE"


def test_a_driver_that_was_replaced_answers_nothing(job: Steps) -> None:
    asked = ask(job, parallelism=4)
    job.whole_batch(job.register(2, supervisor_id=uuid4()), 1)
    replaced = driver(job)
    answers: list[Callable[[], object]] = [
        replaced.look,
        replaced.parallelism,
        replaced.withdraw_stop,
        lambda: replaced.take(asked),
        lambda: replaced.finish(asked),
        lambda: replaced.last_checkpoint(1, "q"),
    ]
    for answer in answers:
        with pytest.raises(FencedError, match="another driver"):
            answer()
    assert now(job, asked).status == "OPEN"


def test_what_was_asked_of_another_job_is_not_done(job: Steps) -> None:
    ask(job, parallelism=4)
    other = replace(job, name="other", job_id="")
    other.whole_batch(other.register(2, supervisor_id=DRIVER), 0)
    assert driver(other).look() is None
    assert driver(other).parallelism() == 2
