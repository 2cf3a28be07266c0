"""The materializing process as it is: started once, killed and followed by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.catalog.job.fencing import lock_job
from cairn.errors import StorageError
from cairn.runtime.materialization import start
from cairn.runtime.materialization.order import is_placed
from cairn.runtime.materialization.progress import Progress, progress_of
from cairn.runtime.materialization.start import start_unless_there
from tests.runtime.commit.uploading import until
from tests.runtime.materialization.stream import DUE, Stream, at
from tests.runtime.tasks import read_back, remembered


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Iterator[Stream]:
    """A query that is materialized by a process of its own."""
    start._started.clear()
    yield Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    for process in start._started:
        process.kill()
        process.wait()


@contextmanager
def job_locked(stream: Stream) -> Iterator[None]:
    """Keeps a materialization from coming to an end of its own."""
    with stream.plan.catalog.begin() as connection:
        lock_job(connection, stream.plan.job_id, exclusive=True)
        yield


@contextmanager
def without_end(stream: Stream, failures: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that has taken the order, as counted, and can come to no end."""
    with job_locked(stream):
        stream.order()
        until(lambda: progress_of(stream.manager, 0).failures == failures, most_s=60)
        yield start._started[-1]


def others_connected(stream: Stream) -> list[object]:
    """Returns the sessions that other processes have with the metastore."""
    return stream.sql(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


IDLE_SOON = "import cairn.catalog.connections as c; c.IDLE_S = 0.2"


def test_an_executor_has_one_process_that_does_all_orders(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python runs a module of this name when it starts; the process gets this one's path.
    (tmp_path / "sitecustomize.py").write_text(IDLE_SOON)
    monkeypatch.syspath_prepend(tmp_path)
    stream.run(2)
    stream.order()
    stream.order(at(1))
    start_unless_there(stream.manager)
    assert len(start._started) == 1
    until(lambda: not is_placed(stream.manager, 0), most_s=60)
    stream.run(1)
    stream.materialize(at(10**6))
    assert len(start._started) == 1
    assert progress_of(stream.manager, 0) == Progress(done_ms=at(10**6).now_ms)
    assert len(stream.sql("SELECT subtask FROM cairn.materializations")) == 2
    until(lambda: not others_connected(stream), most_s=30)
    assert start._started[0].poll() is None, "it stays, and holds no connection"


def priorities(pid: int) -> list[tuple[int, int]]:
    """Returns the scheduling class and niceness of each of a process's threads, by their age."""
    return [
        (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread))
        for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    ]


def test_an_order_of_a_killed_process_is_done_by_the_next_which_insists(stream: Stream) -> None:
    stream.run(2)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with without_end(stream) as first:
        assert priorities(first.pid)[:2] == [(os.SCHED_OTHER, nice), (os.SCHED_IDLE, nice)]
        first.kill()
        first.wait()
        assert is_placed(stream.manager, 0)
    stream.materialize()
    assert progress_of(stream.manager, 0) == Progress(done_ms=DUE.now_ms)
    [second] = start._started
    # The patient thread has done the imports, the other one the order; Arrow has no threads here,
    # which would keep a priority.
    found = priorities(second.pid)
    assert found[0] == (os.SCHED_OTHER, nice)
    assert found.count((os.SCHED_OTHER, nice + 10)) == 1
    stream.run(1)
    assert stream.kinds(3)[0] == "keyed_full"
    assert read_back(stream.plan, 3) == remembered(3)


def test_a_patient_one_that_never_gets_the_processor_ends_and_the_next_one_insists(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "patience_s", lambda _settings: 1)
    stream.run(2)

    def is_taken() -> bool:
        stream.order()  # in every batch: a process that starves at its imports ends, too
        return progress_of(stream.manager, 0).failures == 1

    with job_locked(stream):
        until(is_taken, most_s=60)
        assert start._started[-1].wait(60) == -signal.SIGALRM
        assert progress_of(stream.manager, 0).failures == 1
    monkeypatch.undo()
    stream.materialize()
    stream.run(1)
    assert stream.kinds(3)[0] == "keyed_full"
    assert read_back(stream.plan, 3) == remembered(3)


def test_a_process_that_ends_before_its_first_order_three_times_fails_the_task(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    stream.run(2)
    for _ in range(3):
        stream.order()
        start._started[-1].wait()
    with pytest.raises(
        StorageError,
        match=r"ended before it took an order \(failures in a row: 3\), so the changelog grows\."
        r" The last time: it ended without saying why",
    ):
        stream.order()
    monkeypatch.undo()
    stream.materialize()
    assert progress_of(stream.manager, 0) == Progress(done_ms=DUE.now_ms)
    assert progress_of(stream.manager, "process") == Progress()
