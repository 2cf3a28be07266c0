"""Write intents and acknowledgements: what counts, what is passed over, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest

from cairn.batch_ref import BatchRef
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import FencedError
from metastore.enums import Scope
from tests.metastore.steps import SIZE_BYTES, Steps
from tests.runtime.sent import watch


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def test_a_checkpoint_is_complete_when_the_last_subtask_acknowledges(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=3), 0)
    steps.begin(batch)
    steps.ack(batch, 1, 2)
    steps.ack(batch, 1, 0)
    assert steps.statuses() == {1: "IN_PROGRESS"}
    steps.ack(batch, 1, 1)
    assert steps.statuses() == {1: "COMPLETED"}


def test_an_attempt_acknowledged_twice_counts_as_one_subtask(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    steps.ack(batch, 1, 0, task_attempt=1)
    steps.ack(batch, 1, 0, task_attempt=2)
    assert steps.statuses() == {1: "IN_PROGRESS"}


def test_the_files_live_bytes_are_those_of_its_segments(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    _, file = steps.ack(batch, 1, 0, 1)
    assert steps.file_facts(file) == ("SEALED", 2, 2 * SIZE_BYTES)


def test_a_subtask_that_changed_nothing_acknowledges_without_a_file(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks = [
        Ack(subtask=i, attempt_id=str(uuid4()), task_attempt=1, input_rows=0, restore_ms=0)
        for i in (0, 1)
    ]
    steps.commit(batch, 1, acks, None)
    assert steps.statuses() == {1: "COMPLETED"}
    parent = steps.begin(steps.ref(1, 1)).parent
    assert parent is not None
    assert {ack.segments for ack in parent.acks.values()} == {()}


def test_a_transaction_whose_answer_was_lost_changes_nothing_the_second_time(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.ack(batch, 1, 0, 1)
    before = steps.dump()
    steps.commit(batch, 1, acks, file)
    assert steps.dump() == before


def test_a_group_committed_again_by_the_next_holder_leaves_an_empty_file_for_cleanup(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.ack(batch, 1, 0, 1)
    attempts, segments = steps.acked(1), steps.segments(1)
    again, other = steps.group(batch, 1, [0, 1])
    steps.commit(
        batch,
        1,
        [replace(new, attempt_id=old.attempt_id) for new, old in zip(again, acks, strict=True)],
        other,
    )
    assert steps.acked(1) == attempts
    assert steps.segments(1) == segments
    assert steps.file_facts(other) == ("SEALED", 0, 0)
    steps.clean()
    assert steps.file_facts(other)[0] == "DELETED"
    assert steps.file_facts(file) == ("SEALED", 2, 2 * SIZE_BYTES)


def test_a_later_attempt_replaces_the_earlier_ones_segment_only(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    [loser, other], file = steps.ack(batch, 1, 0, 1, task_attempt=1)
    [winner], its_file = steps.ack(batch, 1, 0, task_attempt=5)
    assert steps.acked(1) == {0: winner.attempt_id, 1: other.attempt_id}
    assert [steps.segment_status(a) for a in (loser, other, winner)] == ["DEAD", "LIVE", "LIVE"]
    assert steps.file_facts(file) == ("SEALED", 1, SIZE_BYTES)
    assert steps.file_facts(its_file) == ("SEALED", 1, SIZE_BYTES)
    assert len(steps.segments(1)) == 2


def test_a_later_attempt_that_changed_nothing_replaces_a_segment_with_none(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    [loser], _ = steps.ack(batch, 1, 0, task_attempt=1)
    steps.commit(
        batch,
        1,
        [Ack(subtask=0, attempt_id=str(uuid4()), task_attempt=2, input_rows=0, restore_ms=0)],
        None,
    )
    assert steps.segment_status(loser) == "DEAD"
    assert steps.segments(1) == []
    assert steps.statuses() == {1: "COMPLETED"}


def test_a_zombie_of_an_earlier_attempt_is_passed_over(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    [winner], _ = steps.ack(batch, 1, 0, task_attempt=5)
    zombies, file = steps.ack(batch, 1, 0, 1, task_attempt=4)
    assert steps.acked(1) == {0: winner.attempt_id, 1: zombies[1].attempt_id}
    assert steps.segment_status(winner) == "LIVE"
    assert steps.file_facts(file) == ("SEALED", 1, SIZE_BYTES)
    assert steps.statuses() == {1: "COMPLETED"}


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_attempts_in_one_group_the_later_one_counts(
    steps: Steps, newest_first: bool
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    [early, late], file = steps.group(batch, 1, [0, 0])
    late = replace(late, task_attempt=2)
    steps.commit(batch, 1, [late, early] if newest_first else [early, late], file)
    assert steps.acked(1) == {0: late.attempt_id}
    assert steps.segments(1) == [segment.segment_id for segment in late.segments]
    assert steps.file_facts(file) == ("SEALED", 1, SIZE_BYTES)


def test_a_later_attempt_is_taken_until_the_checkpoint_is_confirmed_and_never_after(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    steps.ack(batch, 1, 0, 1, task_attempt=1)
    [winner], _ = steps.ack(batch, 1, 0, task_attempt=2)
    steps.begin(steps.ref(1, 1))
    before = steps.acked(1)
    acks, file = steps.group(batch, 1, [0], task_attempt=3)
    with pytest.raises(FencedError, match="the checkpoint is CONFIRMED"):
        steps.commit(batch, 1, acks, file)
    assert steps.acked(1) == before
    assert before[0] == winner.attempt_id
    assert steps.file_facts(file) == ("WRITING", 0, 0)


def test_a_fenced_run_neither_intends_nor_acknowledges(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.group(batch, 1, [0, 1])
    steps.begin(steps.ref(steps.register(), 0))
    before = steps.dump()
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        steps.commit(batch, 1, acks, file)
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        steps.intend(batch)
    assert steps.dump() == before


def test_a_newer_run_cannot_acknowledge_an_older_ones_checkpoint(steps: Steps) -> None:
    steps.begin(steps.ref(steps.register(), 0))
    newer = steps.ref(steps.register(), 0)
    steps.begin(newer)
    acks, file = steps.group(newer, 1, [0])
    with pytest.raises(FencedError, match="the checkpoint is ABORTED"):
        steps.commit(newer, 1, acks, file)


def test_an_acknowledgement_that_names_a_condemned_file_is_refused_whole(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.group(batch, 1, [0, 1])
    steps.sql(
        "UPDATE cairn.physical_files SET status = 'CONDEMNED'"
        " WHERE job_id = :job AND status = 'WRITING'"
    )
    with pytest.raises(FencedError, match="the physical file is CONDEMNED"):
        steps.commit(batch, 1, acks, file)
    assert steps.acked(1) == {}
    assert steps.statuses() == {1: "IN_PROGRESS"}


def test_the_stats_of_a_groups_uploads_are_recorded_once_with_its_acks(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.group(batch, 1, [0, 1])
    one = UploadStats(
        segments=2,
        size_bytes=100,
        requests=2,
        retries=0,
        hedges=1,
        hedge_wins=1,
        failed_attempts=0,
        winning_attempt=2,
        failed_uploads=0,
        queue_size=3,
        wait_ms=10,
        upload_ms=500,
        longest_request_ms=490,
    )
    two = UploadStats(
        segments=1,
        size_bytes=50,
        requests=3,
        retries=2,
        hedges=0,
        hedge_wins=0,
        failed_attempts=2,
        winning_attempt=3,
        failed_uploads=1,
        queue_size=1,
        wait_ms=20,
        upload_ms=700,
        longest_request_ms=600,
    )
    statements = count_statements(steps, batch, acks, file, [one, two])
    assert statements == count_statements(steps, batch, acks, file, [])
    columns = (
        "uploaded_files, uploaded_segments, uploaded_bytes, requests, retries, hedges, hedge_wins,"
        " failed_attempts, winning_attempt, failed_uploads, queue_size, wait_ms, upload_ms,"
        " longest_request_ms"
    )
    assert steps.sql(f"SELECT {columns} FROM cairn.group_commits WHERE job_id = :job") == [  # noqa: S608
        (2, 3, 150, 5, 2, 1, 1, 2, 3, 1, 3, 30, 1200, 600)
    ]
    assert steps.statuses() == {1: "COMPLETED"}


def count_statements(
    steps: Steps,
    batch: BatchRef,
    acks: Sequence[Ack],
    file: WrittenFile,
    uploads: Sequence[UploadStats],
) -> int:
    """Acknowledges twice, as when an answer was lost; returns the statements of the second time."""
    work = partial(
        acknowledge,
        batch=batch,
        checkpoint_id=1,
        tm_id="tm",
        acks=acks,
        files={"": file},
        uploads=uploads,
    )
    sent: list[str] = []
    steps.run(work)
    end = watch(lambda _, statement, _is_transaction: sent.append(statement))
    try:
        steps.run(work)
    finally:
        end()
    return len(sent)


def test_a_write_intent_whose_answer_was_lost_changes_nothing_the_second_time(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    file = steps.intend(batch)
    before = steps.dump()
    again = IntendedFile(file_id=file.file_id, path=steps.path(file), scope=Scope.TASK_MANAGER)
    steps.run(lambda c: intend_files(c, batch, [again], [steps.directory]))
    assert steps.dump() == before


def test_the_first_acknowledgement_binds_the_job_and_the_run_to_their_query(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    query = "SELECT query_id FROM cairn.jobs WHERE job_id = :job"
    assert steps.sql(query) == [(None,)]
    steps.ack(batch, 1, 0)
    assert steps.sql(query) == [("q",)]
    assert steps.sql("SELECT query_id FROM cairn.runs WHERE job_id = :job") == [("q",)]
