"""The pool of files open for writing: how many at once, who waits, and writes that fail."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import StorageError
from cairn.locks import try_lock
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.posix import PosixStore
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.merging_stream import SUBTASKS, CountingStore, Stream, subtasks_by_file
from tests.runtime.tasks import run_together


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


class MeetingStore(CountingStore):
    """Every write waits until `parties` are there; notes the most at a time."""

    def __init__(self, storage: str, parties: int) -> None:
        super().__init__(storage)
        self.barrier = threading.Barrier(parties)
        self.writing = self.most = 0
        self.changing = threading.Lock()
        self.crowded = threading.Event()

    def put(self, path: str, chunks: Any) -> None:
        with self.changing:
            self.writing += 1
            self.most = max(self.most, self.writing)
            if self.writing > self.barrier.parties:
                self.crowded.set()
        self.barrier.wait(timeout=20)
        self.crowded.wait(timeout=0.05)  # for one that should not come
        super().put(path, chunks)
        with self.changing:
            self.writing -= 1


@pytest.mark.parametrize("pool_size", [1, 2, 4])
@pytest.mark.parametrize("pool_blocking", [True, False])
def test_a_commit_writes_as_many_files_at_once_as_the_pool_has(
    stream: Stream, pool_size: int, pool_blocking: bool
) -> None:
    stream.restart(enabled=False, max_file_pool_size=pool_size, pool_blocking=pool_blocking)
    store = MeetingStore(stream.storage, pool_size)
    stream.batch(store=store)
    assert store.most == pool_size
    stream.assert_whole()


class GatedStore(PosixStore):
    """Its first write stops until it is let go on, or fails."""

    def __init__(self, storage: str) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.arrived, self.go_on, self.fails = threading.Event(), threading.Event(), False

    def put(self, path: str, chunks: Any) -> None:
        if not self.arrived.is_set():
            self.arrived.set()
            assert self.go_on.wait(timeout=30)
            if self.fails:
                self.put_half(path, chunks)
        super().put(path, chunks)

    def put_half(self, path: str, chunks: Any) -> None:
        """Writes half of the bytes and fails, as a store that has lost its disk."""
        super().put(path, [b"".join(chunks)[:10]])
        raise StorageError("the disk is full", file=path)


def two_commits(stream: Stream, threads: ThreadPoolExecutor) -> tuple[GatedStore, Any, Any]:
    """Returns a store in which a first task's write stands still, that task and a second one."""
    store = GatedStore(stream.storage)
    first = threads.submit(stream.task(0, store=store).run)
    assert store.arrived.wait(timeout=30)
    return store, first, threads.submit(stream.task(1, store=store).run)


def test_a_pool_that_does_not_block_opens_a_file_where_all_are_in_use(stream: Stream) -> None:
    plan = stream.restart(parallelism=2, max_file_pool_size=1)
    with ThreadPoolExecutor() as threads:
        store, first, second = two_commits(stream, threads)
        second.result(timeout=30)
        assert not first.done()
        store.go_on.set()
        first.result(timeout=30)
    assert subtasks_by_file(plan) == [[0], [1]]
    stream.assert_whole()


def test_a_pool_that_blocks_waits_for_a_file_and_merges_what_waits_with_it(stream: Stream) -> None:
    plan = stream.restart(parallelism=3, max_file_pool_size=1, pool_blocking=True)
    with ThreadPoolExecutor() as threads:
        store, first, second = two_commits(stream, threads)
        third = threads.submit(stream.task(2, store=store).run)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)
        wait_for_requests(plan, 3)
        store.go_on.set()
        for task in (first, second, third):
            task.result(timeout=30)
    assert subtasks_by_file(plan) == [[0], [1, 2]]
    stream.assert_whole()


def test_a_commits_row_says_how_long_it_waited_for_a_pool_that_blocks(stream: Stream) -> None:
    plan = stream.restart(parallelism=2, max_file_pool_size=1, pool_blocking=True)
    began = time.monotonic()
    with ThreadPoolExecutor() as threads:
        store, first, second = two_commits(stream, threads)
        wait_for_requests(plan, 2)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)
        store.go_on.set()
        for task in (first, second):
            task.result(timeout=30)
    took_ms = (time.monotonic() - began) * 1000
    waits = "SELECT pool_wait_ms FROM cairn.v_changelog_storage ORDER BY 1"
    unblocked, blocked = rows(plan, waits)
    assert unblocked == 0
    assert 100 <= blocked <= took_ms


def wait_for_requests(plan: RunContext, number: int) -> None:
    pending = TaskManager(plan, "executor").directory / "pending"
    while len([file for file in pending.iterdir() if file.suffix != ".draft"]) < number:
        threading.Event().wait(0.005)


def test_a_pool_that_blocks_has_as_many_files_as_its_size(stream: Stream) -> None:
    stream.restart(parallelism=2, max_file_pool_size=2, pool_blocking=True)
    with ThreadPoolExecutor() as threads:
        store, first, second = two_commits(stream, threads)
        second.result(timeout=30)
        store.go_on.set()
        first.result(timeout=30)
    stream.assert_whole()


def test_a_pool_continues_after_a_write_that_failed_half_way(stream: Stream) -> None:
    plan = stream.restart(parallelism=2, max_file_pool_size=1, pool_blocking=True)
    with ThreadPoolExecutor() as threads:
        store, first, second = two_commits(stream, threads)
        store.fails = True
        store.go_on.set()
        with pytest.raises(StorageError, match="the disk is full"):
            first.result(timeout=30)
        second.result(timeout=30)
    assert rows(plan, "SELECT subtask FROM cairn.subtask_acks ORDER BY 1") == [0, 1]
    assert [live for _, _, live in files(plan)] == [2], "the failed one's request came along"


def test_a_write_that_failed_half_way_leaves_no_handle_and_a_row_that_cleanup_clears(
    stream: Stream,
) -> None:
    stream.restart()
    store = GatedStore(stream.storage)
    store.fails = True
    store.go_on.set()
    with pytest.raises(StorageError, match="the disk is full"):
        run_together(stream.tasks(store=store))
    [(torn, size_bytes, live)] = files(stream.plan, "WRITING")
    assert (size_bytes, live, objects(stream.plan)[torn]) == (-1, 0, 10)
    assert rows(stream.plan, "SELECT count(*) FROM cairn.segments") == [0]
    stream.batch()
    stream.batch()
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, stream.plan.job)
    assert torn in [path for path, _, _ in files(stream.plan, "DELETED")]
    assert torn not in objects(stream.plan)
    stream.assert_whole()


def test_of_many_files_one_that_fails_acknowledges_none(stream: Stream) -> None:
    plan = stream.restart(enabled=False)
    store = GatedStore(stream.storage)
    store.fails = True
    store.go_on.set()
    with pytest.raises(StorageError, match="the disk is full"):
        run_together(stream.tasks(store=store))
    assert len(files(plan, "WRITING")) == SUBTASKS
    assert rows(plan, "SELECT count(*) FROM cairn.subtask_acks") == [0]
    stream.batch()
    stream.assert_whole()


def test_a_slot_is_free_when_its_holder_is_gone(stream: Stream) -> None:
    plan = stream.restart(parallelism=1, max_file_pool_size=1, pool_blocking=True)
    lock = TaskManager(plan, "executor").directory / "pool" / "0.lock"
    lock.touch()
    with ThreadPoolExecutor() as threads, ExitStack() as held:
        assert try_lock(lock, held) is not None
        waiting = threads.submit(stream.task(0).run)
        assert not wait([waiting], timeout=0.2).done
        held.close()
        waiting.result(timeout=30)
    stream.assert_whole()
