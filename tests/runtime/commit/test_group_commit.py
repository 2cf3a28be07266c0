"""Several processes that commit through one directory, killed at every step of the holder's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from cairn.errors import FencedError, StorageError
from cairn.layout import generation_of
from cairn.locks import is_free
from cairn.runtime.commit.commit_files import Request
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.posix import PosixStore
from tests.runtime.forks import FORKS
from tests.runtime.one_task import run_task
from tests.runtime.tasks import (
    Task,
    facts_of,
    new_run,
    on_host,
    read_back,
    remember,
    remembered,
)

SUBTASKS = 3
KILLS = [
    *(f"{when} {what}" for what in ("intent", "put", "COMMIT") for when in ("before", "after")),
    "receipt 1",
    "receipt 2",
    "receipt 3",
]


@pytest.fixture
def plan(metastore_url: str, tmp_storage: str, tmp_path: Path) -> RunContext:
    return new_run(
        metastore_url,
        tmp_storage,
        str(tmp_path / "local"),
        parallelism=SUBTASKS,
        persist_delay_ms=10_000,
    )


def task(plan: RunContext, subtask: int, attempt: int = 1, batch_id: int = 0) -> Task:
    return Task(plan, "executor", batch_id, subtask, attempt, remember(batch_id))


def rows(plan: RunContext, statement: str) -> list[Any]:
    """Returns the rows of a statement, of which each has one column or is a tuple."""
    with plan.catalog.begin() as connection:
        found = [tuple(row) for row in connection.execute(text(statement))]
    return [row[0] if len(row) == 1 else row for row in found]


def assert_complete(plan: RunContext) -> None:
    """Checkpoint 1 is whole, each subtask has one segment in it, and the state is right."""
    assert rows(plan, "SELECT status FROM cairn.checkpoints WHERE checkpoint_id = 1") == [
        "COMPLETED"
    ]
    subtasks = "SELECT subtask FROM cairn.segments WHERE status = 'LIVE' ORDER BY 1"
    assert rows(plan, subtasks) == list(range(plan.parallelism))
    assert read_back(plan, 1) == remembered(1)


def assert_nothing_unknown(plan: RunContext) -> None:
    """Every object has a file row that is to live or to go; every sealed file its object."""
    known = dict(rows(plan, "SELECT path, status FROM cairn.physical_files"))
    found = {found.path for found in PosixStore(Path(plan.storage[7:])).list(f"{plan.job_id}/")}
    objects = {path for path in found if generation_of(path) is None}
    assert objects <= {path for path, status in known.items() if status != "DELETED"}
    assert {path for path, status in known.items() if status == "SEALED"} <= objects


@contextmanager
def processes(plan: RunContext, kill_first_at: str = "") -> Iterator[list[OtherProcess]]:
    """Yields a process per subtask, all running with their parent's state."""
    started = [
        OtherProcess(plan, subtask, kill_first_at if subtask == 0 else "")
        for subtask in range(SUBTASKS)
    ]
    try:
        assert [process.says() for process in started] == ["restored"] * SUBTASKS
        yield started
    finally:
        for process in started:
            process.end()


class OtherProcess:
    """A task in a process forked from one that has everything imported."""

    def __init__(self, plan: RunContext, subtask: int, kill_at: str) -> None:
        self._pipe, other_end = FORKS.Pipe()
        self.process = FORKS.Process(
            target=run_task, args=(other_end, facts_of(plan), "executor", subtask, kill_at)
        )
        self.process.start()
        other_end.close()

    def go(self) -> None:
        self._pipe.send("go")

    def says(self) -> str:
        assert self._pipe.poll(20), "it says nothing"
        return str(self._pipe.recv())

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self._pipe.close()


def wait_for_requests(plan: RunContext, number: int) -> None:
    pending = TaskManager(plan, "executor").directory / "pending"
    give_up = time.monotonic() + 10
    while len([file for file in pending.iterdir() if file.suffix != ".draft"]) < number:
        assert time.monotonic() < give_up, "nobody asks"
        time.sleep(0.005)


def wait_for_gathering(plan: RunContext) -> None:
    """Waits until a task holds the lock under which it gathers what the others ask."""
    commit_lock = TaskManager(plan, "executor").directory / "commit.lock"
    deadline = time.monotonic() + 20
    while is_free(commit_lock):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_tasks_that_wait_for_each_other_share_one_file_and_one_transaction(
    plan: RunContext,
) -> None:
    with processes(plan) as started:
        for process in started:
            process.go()
        assert [process.says() for process in started] == ["acknowledged"] * SUBTASKS
    assert_complete(plan)
    assert rows(plan, "SELECT status, live_segments FROM cairn.physical_files") == [
        ("SEALED", SUBTASKS)
    ]
    assert len(rows(plan, "SELECT DISTINCT acked_at FROM cairn.subtask_acks")) == 1


@pytest.mark.parametrize(
    ("kill_at", "merges"),
    [
        *((kill_at, True) for kill_at in KILLS),
        *((f"{when} {what}", False) for what in ("put", "COMMIT") for when in ("before", "after")),
    ],
)
def test_the_others_finish_when_the_holder_is_killed(
    plan: RunContext, kill_at: str, merges: bool
) -> None:
    settings = replace(plan.settings, merging_enabled=merges)
    if not merges:  # so that they would wait for the dead one's slot
        settings = replace(settings, pool_blocking=True, max_file_pool_size=1)
    plan = replace(plan, settings=settings)
    with processes(plan, kill_at) as started:
        holder, *others = started
        holder.go()
        wait_for_requests(plan, 1)
        wait_for_gathering(plan)
        for process in others:
            process.go()
        holder.process.join(20)
        assert holder.process.exitcode == -signal.SIGKILL
        began = time.monotonic()
        assert [process.says() for process in others] == ["acknowledged"] * 2
        assert time.monotonic() - began < 5, "they waited for the dead"
    task(without_delay(plan), 0, attempt=2).run()  # as Spark runs it again
    assert_complete(plan)
    assert_nothing_unknown(plan)


def test_a_task_whose_request_another_committed_does_nothing_more(plan: RunContext) -> None:
    waiting = task(plan, 0).steps()
    assert [next(waiting) for _ in range(3)][-1] == "asked"
    quick = replace(plan, settings=replace(plan.settings, persist_delay_ms=0))
    task(quick, 1).run()
    assert rows(plan, "SELECT subtask FROM cairn.subtask_acks ORDER BY 1") == [0, 1]
    before = rows(plan, "SELECT file_id, status FROM cairn.physical_files")
    assert list(waiting) == ["acknowledged"]
    assert rows(plan, "SELECT file_id, status FROM cairn.physical_files") == before


def test_a_task_that_waits_is_not_told_it_is_done_when_a_newer_run_removes_its_request(
    plan: RunContext,
) -> None:
    for subtask in range(SUBTASKS):
        task(without_delay(plan), subtask).run()
    manager = TaskManager(plan, "executor")
    with ThreadPoolExecutor() as threads:
        with manager.lock("commit"):
            waiting = threads.submit(task(plan, 0, batch_id=1).run)
            wait_for_requests(plan, 1)
            newer = new_run(plan.catalog.url, plan.storage, plan.settings.local_dir)
            next(task(newer, 0, batch_id=1).steps())
            assert not manager.directory.exists()
        with pytest.raises(FencedError, match="removed before it was committed"):
            waiting.result()
    assert rows(plan, "SELECT subtask FROM cairn.subtask_acks WHERE checkpoint_id = 2") == []


def test_a_run_whose_directory_is_gone_is_fenced(plan: RunContext) -> None:
    late = task(plan, 0).steps()
    assert [next(late), next(late)] == ["begun", "restored"]
    newer = new_run(plan.catalog.url, plan.storage, plan.settings.local_dir)
    next(task(newer, 0).steps())
    with pytest.raises(FencedError, match="a newer run removes it"):
        list(late)


def test_a_running_task_is_waited_for_no_longer_than_the_persist_delay(plan: RunContext) -> None:
    patient = replace(plan, settings=replace(plan.settings, persist_delay_ms=300))
    slow = task(plan, 1).steps()
    assert [next(slow), next(slow)] == ["begun", "restored"]
    began = time.monotonic()
    task(patient, 0).run()
    assert 0.3 <= time.monotonic() - began < 5
    assert list(slow)[-1] == "acknowledged"
    assert len(rows(plan, "SELECT 1 FROM cairn.physical_files")) == 2


def test_a_running_task_is_not_waited_for_once_enough_bytes_wait(plan: RunContext) -> None:
    """Neither alone has enough; the delay is 10 s."""
    slow = task(plan, 2).steps()
    assert [next(slow), next(slow)] == ["begun", "restored"]
    first = task(plan, 0).steps()
    assert [next(first) for _ in range(3)][-1] == "asked"
    [request] = (TaskManager(plan, "executor").directory / "pending").iterdir()
    size_bytes = msgspec.msgpack.decode(request.read_bytes(), type=Request).size_bytes
    enough = replace(plan, settings=replace(plan.settings, persist_size_bytes=size_bytes + 1))
    began = time.monotonic()
    task(enough, 1).run()
    assert time.monotonic() - began < 5
    assert list(first) == ["acknowledged"]
    assert rows(plan, "SELECT live_segments FROM cairn.physical_files") == [2]
    assert list(slow)[-1] == "acknowledged"
    assert_complete(plan)


def test_fewer_bytes_than_the_threshold_wait_for_the_persist_delay(plan: RunContext) -> None:
    patient = replace(plan.settings, persist_delay_ms=300, persist_size_bytes=10 << 20)
    slow = task(plan, 1).steps()
    assert [next(slow), next(slow)] == ["begun", "restored"]
    began = time.monotonic()
    task(replace(plan, settings=patient), 0).run()
    assert time.monotonic() - began >= 0.3
    slow.close()


def test_a_task_that_is_dead_is_not_waited_for(plan: RunContext) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    manager = TaskManager(plan, "executor")
    next(task(plan, 0).steps())
    (manager.directory / "running" / f"1-some-attempt-{dead.pid}").touch()
    began = time.monotonic()
    task(plan, 0).run()
    assert time.monotonic() - began < 5


def test_of_a_dead_attempts_request_and_its_successors_the_later_counts(
    plan: RunContext,
) -> None:
    quick = without_delay(plan)
    killed = task(quick, 0, attempt=1).steps()
    assert [next(killed) for _ in range(3)][-1] == "asked"
    killed.close()
    for subtask in range(SUBTASKS):
        task(quick, subtask, attempt=2 + subtask).run()
    assert_complete(plan)
    assert rows(plan, "SELECT task_attempt FROM cairn.subtask_acks ORDER BY subtask") == [2, 3, 4]


def test_two_executors_commit_each_their_own_file(plan: RunContext, tmp_path: Path) -> None:
    quick = without_delay(plan)
    other_host = on_host(quick, str(tmp_path / "other-host"))
    tasks = [
        task(quick, 0),
        replace(task(quick, 1), executor="second"),
        replace(task(other_host, 2), executor="third"),
    ]
    together = threading.Barrier(SUBTASKS)

    def run(one: Task) -> None:
        steps = one.steps()
        assert [next(steps), next(steps)] == ["begun", "restored"]
        together.wait(timeout=10)
        list(steps)

    with ThreadPoolExecutor(SUBTASKS) as threads:
        list(threads.map(run, tasks))
    assert_complete(plan)
    assert len(rows(plan, "SELECT DISTINCT tm_id FROM cairn.subtask_acks")) == SUBTASKS
    assert rows(plan, "SELECT live_segments FROM cairn.physical_files") == [1] * SUBTASKS


class FailingStore(PosixStore):
    """Its first write fails, after the bytes are there."""

    failed = False

    def put(self, path: str, chunks: Any) -> None:
        super().put(path, chunks)
        if not self.failed:
            self.failed = True
            raise StorageError("timed out", file=path)


def test_a_write_that_failed_acknowledges_nobody_and_the_next_holder_writes_anew(
    plan: RunContext,
) -> None:
    once = replace(plan.settings, persist_delay_ms=0, upload_retry_policy="none")
    quick = replace(plan, settings=once)
    store = FailingStore(Path(plan.storage.removeprefix("file://")))
    with pytest.raises(StorageError, match="timed out"):
        replace(task(quick, 0), store=store).run()
    assert rows(plan, "SELECT 1 FROM cairn.subtask_acks") == []
    for subtask in (1, 2):
        replace(task(quick, subtask), store=store).run()
    assert_complete(plan)
    statuses = rows(plan, "SELECT status FROM cairn.physical_files ORDER BY created_at")
    assert statuses == ["WRITING", "SEALED", "SEALED"]
    assert_nothing_unknown(plan)


def test_old_spools_requests_and_receipts_do_not_pile_up(plan: RunContext) -> None:
    quick = without_delay(plan)
    for batch_id in range(5):
        for subtask in range(SUBTASKS):
            task(quick, subtask, batch_id=batch_id).run()
    directory = TaskManager(plan, "executor").directory
    left = {
        name: sorted(int(file.name.split("-")[0]) for file in (directory / name).iterdir())
        for name in ("running", "pending", "acked")
    }
    two_batches = [4] * SUBTASKS + [5] * SUBTASKS
    assert left == {"running": [], "pending": [], "acked": two_batches}
    spooled = sorted(file.name.split("-")[0] for file in directory.glob("spool/*/*"))
    assert spooled == ["5"] * SUBTASKS
    assert len(list(directory.glob("begun-*"))) == 1
    assert os.listdir(directory.parent) == [directory.name]


def without_delay(plan: RunContext) -> RunContext:
    return replace(plan, settings=replace(plan.settings, persist_delay_ms=0))
