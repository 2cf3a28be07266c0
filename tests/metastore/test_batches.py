"""Registering runs and beginning batches: parents, holes, fencing, and what a retry changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.runs import register_run
from cairn.errors import FencedError, RefusedError
from tests.metastore.steps import Steps, acknowledging


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def test_registering_a_run_again_gives_the_same_epoch(steps: Steps) -> None:
    registration = steps.registration()
    first = steps.run(lambda c: register_run(c, registration))
    assert steps.run(lambda c: register_run(c, registration)) == first
    assert steps.register() == first.epoch + 1


def test_runs_registered_at_the_same_time_get_epochs_of_their_own(steps: Steps) -> None:
    with ThreadPoolExecutor(4) as threads:
        epochs = list(threads.map(lambda _: steps.register(), range(4)))
    assert sorted(epochs) == [1, 2, 3, 4]
    assert len(steps.sql("SELECT 1 FROM cairn.jobs WHERE name = :name", name=steps.name)) == 1


def test_the_first_batch_of_a_job_starts_from_nothing(steps: Steps) -> None:
    start = steps.begin(steps.ref(steps.register(), 0))
    assert (start.checkpoint_id, start.parent) == (1, None)


def test_beginning_a_batch_again_finds_it_and_changes_nothing(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.whole_batch(1, 0)
    first = steps.begin(steps.ref(1, 1))
    before = steps.dump()
    again = steps.begin(steps.ref(1, 1))
    assert (again.checkpoint_id, again.parent) == (first.checkpoint_id, first.parent)
    assert steps.dump() == before
    assert batch.batch_id == 0


def test_executors_that_begin_a_batch_at_once_share_one_checkpoint(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=4), 0)
    with ThreadPoolExecutor(4) as threads:
        starts = list(threads.map(lambda _: steps.begin(batch), range(4)))
    assert {start.checkpoint_id for start in starts} == {1}


def test_the_next_batch_confirms_its_parent_and_carries_its_winning_attempts(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    steps.ack(batch, checkpoint_id, 0, task_attempt=1)
    [winner, other], file = steps.ack(batch, checkpoint_id, 0, 1, task_attempt=2)
    assert steps.statuses() == {1: "COMPLETED"}

    parent = steps.begin(steps.ref(1, 1)).parent
    assert steps.statuses() == {1: "CONFIRMED", 2: "IN_PROGRESS"}
    assert parent is not None
    assert (parent.checkpoint_id, parent.parallelism, parent.parent_checkpoint) == (1, 2, None)
    assert {i: ack.attempt_id for i, ack in parent.acks.items()} == {
        0: winner.attempt_id,
        1: other.attempt_id,
    }
    handles = [handle for i in (0, 1) for handle in parent.acks[i].segments]
    assert [(h.offset, h.size_bytes, h.path) for h in handles] == [
        (0, 100, steps.path(file)),
        (100, 100, steps.path(file)),
    ]


def test_a_parent_that_a_subtask_never_acknowledged_is_refused_and_the_subtask_named(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(parallelism=3), 0)
    steps.ack(batch, steps.begin(batch).checkpoint_id, 0, 2)
    with pytest.raises(RefusedError, match=r"subtasks \[1\] never acknowledged batch 0"):
        steps.begin(steps.ref(1, 1))
    assert steps.statuses() == {1: "IN_PROGRESS"}


def test_a_batch_whose_acks_the_metastore_lost_runs_again_as_the_refusal_says(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.ack(batch, steps.begin(batch).checkpoint_id, 0)
    with pytest.raises(RefusedError, match=r"delete the files from 0 on in .* commits"):
        steps.begin(steps.ref(1, 1))

    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    parent = steps.begin(steps.ref(epoch, 1)).parent
    assert parent is not None
    assert parent.checkpoint_id == 2
    assert set(parent.acks) == {0, 1}


def test_a_batch_whose_parent_is_unknown_is_refused(steps: Steps) -> None:
    epoch = steps.register()
    with pytest.raises(RefusedError, match="no checkpoint of batch 6"):
        steps.begin(steps.ref(epoch, 7))
    assert steps.statuses() == {}


def test_a_batch_that_was_committed_is_not_run_again_by_another_run(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    steps.whole_batch(1, 1)
    before = steps.dump()
    epoch = steps.register()
    with pytest.raises(RefusedError, match=r"begins batch 0, but batch 0 .* already committed"):
        steps.begin(steps.ref(epoch, 0))
    assert steps.statuses() == {1: "CONFIRMED", 2: "COMPLETED"}
    assert steps.dump()["checkpoints"] == before["checkpoints"]


def test_a_late_attempt_of_a_confirmed_batch_is_fenced(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    steps.begin(steps.ref(1, 1))
    with pytest.raises(FencedError, match="batch 0 is CONFIRMED"):
        steps.begin(steps.ref(1, 0))


def test_a_run_that_only_registered_fences_nobody(steps: Steps) -> None:
    steps.register()
    steps.register()
    assert steps.whole_batch(1, 0) == 1
    assert steps.begin(steps.ref(1, 1)).checkpoint_id == 2


def test_a_newer_run_takes_the_batch_again_and_the_older_attempt_is_dead(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    batch = steps.ref(1, 1)
    [ack], file = steps.ack(batch, steps.begin(batch).checkpoint_id, 0)

    epoch = steps.register(parallelism=4)
    start = steps.begin(steps.ref(epoch, 1))
    assert start.checkpoint_id == 3
    assert start.parent is not None
    assert start.parent.checkpoint_id == 1
    assert steps.statuses() == {1: "CONFIRMED", 2: "ABORTED", 3: "IN_PROGRESS"}
    assert steps.segment_status(ack) == "DEAD"
    assert steps.file_facts(file) == ("SEALED", 0, 0)
    assert len(steps.segments(1)) == 2


def test_a_complete_batch_that_spark_replays_is_aborted_whole(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    epoch = steps.register()
    start = steps.begin(steps.ref(epoch, 0))
    assert start.parent is None
    assert steps.statuses() == {1: "ABORTED", 2: "IN_PROGRESS"}
    assert steps.segments(1) == steps.segments(2) == []


def test_a_complete_batch_that_spark_committed_is_the_next_runs_parent(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    epoch = steps.register(parallelism=4)
    parent = steps.begin(steps.ref(epoch, 1)).parent
    assert parent is not None
    assert (parent.checkpoint_id, parent.parallelism) == (1, 2)
    assert steps.statuses() == {1: "CONFIRMED", 2: "IN_PROGRESS"}


def test_an_older_run_begins_nothing_once_a_newer_one_has_begun(steps: Steps) -> None:
    steps.register()
    steps.whole_batch(1, 0)
    epoch = steps.register()
    steps.begin(steps.ref(epoch, 1))
    before = steps.dump()
    for batch_id in (0, 1, 2):
        with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
            steps.begin(steps.ref(1, batch_id))
    assert steps.dump() == before


def test_another_query_is_refused_by_the_name_of_the_first_once_that_acknowledged(
    steps: Steps,
) -> None:
    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    for other in (epoch, steps.register()):
        with pytest.raises(RefusedError, match="belongs to query q; query other"):
            steps.begin(steps.ref(other, 0, query_id="other"))


def test_of_two_queries_that_begin_at_once_the_first_to_acknowledge_has_the_job(
    steps: Steps,
) -> None:
    epoch = steps.register(parallelism=1)
    one, other = steps.ref(epoch, 0, "one"), steps.ref(epoch, 0, "other")
    steps.begin(one)
    checkpoint_id = steps.begin(other).checkpoint_id
    steps.ack(other, checkpoint_id, 0)
    acks, file = steps.group(one, 1, [0])
    with pytest.raises(RefusedError, match="belongs to query other; query one"):
        steps.commit(one, 1, acks, file)
    assert steps.statuses() == {1: "IN_PROGRESS", 2: "COMPLETED"}
    assert len(steps.segments(2)) == 1
    assert steps.begin(steps.ref(epoch, 1, "other")).checkpoint_id == 3


def test_a_newer_run_waits_for_an_acknowledgement_in_flight_and_then_aborts_it(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    acks, file = steps.group(batch, checkpoint_id, [0, 1])
    epoch = steps.register()
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            acknowledging(batch, checkpoint_id, acks, file)(connection)
            newer = threads.submit(steps.begin, steps.ref(epoch, 0))
            steps.wait_until_blocked()
        assert newer.result().checkpoint_id == 2
    assert steps.statuses() == {1: "ABORTED", 2: "IN_PROGRESS"}
    assert {steps.segment_status(ack) for ack in acks} == {"DEAD"}
    assert steps.file_facts(file) == ("SEALED", 0, 0)


def test_an_acknowledgement_that_waits_for_a_newer_run_to_begin_is_fenced(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    acks, file = steps.group(batch, checkpoint_id, [0, 1])
    newer = steps.ref(steps.register(), 0)
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            begin_batch(connection, newer)
            late = threads.submit(steps.commit, batch, checkpoint_id, acks, file)
            steps.wait_until_blocked()
        with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
            late.result()
    assert steps.statuses() == {1: "ABORTED", 2: "IN_PROGRESS"}
    assert steps.file_facts(file) == ("WRITING", 0, 0)


def test_the_next_batch_waits_for_a_late_attempt_in_flight_and_sees_it(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    steps.ack(batch, checkpoint_id, 0, task_attempt=1)
    [late], file = steps.group(batch, checkpoint_id, [0], task_attempt=2)
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            acknowledging(batch, checkpoint_id, [late], file)(connection)
            following = threads.submit(steps.begin, steps.ref(1, 1))
            steps.wait_until_blocked()
        parent = following.result().parent
    assert parent is not None
    assert parent.acks[0].attempt_id == late.attempt_id


def test_cleanup_between_runs_keeps_what_a_replay_starts_from(steps: Steps) -> None:
    steps.register()
    for batch_id in range(5):
        steps.whole_batch(1, batch_id)
    wanted = steps.segments(4)
    steps.clean()
    epoch = steps.register()
    parent = steps.begin(steps.ref(epoch, 4)).parent
    steps.clean()
    assert parent is not None
    assert parent.checkpoint_id == 4
    assert steps.segments(4) == wanted
    assert steps.statuses() == {
        1: "SUBSUMED",
        2: "SUBSUMED",
        3: "CONFIRMED",
        4: "CONFIRMED",
        5: "ABORTED",
        6: "IN_PROGRESS",
    }
