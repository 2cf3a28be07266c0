"""Segments that are uploaded before their batch ends: every way of merging, attempts, kills."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cairn.keygroups import KeyGroupRange
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.state.view import Overlay
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.forks import FORKS
from tests.runtime.merging_stream import SUBTASKS, CountingStore, Stream
from tests.runtime.one_task import run_task
from tests.runtime.tasks import (
    MAX_PARALLELISM,
    AtOnce,
    facts_of,
    on_host,
    read_back,
    remember,
    remembered,
)

GROUPS = 2
"""Key groups of each subtask, and so early segments."""

WAYS: dict[str, dict[str, Any]] = {
    "small files": {"max_file_size": "1 kb", "max_subtasks_per_file": 1},
    "off": {"enabled": False},
    "blocking": {"pool_blocking": True, "max_file_pool_size": 1},
    "across, blocking": {
        "across_checkpoint_boundary": True,
        "pool_blocking": True,
        "max_file_pool_size": 1,
    },
}


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


@pytest.mark.parametrize("way", WAYS)
def test_early_segments_have_files_of_their_own_whatever_the_way_of_merging(
    stream: Stream, tmp_path: Path, way: str
) -> None:
    plan = stream.restart(**WAYS[way])
    stream.batch()
    for _ in range(3):
        stream.batch(early=AtOnce())
    own = "exclusive" if way.startswith("off") else f"taskmanager-owned/{tm_id(stream)}"
    early = [path for path, _, live in files(plan) if live == 1]
    assert len(early) >= 3 * SUBTASKS * GROUPS
    assert {path.rpartition("/")[0] for path, _, _ in files(plan)} == {own}
    assert rows(plan, "SELECT DISTINCT sequence_number FROM cairn.segments ORDER BY 1") == [0, 1]
    stream.assert_whole()
    stream.batch(materializes=True)
    stream.batch()
    stream.plan = on_host(stream.plan, str(tmp_path / "other-host"))
    stream.batch(early=AtOnce())
    stream.assert_whole()
    cleanup_job(stream.plan.catalog, plan.job)
    stream.assert_whole()


def tm_id(stream: Stream) -> str:
    return TaskManager(stream.plan, "executor").tm_id


def test_tasks_with_uploads_in_threads_never_wait_for_each_other_for_ever(stream: Stream) -> None:
    stream.restart(**WAYS["blocking"])
    for _ in range(3):
        tasks = stream.tasks()
        with ThreadPoolExecutor(SUBTASKS) as threads:
            running = [
                threads.submit(replace(task, early=ThreadPoolExecutor(1)).run) for task in tasks
            ]
            for task in running:
                task.result(timeout=30)
        stream.batches += 1
        stream.assert_whole()


def test_a_later_attempt_with_fewer_segments_replaces_all(stream: Stream) -> None:
    plan = stream.restart(parallelism=1)
    stream.task(0, early=AtOnce()).run()
    assert len(files(plan)) == MAX_PARALLELISM
    stream.batch()
    assert [live for _, _, live in files(plan)] == [0] * MAX_PARALLELISM + [1]
    stream.assert_whole()
    stream.batch()
    cleanup_job(stream.plan.catalog, plan.job)
    assert len(objects(plan)) == 2
    stream.assert_whole()


def test_an_attempt_that_failed_leaves_files_that_are_deleted_once_its_batch_is_over(
    stream: Stream,
) -> None:
    plan = stream.restart(parallelism=1)

    def write(overlay: Overlay, groups: KeyGroupRange) -> None:
        if groups.start == MAX_PARALLELISM - 1:
            raise RuntimeError("a bad row")
        remember(0)(overlay, groups)

    with pytest.raises(RuntimeError, match="a bad row"):
        stream.task(0, early=AtOnce(), write=write).run()
    early = MAX_PARALLELISM - 1
    assert len(files(plan, "WRITING")) == len(objects(plan)) == early
    stream.batch()
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, plan.job)
    assert len(objects(plan)) == early + 1, "another task may still acknowledge in this batch"
    stream.batch()
    cleanup_job(stream.plan.catalog, plan.job)
    assert len(objects(plan)) == 2
    stream.assert_whole()


@pytest.mark.parametrize(
    "kill_at",
    ["before intent", "after intent", "before put", "after put", "before COMMIT", "after COMMIT"],
)
def test_a_task_that_is_killed_after_an_early_upload_loses_nothing(
    stream: Stream, tmp_path: Path, kill_at: str
) -> None:
    """It is killed at its first upload, which is early, or when all are done."""
    plan = stream.restart(parallelism=1)
    stream.batch(early=AtOnce())
    pipe, other_end = FORKS.Pipe()
    process = FORKS.Process(
        target=run_task, args=(other_end, facts_of(plan), "executor", 0, kill_at, 1, AtOnce())
    )
    process.start()
    other_end.close()
    assert pipe.poll(20)
    pipe.recv()
    pipe.send("go")
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    stream.attempts = 10
    stream.batch()
    stream.assert_whole()
    stream.restart(parallelism=1)
    stream.batch()
    stream.batch()
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, plan.job)
    assert objects(plan).keys() == {path for path, _, _ in files(plan)}
    assert read_back(stream.plan, 4) == remembered(4)
    stream.assert_whole()


def test_without_early_segments_a_batch_asks_the_store_once(stream: Stream) -> None:
    stream.restart()
    store: Any = CountingStore(stream.storage)
    stream.batch(store=store)
    assert store.requests == ["put"]
    stream.batch(store=store, early=AtOnce())
    assert store.requests == ["put"] * (1 + SUBTASKS * GROUPS)


def test_early_segments_of_several_tasks_are_acknowledged_by_whoever_commits(
    stream: Stream,
) -> None:
    plan = stream.restart()
    stream.batch(early=AtOnce())
    assert rows(plan, "SELECT count(DISTINCT acked_at) FROM cairn.subtask_acks") == [1]
    found = rows(
        plan,
        "SELECT subtask, array_agg(sequence_number ORDER BY sequence_number)"
        " FROM cairn.segments GROUP BY subtask ORDER BY subtask",
    )
    assert found == [(subtask, [0, 1]) for subtask in range(SUBTASKS)]
    stream.batch()
    stream.assert_whole()
