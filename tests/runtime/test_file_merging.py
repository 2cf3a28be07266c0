"""The options of file merging, on real files: each test fails if its option is ignored."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from cairn.errors import StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime import materialize
from cairn.runtime.executor import TaskManager, try_lock
from cairn.runtime.run_plan import RunPlan
from cairn.storage.posix import PosixStore
from metastore.engine import open_engine
from metastore.models import CheckpointStatus
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.tasks import (
    Task,
    new_run,
    on_host,
    read_back,
    remember,
    remembered,
    run_together,
)

SUBTASKS = 4
ALWAYS_FULL = -1.0


@dataclass
class Stream:
    """A query whose tasks run one after the other on one executor, in this process."""

    url: str
    storage: str
    local_dir: str
    plan: RunPlan = field(init=False)
    batches: int = 0
    attempts: int = 0

    def restart(self, parallelism: int = SUBTASKS, **options: object) -> RunPlan:
        keys = {f"cairn.file-merging.{name.replace('_', '-')}": v for name, v in options.items()}
        keys["cairn.changelog.dstl.upload.retry-policy"] = "none"  # what fails is to be seen
        self.plan = new_run(
            self.url, self.storage, self.local_dir, parallelism=parallelism, options=keys
        )
        return self.plan

    def let_writes_end(self) -> None:
        """Makes every write intent as old as it takes for no request to be under way."""
        with open_engine(self.url).begin() as connection:
            connection.execute(
                text("UPDATE cairn.physical_files SET created_at = created_at - interval '21 min'")
            )

    def task(self, subtask: int, **changes: Any) -> Task:
        self.attempts += 1
        batch = self.batches
        made = Task(self.plan, "executor", batch, subtask, self.attempts, remember(batch))
        return replace(made, **{"full_from_share": ALWAYS_FULL, **changes})

    def tasks(self, **changes: Any) -> list[Task]:
        return [self.task(subtask, **changes) for subtask in range(self.plan.parallelism)]

    def batch(self, **changes: Any) -> None:
        """Runs a batch in one group commit."""
        run_together(self.tasks(**changes))
        self.batches += 1

    def assert_whole(self, *, may_be_torn: bool = False) -> None:
        """Every checkpoint that is kept reads back as its batch, and every sealed file is there.

        A torn file has bytes after its end, of a write that failed.
        """
        kept = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)
        for checkpoint_id, batch_id, status in rows(
            self.plan, "SELECT checkpoint_id, batch_id, status FROM cairn.checkpoints"
        ):
            if status in kept:
                assert read_back(self.plan, checkpoint_id) == remembered(batch_id + 1)
        stored = objects(self.plan)
        for path, size_bytes, _ in files(self.plan):
            assert stored[path] == size_bytes or (may_be_torn and stored[path] > size_bytes)


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


def subtasks_by_file(plan: RunPlan) -> list[list[int]]:
    return rows(
        plan,
        "SELECT array_agg(DISTINCT subtask ORDER BY subtask) FROM cairn.segments"
        " WHERE status = 'LIVE' GROUP BY file_id ORDER BY 1",
    )


class CountingStore(PosixStore):
    """Notes every request."""

    def __init__(self, storage: str) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.requests: list[str] = []

    def put(self, path: str, parts: Any) -> None:
        self.requests.append("put")
        super().put(path, parts)

    def append(self, path: str, offset: int, parts: Any) -> None:
        self.requests.append("append")
        super().append(path, offset, parts)


def test_with_the_defaults_a_commit_is_an_intent_a_put_and_an_ack(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    store = CountingStore(stream.storage)
    statements: list[str] = []
    commits: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(" ".join(statement.split()[:3]))

    def end(*_: Any) -> None:
        commits.append(statements[-1])

    waiting = [task.steps() for task in stream.tasks(store=store)]
    for steps in waiting:
        while next(steps) != "asked":
            pass
    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", end)
    try:
        list(waiting[0])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        event.remove(Engine, "commit", end)
    assert store.requests == ["put"]
    assert len(commits) == 2
    assert statements == [
        "SELECT cairn.jobs.current_epoch, cairn.jobs.query_id",
        "INSERT INTO cairn.physical_files",
        "UPDATE cairn.jobs SET",
        "SELECT cairn.jobs.current_epoch, cairn.jobs.query_id",
        "SELECT cairn.checkpoints.status, cairn.checkpoints.epoch",
        "SELECT cairn.subtask_acks.subtask, cairn.subtask_acks.attempt_id,",
        "UPDATE cairn.physical_files SET",
        "INSERT INTO cairn.segments",
        "INSERT INTO cairn.subtask_acks",
        "WITH recorded AS",  # and updates the checkpoint
    ]


def test_merging_puts_an_executors_segments_in_one_file_of_its_directory(stream: Stream) -> None:
    plan = stream.restart()
    stream.batch()
    [(path, _, live)] = files(plan)
    assert re.fullmatch(
        rf"taskmanager-owned/{TaskManager(plan, 'executor').tm_id}/[\w-]+\.seg", path
    )
    assert live == SUBTASKS
    stream.assert_whole()


def test_without_merging_every_segment_is_a_file_with_its_checkpoint_in_the_name(
    stream: Stream,
) -> None:
    plan = stream.restart(enabled=False)
    stream.batch()
    stream.batch()
    names = [path for path, _, _ in files(plan)]
    assert {name.rpartition("/")[0] for name in names} == {"exclusive"}
    assert sorted(tuple(name.split("/")[1].split("-")[:2]) for name in names) == [
        (checkpoint, str(subtask)) for checkpoint in "12" for subtask in range(SUBTASKS)
    ]
    assert {live for _, _, live in files(plan)} == {1}
    assert len(rows(plan, "SELECT DISTINCT acked_at FROM cairn.subtask_acks")) == 2
    stream.assert_whole()


def test_a_new_file_starts_once_one_has_its_maximum_size(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    [(_, whole_bytes, _)] = files(stream.plan)
    segment_bytes = whole_bytes // SUBTASKS
    stream.plan = replace(
        stream.plan,
        settings=replace(stream.plan.settings, max_file_bytes=segment_bytes + 1),
    )
    stream.batch()
    assert [live for _, _, live in files(stream.plan)] == [SUBTASKS, 2, 2]
    assert len(rows(stream.plan, "SELECT DISTINCT acked_at FROM cairn.subtask_acks")) == 2
    stream.assert_whole()


@pytest.mark.parametrize(("limit", "expected"), [(1, 4), (2, 2), (3, 2), (4, 1), (0, 1)])
def test_so_many_subtasks_share_a_file(stream: Stream, limit: int, expected: int) -> None:
    stream.restart(max_subtasks_per_file=limit)
    stream.batch()
    shared = subtasks_by_file(stream.plan)
    assert len(shared) == expected
    assert max(map(len, shared)) == (limit or SUBTASKS)


class MeetingStore(CountingStore):
    """Every write waits until `parties` are there; notes the most at a time."""

    def __init__(self, storage: str, parties: int) -> None:
        super().__init__(storage)
        self.barrier = threading.Barrier(parties)
        self.writing = self.most = 0
        self.changing = threading.Lock()
        self.crowded = threading.Event()

    def put(self, path: str, parts: Any) -> None:
        with self.changing:
            self.writing += 1
            self.most = max(self.most, self.writing)
            if self.writing > self.barrier.parties:
                self.crowded.set()
        self.barrier.wait(timeout=20)
        self.crowded.wait(timeout=0.05)  # for one that should not come
        super().put(path, parts)
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

    def put(self, path: str, parts: Any) -> None:
        if not self.arrived.is_set():
            self.arrived.set()
            assert self.go_on.wait(timeout=30)
            if self.fails:
                self.put_half(path, parts)
        super().put(path, parts)

    def put_half(self, path: str, parts: Any) -> None:
        """Writes half of the bytes and fails, as a store that has lost its disk."""
        super().put(path, [b"".join(parts)[:10]])
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


def wait_for_requests(plan: RunPlan, number: int) -> None:
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


def test_a_pool_goes_on_after_a_write_that_failed_half_way(stream: Stream) -> None:
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
    cleanup_job(stream.url, stream.plan.job)
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


def test_bases_share_a_file_up_to_its_size_within_their_subtask(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "CHUNK_BYTES", 1)
    plan = stream.restart(parallelism=2)
    stream.batch()
    stream.batch(materializes=True)
    bases = [found for found in files(plan) if found[0].startswith("shared/")]
    assert [live for _, _, live in bases] == [4, 4], "one segment a key group"
    assert sorted(path.split("/")[1] for path, _, _ in bases) == ["subtask-0-2", "subtask-1-2"]
    small = replace(plan.settings, max_file_bytes=bases[0][1] // 2)
    stream.plan = replace(plan, settings=small)
    stream.batch(materializes=True)
    newer = [found for found in files(plan) if found[0].startswith("shared/")][2:]
    assert [live for _, _, live in newer] == [2] * 4
    stream.batch()
    stream.assert_whole()


def test_without_merging_each_base_is_a_file_with_its_checkpoint_in_the_name(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "CHUNK_BYTES", 1)
    plan = stream.restart(parallelism=2, enabled=False)
    stream.batch()
    before = len(files(plan))
    stream.batch(materializes=True)
    bases = rows(
        plan,
        "SELECT path FROM cairn.physical_files JOIN cairn.segments USING (file_id)"
        " WHERE kind = 'keyed_full' ORDER BY path",
    )
    assert before == 2
    assert len(bases) == 8
    assert all(re.search(r"/exclusive/1-[01]-[\w-]+\.seg$", path) for path in bases)
    stream.batch()
    stream.assert_whole()


MODES: Sequence[dict[str, object]] = (
    {"enabled": True},
    {"enabled": False},
    {"across_checkpoint_boundary": True},
)


@pytest.mark.parametrize("host_is_lost", [True, False])
def test_merging_is_switched_over_restarts_and_other_parallelisms(
    stream: Stream, tmp_path: Path, host_is_lost: bool
) -> None:
    """On, off, across, on …: each run restores what the others wrote, and mixes its own in."""
    for run in range(7):
        plan = stream.restart(parallelism=(3, 3, 2, 4, 4, 1, 2)[run], **MODES[run % 3])
        if host_is_lost:
            stream.plan = on_host(plan, str(tmp_path / f"host-{run}"))
        for batch in range(3):
            stream.batch(materializes=batch == 1 and run % 2 == 0, full_from_share=None)
            stream.assert_whole()
        cleanup_job(stream.url, plan.job)
        stream.assert_whole()


def test_a_checkpoint_holds_merged_and_single_files_at_once(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    stream.restart(enabled=False)
    stream.batch()
    stream.restart()
    stream.batch()
    newest = rows(stream.plan, "SELECT max(checkpoint_id) FROM cairn.checkpoints")[0]
    inside = rows(
        stream.plan,
        "SELECT DISTINCT split_part(path, '/', 2) FROM cairn.physical_files"
        " JOIN cairn.segments s USING (file_id) WHERE s.status = 'LIVE'"
        " AND first_checkpoint <= :newest AND released_checkpoint IS NULL ORDER BY 1",
        newest=newest,
    )
    assert inside == ["exclusive", "taskmanager-owned"]
    stream.assert_whole()


def test_a_slot_is_free_when_its_holder_is_gone(stream: Stream) -> None:
    plan = stream.restart(parallelism=1, max_file_pool_size=1, pool_blocking=True)
    lock = TaskManager(plan, "executor").directory / "pool" / "0.lock"
    lock.touch()
    with ThreadPoolExecutor() as threads, ExitStack() as held:
        assert try_lock(lock, held)
        waiting = threads.submit(stream.task(0).run)
        assert not wait([waiting], timeout=0.2).done
        held.close()
        waiting.result(timeout=30)
    stream.assert_whole()
