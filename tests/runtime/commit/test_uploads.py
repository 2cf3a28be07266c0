"""Uploads: which request counts, and what becomes of the others."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.slow_s3 import SlowS3
from cairn.errors import BadInputError, OutcomeUnknownError, StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.commit.upload_policy import LEAST_OBSERVED
from cairn.storage import open_store
from cairn.storage.store import LONGEST_HOLD_S, LONGEST_WRITE_S, put_in_time
from metastore.definitions import VIEWS
from tests.runtime.commit.one_upload import (
    FaultyStore,
    die_in_second_request,
    fails,
    no_fault,
    waits,
)
from tests.runtime.commit.uploading import (
    EXECUTOR,
    LOST,
    Uploading,
    faulty,
    until,
)
from tests.runtime.forks import FORKS
from tests.runtime.sent import watch
from tests.runtime.tasks import QUERY, Task, facts_of, read_back, remember, remembered

SIGNATURE_MIN = 15
"""S3 takes a signed request no later than this after its time."""


def test_a_held_request_is_hedged_and_its_object_is_deleted_however_late_it_appears(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    with SlowS3() as s3:
        uploading = uploads(open_store(s3.url), upload_max_attempts=1)
        for _ in range(LEAST_OBSERVED):
            uploading.upload()
        before = uploading.objects()
        s3.gates.append(gate)
        for subtask in range(2):
            Task(uploading.plan, EXECUTOR, 0, subtask, 1, remember(0)).run()
        hedged, plain = uploading.rows(
            "SELECT requests, hedges, hedge_wins, attempts_per_upload"
            " FROM cairn.v_changelog_storage JOIN (SELECT requests"
            " FROM cairn.group_commits) s ON total_attempts_per_upload = requests ORDER BY 1 DESC"
        )
        assert (hedged, plain) == ((2, 1, 1, 2), (1, 0, 0, 1))
        assert read_back(uploading.plan, 1) == remembered(1)
        [(lost, status)] = uploading.rows("SELECT path, status FROM cairn.v_lost_uploads")
        assert status == "WRITING"
        winners = uploading.objects() - before
        assert len(winners) == 2
        assert lost not in winners

        uploading.manager.begin(uploading.plan.batch(QUERY, 1))
        cleanup_job(uploading.plan.catalog, uploading.plan.job)
        assert uploading.rows("SELECT status FROM cairn.v_lost_uploads") == [("WRITING",)]
        gate.set()
        until(lambda: lost in uploading.objects())
        uploading.let_writes_end()
        cleanup_job(uploading.plan.catalog, uploading.plan.job)
        assert uploading.rows("SELECT status FROM cairn.v_lost_uploads") == [("DELETED",)]
        assert uploading.objects() == winners


def test_the_grace_of_an_object_is_longer_than_any_request() -> None:
    [view] = [path.read_text() for path in VIEWS if path.stem == "v_unneeded_files"]
    [grace_min] = re.findall(r"now\(\) - INTERVAL '(\d+) minutes'", view)
    assert int(grace_min) * 60 >= LONGEST_HOLD_S + SIGNATURE_MIN * 60 + LONGEST_WRITE_S


def test_a_write_that_was_held_up_after_its_intent_is_not_sent(tmp_storage: str) -> None:
    store = FaultyStore(tmp_storage)
    began_s = time.monotonic() - LONGEST_HOLD_S - 1
    with pytest.raises(StorageError, match=r"held up for 61 s .* nothing was sent"):
        put_in_time(store, "job/a.seg", [b"x"], began_s)
    assert store.written == []


def test_a_failed_request_is_sent_again_to_another_file(
    uploads: Callable[..., Uploading],
) -> None:
    uploading = uploads(upload_next_attempt_delay_ms=1)
    store = faulty(uploading)
    store.faults = [fails(LOST), fails(LOST)]
    uploaded = uploading.upload()
    assert uploading.objects() == {uploaded.path} == {store.written[2]}
    assert len(set(store.written)) == 3
    stats = uploaded.stats
    assert (stats.requests, stats.retries, stats.failed_attempts) == (3, 2, 2)
    assert (stats.winning_attempt, stats.hedges) == (3, 0)
    first, *others = uploading.rows(
        "SELECT path, file_id, retry_of, batch_id FROM cairn.physical_files ORDER BY created_at"
    )
    assert [row[0] for row in (first, *others)] == store.written
    assert [row[2] for row in (first, *others)] == [None, first[1], first[1]]
    assert {row[3] for row in (first, *others)} == {0}


def test_a_directory_is_written_again_after_a_failure_too(
    uploads: Callable[..., Uploading], tmp_storage: str
) -> None:
    store = FaultyStore(tmp_storage, fails(LOST))
    store.sends_requests = False
    uploading = uploads(store, upload_next_attempt_delay_ms=1)
    assert uploading.upload().stats.requests == 2


def test_an_upload_fails_with_its_last_error_and_the_next_group_commit_counts_it(
    uploads: Callable[..., Uploading],
) -> None:
    uploading = uploads(upload_next_attempt_delay_ms=1, upload_max_attempts=2)
    store = faulty(uploading)
    store.faults = [fails(StorageError("first")), fails(StorageError("second"))]
    with pytest.raises(StorageError, match="second"):
        uploading.upload()
    Task(uploading.plan, EXECUTOR, 0, 0, 1, remember(0), store=store).run()
    Task(uploading.plan, EXECUTOR, 0, 1, 2, remember(0), store=store).run()
    failures = "SELECT number_of_upload_failures FROM cairn.v_changelog_storage ORDER BY 1"
    assert uploading.rows(failures) == [(0,), (1,)]


def test_what_can_never_work_is_not_tried_again(uploads: Callable[..., Uploading]) -> None:
    uploading = uploads()
    faulty(uploading).faults = [fails(BadInputError("no such bucket"))]
    with pytest.raises(BadInputError, match="no such bucket"):
        uploading.upload()
    assert len(faulty(uploading).written) == 1


def test_after_the_timeout_another_request_is_sent_and_the_first_to_end_counts(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    uploading = uploads(upload_timeout_ms=20, upload_max_attempts=2)
    faulty(uploading).faults = [waits(gate)]
    stats = uploading.upload().stats
    assert (stats.requests, stats.retries, stats.winning_attempt) == (2, 1, 2)
    assert stats.longest_request_ms == stats.upload_ms >= 20


def test_a_first_request_that_ends_before_its_successor_counts(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    late = threading.Event()

    def lets_the_first_go_on(_: Callable[[], None]) -> None:
        late.set()
        gate.wait()

    uploading = uploads(upload_timeout_ms=20, upload_max_attempts=2)
    store = faulty(uploading)
    store.faults = [waits(late), lets_the_first_go_on]
    uploaded = uploading.upload()
    assert uploaded.path == store.written[0]
    assert (uploaded.stats.requests, uploaded.stats.winning_attempt) == (2, 1)


def test_a_first_request_that_ends_while_the_next_intent_is_recorded_counts(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    uploading = uploads(upload_timeout_ms=20)
    store = faulty(uploading)
    store.faults = [waits(gate)]
    others = threading.active_count()
    intents = []

    def look(_session: Any, statement: str, _is_transaction: bool) -> None:
        if "cairn.intend_files(" in statement:
            intents.append(statement)
            if len(intents) == 2:
                gate.set()
                until(lambda: threading.active_count() <= others)

    end = watch(look)
    try:
        uploaded = uploading.upload()
    finally:
        end()
    assert (uploaded.stats.requests, len(intents)) == (1, 2)
    assert [uploaded.path] == store.written


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_whose_thread_dies_is_not_waited_for(
    uploads: Callable[..., Uploading],
) -> None:
    def breaks(_: Callable[[], None]) -> None:
        raise RuntimeError("nobody expects this")

    uploading = uploads()
    faulty(uploading).faults = [breaks]
    with pytest.raises(OutcomeUnknownError, match="its thread has died"):
        uploading.upload()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_between_two_requests_leaves_nothing_for_ever(
    uploads: Callable[..., Uploading], when: str
) -> None:
    uploading = uploads(upload_timeout_ms=20)
    plan = uploading.plan
    process = FORKS.Process(target=die_in_second_request, args=(facts_of(plan), EXECUTOR, when))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert len(uploading.objects()) == (when == "after")
    for subtask in range(2):
        Task(plan, EXECUTOR, 0, subtask, 2 + subtask, remember(0)).run()
    uploading.manager.begin(plan.batch(QUERY, 1))
    uploading.let_writes_end()
    cleanup_job(plan.catalog, plan.job)
    sealed = uploading.rows("SELECT path FROM cairn.physical_files WHERE status = 'SEALED'")
    assert uploading.objects() == {path for (path,) in sealed}
    assert read_back(plan, 1) == remembered(1)


def test_latencies_and_the_budget_outlive_the_processes_of_tasks(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    uploading = uploads(upload_max_attempts=1)
    for _ in range(LEAST_OBSERVED):
        uploading.upload()
    store = FaultyStore(uploading.plan.storage, waits(gate), no_fault, waits(gate))
    again = Uploading(uploading.plan, store)
    assert (again.upload().stats.hedge_wins, len(store.written)) == (1, 2)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(again.upload)
        until(lambda: len(store.written) == 3)
        gate.set()
        assert slow.result().stats.hedges == 0, "the budget was spent by the process before"
