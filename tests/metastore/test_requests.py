"""Requests to a running query: who may ask what, and that each has one result."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from cairn.catalog import requests
from cairn.catalog.job.last_batch import (
    confirm_batch,
    newest_confirmed,
    require_no_other,
    run_of,
)
from cairn.catalog.requests import Request, Wanted
from cairn.errors import BadInputError, FencedError, RefusedError
from metastore.enums import RequestKind, RequestStatus
from tests.metastore.steps import Steps

DRIVER = uuid4()


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> Steps:
    """A supervised run at parallelism 2 has done batch 0."""
    steps = Steps(metastore_url, tmp_storage)
    steps.whole_batch(steps.register(2, supervisor_id=DRIVER), 0)
    return steps


def rescale(parallelism: int) -> Wanted:
    return Wanted(request_id=uuid4(), kind=RequestKind.RESCALE, parallelism=parallelism)


def ask(job: Steps, wanted: Wanted) -> Request:
    return job.run(lambda c: requests.ask(c, job.name, wanted))


def take(job: Steps, asked: Request, instead_of: int = 2) -> bool:
    return job.run(lambda c: requests.take(c, asked, instead_of=instead_of))


def now(job: Steps, asked: Request) -> Request:
    return job.run(lambda c: requests.request(c, asked.request_id))


def newest(job: Steps) -> Request | None:
    return job.run(lambda c: requests.newest_rescale(c, job.name))


def statuses(job: Steps) -> list[Any]:
    rows = job.sql(
        "SELECT status FROM cairn.run_requests WHERE job_id = :job ORDER BY requested_at"
    )
    return [status for (status,) in rows]


def test_asking_again_after_a_lost_answer_asks_once(job: Steps) -> None:
    wanted = rescale(4)
    assert ask(job, wanted) == ask(job, wanted)
    assert statuses(job) == ["OPEN"]


def test_a_newer_request_withdraws_the_one_before(job: Steps) -> None:
    first = ask(job, rescale(4))
    assert take(job, first)
    second = ask(job, rescale(6))
    assert statuses(job) == ["WITHDRAWN", "OPEN"]
    assert not take(job, first), "its driver sees that it is over"
    assert newest(job) == second


def test_a_rescale_is_done_by_the_first_whole_checkpoint_of_a_run_after_it(job: Steps) -> None:
    asked = ask(job, rescale(4))
    take(job, asked)

    def first() -> int | None:
        return job.run(lambda c: requests.first_rescaled_checkpoint(c, asked))

    job.whole_batch(1, 1)
    assert first() is None, "the old run"
    epoch = job.register(4, supervisor_id=DRIVER)
    job.begin(job.ref(epoch, 2))
    assert first() is None, "not whole"
    job.whole_batch(epoch, 2)
    found = first()
    assert found is not None
    job.run(lambda c: requests.finish(c, asked, RequestStatus.DONE, checkpoint_id=found))
    assert (now(job, asked).status, now(job, asked).checkpoint_id) == ("DONE", found)


def test_a_parallelism_that_failed_is_not_the_newest(job: Steps) -> None:
    good = ask(job, rescale(4))
    take(job, good)
    job.run(lambda c: requests.finish(c, good, RequestStatus.DONE, checkpoint_id=2))
    bad = ask(job, rescale(6))
    take(job, bad)
    job.run(lambda c: requests.finish(c, bad, RequestStatus.FAILED, message="no memory"))
    found = newest(job)
    assert found is not None
    assert (found.parallelism, found.instead_of) == (4, 2)
    assert now(job, bad).message == "no memory"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [(rescale(0), "1 to 8"), (rescale(9), "1 to 8"), (rescale(2), "2 already")],
)
def test_a_parallelism_that_cannot_be_is_bad_input(job: Steps, wanted: Wanted, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        ask(job, wanted)
    assert statuses(job) == []


def test_a_rescale_back_is_asked_for_while_another_one_is_under_way(job: Steps) -> None:
    take(job, ask(job, rescale(4)))
    ask(job, rescale(2))
    assert statuses(job) == ["WITHDRAWN", "OPEN"]


def test_nobody_is_asked_whose_driver_would_not_do_it(job: Steps) -> None:
    job.whole_batch(job.register(2), 1)
    with pytest.raises(RefusedError, match=r"not started by cairn\.run"):
        ask(job, rescale(4))
    job.sql("UPDATE cairn.runs SET ended_at = now() WHERE job_id = :job")
    with pytest.raises(RefusedError, match="does not run"):
        ask(job, rescale(4))
    assert statuses(job) == []


def test_a_dry_run_asks_nothing(job: Steps) -> None:
    assert job.run(lambda c: requests.check(c, job.name, rescale(4))) == 2
    assert statuses(job) == []


def test_the_last_batch_is_confirmed_by_its_own_run_only(job: Steps) -> None:
    run = job.run(lambda c: run_of(c, job.name, DRIVER))
    assert job.statuses()[1] == "COMPLETED"
    with pytest.raises(RefusedError, match=r"batch 1 .* has no whole checkpoint"):
        job.run(lambda c: confirm_batch(c, run, "q", 1))
    assert job.run(lambda c: confirm_batch(c, run, "q", 0)) == 1
    assert job.run(lambda c: confirm_batch(c, run, "q", 0)) == 1, "again"
    assert job.statuses()[1] == "CONFIRMED"
    job.whole_batch(job.register(2), 1)
    with pytest.raises(FencedError):
        job.run(lambda c: confirm_batch(c, run, "q", 0))
    with pytest.raises(FencedError, match="another driver"):
        job.run(lambda c: run_of(c, job.name, DRIVER))


def test_a_batch_that_may_not_be_committed_is_not_taken_for_the_last(job: Steps) -> None:
    with pytest.raises(RefusedError, match="whether Spark has committed"):
        job.run(lambda c: newest_confirmed(c, job.name))
    run = job.run(lambda c: run_of(c, job.name, DRIVER))
    job.run(lambda c: confirm_batch(c, run, "q", 0))
    assert job.run(lambda c: newest_confirmed(c, job.name)) == 1


def test_a_driver_that_was_replaced_is_fenced_and_one_before_it_is_not(job: Steps) -> None:
    other = uuid4()
    job.run(lambda c: require_no_other(c, job.name, DRIVER))
    job.run(lambda c: require_no_other(c, job.name, other))
    epoch = job.register(2, supervisor_id=other)
    job.run(lambda c: require_no_other(c, job.name, DRIVER))
    job.whole_batch(epoch, 1)
    job.run(lambda c: require_no_other(c, job.name, other))
    with pytest.raises(FencedError, match=f"run {epoch} of another driver"):
        job.run(lambda c: require_no_other(c, job.name, DRIVER))


def test_a_plan_that_is_only_built_does_not_keep_others_from_asking(job: Steps) -> None:
    job.register(5)
    assert ask(job, rescale(4)).parallelism == 4


def test_a_result_is_final(job: Steps) -> None:
    asked = ask(job, rescale(4))
    take(job, asked)
    job.run(lambda c: requests.finish(c, asked, RequestStatus.FAILED, message="first"))
    job.run(lambda c: requests.finish(c, asked, RequestStatus.DONE, checkpoint_id=1))
    job.run(lambda c: requests.withdraw(c, asked, "later"))
    assert (now(job, asked).status, now(job, asked).message) == ("FAILED", "first")
    with pytest.raises(RefusedError, match="cannot change from FAILED to OPEN"):
        job.sql("UPDATE cairn.run_requests SET status = 'OPEN' WHERE job_id = :job")
    with pytest.raises(RefusedError, match="all that was asked"):
        job.sql("UPDATE cairn.run_requests SET parallelism = 7 WHERE job_id = :job")
    with pytest.raises(RefusedError, match="with its job only"):
        job.sql("DELETE FROM cairn.run_requests WHERE job_id = :job")


def test_a_job_has_one_request_at_a_time_whoever_writes_it(job: Steps) -> None:
    ask(job, rescale(4))
    with pytest.raises(IntegrityError, match="uq_run_requests__open"):
        job.sql(
            "INSERT INTO cairn.run_requests (request_id, job_id, kind)"
            " VALUES (gen_random_uuid(), :job, 'stop')"
        )


def test_a_maintainer_asks_in_its_own_name_only(job: Steps) -> None:
    def as_maintainer(statement: str) -> None:
        with job.catalog.begin() as connection:
            connection.execute(text("SET LOCAL ROLE cairn_maintainer"))
            connection.execute(text(statement), {"job": job.job_id})

    columns = "request_id, job_id, kind"
    values = "gen_random_uuid(), :job, 'stop'"
    as_maintainer(f"INSERT INTO cairn.run_requests ({columns}) VALUES ({values})")  # noqa: S608
    with pytest.raises(Exception, match="permission denied"):
        as_maintainer(
            f"INSERT INTO cairn.run_requests ({columns}, requested_by)"  # noqa: S608
            f" VALUES ({values}, 'boss')"
        )
