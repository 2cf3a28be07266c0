"""When a run is over, and what it may do then: nothing is lost, whoever was taken for dead."""

from __future__ import annotations

from uuid import UUID

import pytest

from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.materializations import record_end, record_start
from cairn.catalog.job.run_ends import record_run_end, renew_lease
from cairn.errors import FencedError
from metastore.enums import Scope
from tests.metastore.steps import Steps


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(metastore_url, tmp_storage)


def let_lease_end(steps: Steps) -> None:
    """Makes every sign of life and every write intent two hours old."""
    steps.sql("UPDATE cairn.runs SET seen_at = seen_at - interval '2 h' WHERE job_id = :job")
    steps.sql(
        "UPDATE cairn.physical_files SET created_at = created_at - interval '2 h'"
        " WHERE job_id = :job"
    )


def end(steps: Steps, epoch: int) -> None:
    steps.run(lambda c: record_run_end(c, steps.ref(epoch, 0)))


def state(steps: Steps) -> str:
    [(found,)] = steps.sql("SELECT run_state FROM cairn.v_jobs WHERE job_id = :job")
    return str(found)


def status(steps: Steps, file: WrittenFile) -> str:
    return steps.file_facts(file)[0]


def directories(steps: Steps) -> list[str]:
    return [s for (s,) in steps.sql("SELECT status FROM cairn.directories WHERE job_id = :job")]


def test_a_run_is_over_when_its_driver_says_so_or_its_lease_ran_out(steps: Steps) -> None:
    epoch = steps.register()
    assert state(steps) == "running", "a plan that is built may be started"
    steps.whole_batch(epoch, 0)
    end(steps, epoch)
    assert state(steps) == "ended"
    steps.run(lambda c: renew_lease(c, steps.ref(epoch, 0)))
    assert state(steps) == "running"
    let_lease_end(steps)
    assert state(steps) == "lost"


def test_a_renewed_lease_tells_the_query_and_a_replaced_run_gets_none(steps: Steps) -> None:
    epoch = steps.register()
    ref = steps.ref(epoch, 0)
    renewed = steps.run(lambda c: renew_lease(c, ref))
    assert renewed is not None
    assert renewed.query_id is None
    steps.whole_batch(epoch, 0)
    renewed = steps.run(lambda c: renew_lease(c, ref))
    assert renewed is not None
    assert renewed.query_id == "q"
    steps.whole_batch(steps.register(), 1)
    assert steps.run(lambda c: renew_lease(c, ref)) is None


@pytest.mark.parametrize("how", ["ended", "lost"])
def test_what_an_ended_run_left_unsealed_is_condemned_and_its_directory_given_up(
    steps: Steps, how: str
) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    left = steps.intend(batch)
    base = steps.intend(batch, Scope.SHARED)
    steps.let_writes_end()
    steps.clean()
    assert status(steps, left) == "WRITING", "the run goes on, and its batch too"
    if how == "ended":
        end(steps, epoch)
    else:
        let_lease_end(steps)
    steps.clean()
    assert {status(steps, left), status(steps, base)} == {"DELETED"}
    assert directories(steps) == ["DELETED"]


def test_what_an_ended_run_intended_just_now_stays(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    file = steps.intend(batch)
    end(steps, epoch)
    steps.clean()
    assert status(steps, file) == "WRITING"
    assert directories(steps) == ["CLAIMED"]


def test_a_run_that_goes_on_after_its_lease_loses_an_attempt_and_no_state(steps: Steps) -> None:
    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    batch = steps.ref(epoch, 1)
    checkpoint = steps.begin(batch).checkpoint_id
    acks, late = steps.group(batch, checkpoint, [0, 1])
    let_lease_end(steps)
    steps.clean()
    assert status(steps, late) == "DELETED"
    # The ack is refused, as its bytes are gone; the attempt that follows goes on.
    with pytest.raises(FencedError, match="the physical file is DELETED"):
        steps.commit(batch, checkpoint, acks, late)
    assert steps.acked(checkpoint) == {}
    assert state(steps) == "lost", "what was refused is no sign of life"
    steps.ack(batch, checkpoint, 0, 1, task_attempt=2)
    assert state(steps) == "running"
    assert steps.statuses()[checkpoint] == "COMPLETED"
    steps.let_writes_end()
    steps.clean()
    assert len(steps.segments(checkpoint)) == 4


def test_a_run_that_goes_on_claims_its_directories_again(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    checkpoint = steps.begin(batch).checkpoint_id
    steps.intend(batch)
    let_lease_end(steps)
    steps.clean()
    assert directories(steps) == ["DELETED"]
    steps.ack(batch, checkpoint, 0, 1)
    assert directories(steps) == ["CLAIMED"]


@pytest.mark.parametrize("how", ["ended", "lost"])
def test_a_driver_that_renews_its_lease_claims_the_directories_again(
    steps: Steps, how: str
) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    steps.intend(batch)
    steps.let_writes_end()
    if how == "ended":
        end(steps, epoch)
    else:
        let_lease_end(steps)
    steps.clean()
    assert directories(steps) == ["DELETED"]
    # From now on what its tasks ask is of a run that was never over.
    steps.run(lambda c: renew_lease(c, batch))
    assert directories(steps) == ["CLAIMED"]


def test_a_replaced_run_that_renews_claims_nothing(steps: Steps) -> None:
    old = steps.register()
    steps.begin(steps.ref(old, 0))
    steps.intend(steps.ref(old, 0))
    steps.begin(steps.ref(steps.register(), 0))
    let_lease_end(steps)
    steps.clean()
    assert steps.run(lambda c: renew_lease(c, steps.ref(old, 0))) is None
    assert directories(steps) == ["DELETED"]


def test_directories_stay_claimed_while_their_run_goes_on(steps: Steps) -> None:
    epoch = steps.register()
    steps.begin(steps.ref(epoch, 0))
    steps.intend(steps.ref(epoch, 0))
    steps.sql("UPDATE cairn.physical_files SET status = 'CONDEMNED' WHERE job_id = :job")
    steps.sql("UPDATE cairn.physical_files SET status = 'DELETED' WHERE job_id = :job")
    steps.clean()
    assert directories(steps) == ["CLAIMED"]


def test_a_stream_that_was_idle_for_a_weekend_goes_on(steps: Steps) -> None:
    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    let_lease_end(steps)
    steps.clean()
    assert state(steps) == "lost"
    checkpoint = steps.whole_batch(epoch, 1)
    assert steps.statuses()[checkpoint] == "COMPLETED"
    assert state(steps) == "running"


def test_a_plan_that_is_started_again_after_its_query_ended_goes_on(steps: Steps) -> None:
    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    end(steps, epoch)
    steps.whole_batch(epoch, 1)
    assert state(steps) == "running"


def test_what_a_task_asks_is_a_sign_of_life_but_seldom_a_write(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    [(before,)] = steps.sql("SELECT xmin FROM cairn.runs WHERE job_id = :job")
    steps.intend(batch)
    assert steps.sql("SELECT xmin FROM cairn.runs WHERE job_id = :job") == [(before,)]
    steps.sql("UPDATE cairn.runs SET seen_at = seen_at - interval '16 min' WHERE job_id = :job")
    steps.intend(batch)
    young = "SELECT seen_at > now() - interval '1 min' FROM cairn.runs WHERE job_id = :job"
    assert steps.sql(young) == [(True,)]


def test_what_a_task_leaves_behind_after_the_end_does_not_bring_the_run_back(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    end(steps, epoch)
    steps.intend(batch)
    assert state(steps) == "ended"


# ------------------------------------------------------------------ materializations in a run

KILLED, NEXT = UUID(int=1), UUID(int=2)


def test_the_files_of_a_killed_materialization_go_when_a_later_one_is_complete(
    steps: Steps,
) -> None:
    epoch = steps.register()
    for batch_id in range(2):
        steps.whole_batch(epoch, batch_id)
    batch = steps.ref(epoch, 1)
    steps.run(lambda c: record_start(c, batch, 0, KILLED))
    left = [steps.intend(batch, Scope.SHARED, materialization_id=str(KILLED)) for _ in range(50)]
    steps.let_writes_end()
    steps.clean()
    assert {status(steps, file) for file in left} == {"WRITING"}, "it may be under way still"
    steps.run(lambda c: record_start(c, batch, 1, NEXT))
    steps.run(lambda c: record_end(c, NEXT, None, None))
    steps.clean()
    assert {status(steps, file) for file in left} == {"WRITING"}, "that was another subtask"
    again = UUID(int=3)
    steps.run(lambda c: record_start(c, batch, 0, again))
    steps.run(lambda c: record_end(c, again, None, "failed"))
    steps.clean()
    assert {status(steps, file) for file in left} == {"WRITING"}, "that one has failed"
    done = UUID(int=4)
    steps.run(lambda c: record_start(c, batch, 0, done))
    mine = steps.intend(batch, Scope.SHARED, materialization_id=str(done))
    steps.let_writes_end()
    steps.clean()
    assert status(steps, mine) == "WRITING", "the newest of the subtask is under way"
    steps.run(lambda c: record_end(c, done, None, None))
    steps.clean()
    assert {status(steps, file) for file in [*left, mine]} == {"DELETED"}


def test_the_files_of_a_materialization_that_failed_go(steps: Steps) -> None:
    epoch = steps.register()
    steps.whole_batch(epoch, 0)
    batch = steps.ref(epoch, 0)
    steps.run(lambda c: record_start(c, batch, 0, KILLED))
    left = steps.intend(batch, Scope.SHARED, materialization_id=str(KILLED))
    steps.run(lambda c: record_end(c, KILLED, None, "no room"))
    steps.let_writes_end()
    steps.clean()
    assert status(steps, left) == "DELETED"


def test_a_slow_materialization_that_was_overtaken_is_refused_and_its_files_go(
    steps: Steps,
) -> None:
    epoch = steps.register()
    for batch_id in range(2):
        checkpoint = steps.whole_batch(epoch, batch_id)
    batch = steps.ref(epoch, 1)
    steps.run(lambda c: record_start(c, batch, 0, KILLED))
    slow = steps.base(batch, checkpoint - 1, (0, 4), materialization_id=str(KILLED))
    steps.run(lambda c: record_start(c, batch, 0, NEXT))
    steps.install(batch, steps.base(batch, checkpoint - 1, (0, 4), materialization_id=str(NEXT)))
    steps.run(lambda c: record_end(c, NEXT, None, None))
    steps.let_writes_end()
    steps.clean()
    before = steps.segments(checkpoint + 1)
    with pytest.raises(FencedError, match="the physical file is DELETED"):
        steps.install(batch, slow)
    assert steps.segments(checkpoint + 1) == before
