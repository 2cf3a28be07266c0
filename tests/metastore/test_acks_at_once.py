"""Acknowledgements of several executors or attempts at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection

from cairn.errors import RefusedError
from tests.metastore.steps import Steps, acknowledging
from tests.runtime.sent import watch


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def at_once(steps: Steps, *works: Callable[[Connection], None]) -> list[BaseException | None]:
    """Runs transactions that start at the same time; returns what each raised."""
    barrier = Barrier(len(works))

    def run(work: Callable[[Connection], None]) -> None:
        with steps.catalog.begin() as connection:
            barrier.wait(timeout=10)
            work(connection)

    with ThreadPoolExecutor(len(works)) as threads:
        futures = [threads.submit(run, work) for work in works]
    return [future.exception() for future in futures]


def test_the_first_acknowledgements_of_two_executors_at_once_do_not_deadlock(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    groups = [steps.group(batch, 1, [subtask]) for subtask in (0, 1)]
    works = [acknowledging(batch, 1, *group) for group in groups]
    assert at_once(steps, *works) == [None, None]
    assert steps.statuses() == {1: "COMPLETED"}


def test_an_executor_whose_first_acknowledgement_waits_for_another_querys_is_refused(
    steps: Steps,
) -> None:
    epoch = steps.register(parallelism=1)
    one, other = steps.ref(epoch, 0, "one"), steps.ref(epoch, 0, "other")
    steps.begin(one)
    steps.begin(other)
    groups = {1: steps.group(one, 1, [0]), 2: steps.group(other, 2, [0])}
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            acknowledging(one, 1, *groups[1])(connection)
            late = threads.submit(steps.commit, other, 2, *groups[2])
            steps.wait_until_blocked()
        with pytest.raises(RefusedError, match="belongs to query one; query other"):
            late.result()
    assert steps.statuses() == {1: "COMPLETED", 2: "IN_PROGRESS"}


def test_two_groups_that_complete_a_checkpoint_at_once_see_it_complete(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    for batch_id in range(1, 6):
        batch = steps.ref(1, batch_id)
        checkpoint_id = steps.begin(batch).checkpoint_id
        groups = [steps.group(batch, checkpoint_id, [subtask]) for subtask in (0, 1)]
        raised = at_once(steps, *(acknowledging(batch, checkpoint_id, *g) for g in groups))
        assert raised == [None, None]
        assert steps.statuses()[checkpoint_id] == "COMPLETED"


def test_two_attempts_of_a_subtask_at_once_leave_one_segment_and_the_later_attempt(
    steps: Steps,
) -> None:
    steps.register(parallelism=1)
    steps.whole_batch(1, 0)
    for batch_id in range(1, 6):
        batch = steps.ref(1, batch_id)
        checkpoint_id = steps.begin(batch).checkpoint_id
        before = len(steps.segments(checkpoint_id))
        early = steps.group(batch, checkpoint_id, [0], task_attempt=1)
        late = steps.group(batch, checkpoint_id, [0], task_attempt=2)
        works = [acknowledging(batch, checkpoint_id, *group) for group in (early, late)]
        assert at_once(steps, *works) == [None, None]
        assert steps.acked(checkpoint_id) == {0: late[0][0].attempt_id}
        assert len(steps.segments(checkpoint_id)) == before + 1


def test_an_attempt_that_acknowledges_between_the_calls_of_a_zombie_is_not_replaced(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    steps.ack(batch, 1, 0, task_attempt=9)
    steps.ack(batch, 1, 1, task_attempt=1)
    newest = steps.group(batch, 1, [1], task_attempt=3)
    zombie = acknowledging(batch, 1, *steps.group(batch, 1, [0, 1], task_attempt=2))
    calls = 0

    def note(_: Any, statement: str, _is_transaction: bool) -> None:
        nonlocal calls
        calls += "cairn.acknowledge(" in statement
        if calls == 2:  # the zombie asks again, without subtask 0
            end()
            steps.commit(batch, 1, *newest)

    end = watch(note)
    try:
        steps.catalog.run_each("acknowledging as a zombie", zombie)
    finally:
        end()
    assert calls == 2
    assert steps.acked(1)[1] == newest[0][0].attempt_id
    assert steps.segment_status(newest[0][0]) == "LIVE"
    assert steps.statuses() == {1: "COMPLETED"}


def test_an_ack_that_waits_for_a_later_attempts_is_passed_over(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    steps.ack(batch, 1, 0, 1, task_attempt=1)
    zombie = steps.group(batch, 1, [0], task_attempt=2)
    newest = steps.group(batch, 1, [0], task_attempt=3)
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            acknowledging(batch, 1, *newest)(connection)
            late = threads.submit(steps.commit, batch, 1, *zombie)
            steps.wait_until_blocked()
        late.result()
    assert steps.acked(1)[0] == newest[0][0].attempt_id
    assert steps.file_facts(zombie[1]) == ("SEALED", 0, 0)
