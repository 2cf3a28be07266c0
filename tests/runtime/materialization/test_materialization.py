"""Materialization beside the batch: one process at a time, counted, fenced, and full or not."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from cairn.catalog.job.begin import Clock
from cairn.catalog.job.segments import segments_at
from cairn.errors import RefusedError, StorageError
from cairn.handles import SegmentHandle
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.local_store import Weight
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization import schedule
from cairn.runtime.materialization.order import Order, carry_out
from cairn.runtime.materialization.progress import Progress, progress_of
from cairn.runtime.materialization.schedule import lock_file, start_if_due
from cairn.storage import open_store
from tests.runtime.commit.uploading import until
from tests.runtime.tasks import (
    BIG,
    EVERYTHING,
    QUERY,
    Task,
    Write,
    new_run,
    read_back,
    remember,
    remember_big,
    remembered,
)

LIGHT = Weight()
DUE = Clock(now_ms=10_000_000, job_created_ms=0, base_made_ms={})
"""A tick of any phase has passed by then."""


class Stream:
    """A query of one subtask whose tasks run in this process."""

    def __init__(self, url: str, storage: str, local_dir: str) -> None:
        self._new_run = partial(new_run, url, storage, local_dir, parallelism=1)
        self.plan = self._new_run()
        self.batches = 0

    def restart(self) -> None:
        self.plan = self._new_run()

    @property
    def manager(self) -> TaskManager:
        return TaskManager(self.plan, "one")

    def run(self, batches: int, writes: Callable[[int], Write] = remember) -> None:
        for _ in range(batches):
            write = writes(self.batches)
            Task(self.plan, "one", self.batches, 0, self.batches, write).run()
            self.batches += 1

    def start(self, clock: Clock = DUE, weight: Weight = LIGHT) -> None:
        batch = self.plan.batch(QUERY, self.batches - 1)
        store = open_store(self.plan.storage)
        context = SubtaskContext(manager=self.manager, store=store, batch=batch, subtask=0)
        start_if_due(context, clock, weight)

    def materialize(self, clock: Clock = DUE) -> None:
        self.start(clock)
        with self.alone():
            pass
        for process in schedule._started:
            process.wait()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no process materializes, and keeps others from starting."""
        lock = os.open(lock_file(self.manager, 0), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def segments(self, checkpoint_id: int) -> list[SegmentHandle]:
        return self.plan.catalog.run(
            "reading the segments of a checkpoint",
            lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING),
        )

    def kinds(self, checkpoint_id: int) -> list[str]:
        return [handle.kind.value for handle in self.segments(checkpoint_id)]

    def sql(self, statement: str) -> list[object]:
        return self.plan.catalog.run(
            "looking", lambda c: list(c.scalars(text(statement), {"job": self.plan.job_id}))
        )


class StandardInput(io.BytesIO):
    """Takes the order that is written to it, and carries it out once it is closed."""

    def __init__(self, lock: int) -> None:
        super().__init__()
        self._lock = os.dup(lock)

    def close(self) -> None:
        if not self.closed:
            carry_out(msgspec.msgpack.decode(self.getvalue(), type=Order))
            os.close(self._lock)
        super().close()


class AtOnce:
    """Stands for a materializing process, whose work is done here, under the lock it inherits."""

    def __init__(self, _command: list[str], *, pass_fds: list[int], **_: object) -> None:
        self.stdin = StandardInput(pass_fds[0])

    def wait(self) -> int:
        return 0

    poll = wait


@pytest.fixture
def beside(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Iterator[Stream]:
    """A query that is materialized by processes of their own."""
    yield Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    for process in schedule._started:
        process.wait()


@pytest.fixture
def stream(beside: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A query that is materialized in this process, where nothing waits for a core."""
    monkeypatch.setattr(subprocess, "Popen", AtOnce)
    return beside


def at(ms: int) -> Clock:
    return replace(DUE, now_ms=DUE.now_ms + ms)


def test_the_first_materialization_is_full_and_the_next_holds_what_has_changed(
    stream: Stream,
) -> None:
    stream.run(1, remember_big)
    stream.run(2)
    stream.materialize()
    stream.run(2)
    assert stream.kinds(5) == ["keyed_full", "changelog", "changelog", "changelog"]
    stream.materialize(at(10**6))
    stream.run(1)
    base, increment, *changelog = stream.segments(6)
    assert stream.kinds(6) == ["keyed_full", "keyed_increment", "changelog", "changelog"]
    assert increment.as_of_checkpoint == 4, "of the local state, which is that of the parent"
    assert increment.size_bytes < base.size_bytes / 4
    assert [segment.as_of_checkpoint for segment in changelog] == [5, 6]
    assert read_back(stream.plan, 6) == remembered(6) | BIG


def test_what_changes_more_than_a_quarter_of_the_state_is_materialized_whole(
    stream: Stream,
) -> None:
    stream.run(3)
    stream.materialize()
    stream.run(2)
    stream.materialize(at(10**6))
    stream.run(1)
    assert stream.kinds(6) == ["keyed_full", "changelog", "changelog"]
    assert stream.segments(6)[0].as_of_checkpoint == 4
    assert read_back(stream.plan, 6) == remembered(6)


@contextmanager
def without_end(stream: Stream) -> Iterator[int]:
    """Yields the id of a process that materializes and can come to no end of its own."""
    with stream.plan.catalog.begin() as connection:
        connection.execute(text("SELECT 1 FROM cairn.jobs FOR UPDATE"))
        stream.start()
        yield schedule._started[-1].pid


def test_an_order_of_a_killed_process_counts_as_failed_and_the_next_one_does_it(
    beside: Stream,
) -> None:
    beside.run(2)
    with without_end(beside):
        schedule._started[-1].kill()
        with beside.alone():
            progress = progress_of(beside.manager, 0)
    assert (progress.failures, progress.done_ms) == (1, 0)
    beside.materialize(at(10**6))
    assert progress_of(beside.manager, 0).failures == 0
    beside.run(1)
    assert read_back(beside.plan, 3) == remembered(3)


def priorities(pid: int) -> list[tuple[int, int]]:
    """Returns the scheduling class and niceness of each of a process's threads, by their age."""
    return [
        (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread))
        for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    ]


def test_its_computing_thread_waits_for_an_idle_core_and_after_a_failure_insists(
    beside: Stream,
) -> None:
    beside.run(2)
    ours = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
    with without_end(beside) as pid:
        until(lambda: priorities(pid)[:2] == [ours, (os.SCHED_IDLE, ours[1])])
        schedule._started[-1].kill()
        with beside.alone():
            pass
    with without_end(beside) as pid:
        until(lambda: priorities(pid)[:2] == [ours, (os.SCHED_OTHER, ours[1] + 10)])
    with beside.alone():
        assert progress_of(beside.manager, 0) == Progress(done_ms=DUE.now_ms)


def test_a_patient_one_that_never_gets_the_processor_ends_and_the_next_one_insists(
    beside: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LEAST_PATIENCE_S", 1)
    beside.plan = new_run(
        beside.plan.catalog.url,
        beside.plan.storage,
        beside.plan.settings.local_dir,
        parallelism=1,
        options={"cairn.changelog.periodic-materialize.interval": "1 s"},
    )
    beside.run(2)
    with without_end(beside):
        assert schedule._started[-1].wait() == -signal.SIGALRM
        assert progress_of(beside.manager, 0).failures == 1
    beside.materialize(at(10**6))
    beside.run(1)
    assert beside.kinds(3)[0] == "keyed_full"
    assert read_back(beside.plan, 3) == remembered(3)


def test_a_subtask_is_materialized_by_one_process_at_a_time(stream: Stream) -> None:
    stream.run(2)
    before = len(schedule._started)
    with stream.alone():
        stream.start()
    assert len(schedule._started) == before
    assert stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'") == []
    stream.materialize()
    assert len(stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'")) == 1


def test_nothing_is_written_where_nothing_has_changed_since_the_base(stream: Stream) -> None:
    stream.run(2)
    stream.materialize()
    files = "SELECT count(*) FROM cairn.physical_files WHERE job_id = :job"
    before = stream.sql(files)
    stream.materialize(at(10**6))
    assert stream.sql(files) == before
    assert progress_of(stream.manager, 0).done_ms == at(10**6).now_ms


@contextmanager
def without_changelog(stream: Stream) -> Iterator[None]:
    """Moves the newest changelog away, of which no batch here reads the object."""
    newest = stream.segments(stream.batches)[-1]
    file = Path(stream.plan.storage.removeprefix("file://")) / newest.path
    away = file.rename(file.with_suffix(".away"))
    yield
    away.rename(file)


def test_three_failures_in_a_row_fail_the_task_and_a_restart_counts_anew(
    stream: Stream,
) -> None:
    stream.run(1, remember_big)
    stream.run(1)
    stream.materialize()
    stream.run(1)
    with without_changelog(stream):
        stream.run(1)
        for failures in range(1, 4):
            stream.materialize(at(10**6))
            assert progress_of(stream.manager, 0).failures == failures
        with pytest.raises(
            StorageError,
            match=r"subtask 0 could not be materialized \(failures in a row: 3\), so its changelog"
            r" grows\. The last time: .* has no such object",
        ):
            stream.start(at(10**6))
    stream.materialize(at(10**6))
    stream.run(1)
    assert "keyed_increment" in stream.kinds(5)
    assert read_back(stream.plan, 5) == remembered(5) | BIG


def test_a_failure_that_trying_again_cannot_mend_fails_every_next_task_at_once(
    stream: Stream,
) -> None:
    stream.run(2)
    shared = Path(stream.plan.storage.removeprefix("file://")) / stream.plan.job_id / "shared"
    shared.write_text("a file where a directory has to be")
    stream.materialize()
    started = len(schedule._started)
    for _ in range(2):
        with pytest.raises(
            RefusedError,
            match=r"subtask 0 could not be materialized \(failures in a row: 1\), so its changelog"
            r" grows\. Trying again cannot help: .* a part of the path is a file",
        ):
            stream.start()
    assert len(schedule._started) == started, "it is not tried again"
    shared.unlink()
    stream.restart()
    stream.run(1)
    stream.materialize()
    stream.run(1)
    assert stream.kinds(4)[0] == "keyed_full"
    assert read_back(stream.plan, 4) == remembered(4)


def test_a_fenced_runs_materialization_changes_nothing_and_is_no_failure(stream: Stream) -> None:
    stream.run(2)
    old = stream.plan
    with stream.alone():
        stream.plan = new_run(
            old.catalog.url, old.storage, old.settings.local_dir + "-2", parallelism=1
        )
        stream.run(1)
    stream.plan = old
    stream.materialize()
    assert stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'") == []
    assert "SHARED" not in stream.sql("SELECT upper(scope) FROM cairn.physical_files")


def test_the_changelog_is_released_by_the_materialization(stream: Stream) -> None:
    stream.run(4)
    stream.materialize()
    stream.run(4)
    cleanup_job(stream.plan.catalog, stream.plan.job)
    live = stream.sql("SELECT kind FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'")
    assert sorted(map(str, live)) == ["changelog"] * 5 + ["keyed_full"]
    assert read_back(stream.plan, 8) == remembered(8)
