"""The loop of the materializing process: what it takes, in what order, and when it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.errors import MetastoreError, StorageError
from cairn.locks import is_free, release, try_lock
from cairn.runtime.materialization import carry_out, schedule, serve
from cairn.runtime.materialization.order import Order, is_placed, place, placed
from cairn.runtime.materialization.parent import ProcessIdentity, identity_of
from cairn.runtime.materialization.progress import Progress, progress_of, record_progress
from cairn.runtime.materialization.serve import Start
from cairn.runtime.materialization.start import lock_file
from cairn.runtime.materialization.write import Compute
from tests.runtime.materialization.stream import DUE, Stream, here
from tests.runtime.tasks import QUERY, Task, new_run, remember

US = identity_of(os.getpid())


@pytest.fixture
def stream(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """A query whose orders wait; whoever serves them ends soon."""
    monkeypatch.setattr(schedule, "start_unless_there", lambda _manager: None)
    monkeypatch.setattr(serve, "IDLE_S", 0.1)
    monkeypatch.setattr(serve, "_PAUSE_S", 0.01)
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.run(2)
    return made


@pytest.fixture
def lock(stream: Stream) -> Iterator[int]:
    """The lock of the process that this one stands for."""
    with ExitStack() as held:
        lock_file(stream.manager).touch()
        found = try_lock(lock_file(stream.manager), held)
        assert found is not None
        yield found


def run(
    stream: Stream,
    lock: int,
    *,
    parent: ProcessIdentity | None = US,
    computing: serve.Computing = here,
) -> None:
    start = Start(run=stream.plan, executor_root="one", lock=lock, parent=parent, patience_s=60)
    serve.serve(start, computing)


def bases(stream: Stream) -> list[object]:
    return stream.sql("SELECT subtask FROM cairn.segments WHERE kind <> 'changelog'")


def test_orders_are_done_the_oldest_first_and_without_one_the_process_ends(
    stream: Stream, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "TOGETHER", 1)
    stream.order()
    [due] = placed(stream.manager)
    place(stream.manager, replace(due, subtask=1, ordered_s=due.ordered_s - 1))
    seen: list[tuple[int, ...]] = []

    def look(is_patient: bool) -> AbstractContextManager[Compute]:
        seen.append(tuple(progress_of(stream.manager, each).failures for each in (1, 0)))
        return here(is_patient)

    run(stream, lock, computing=look)
    assert seen == [(1, 0), (0, 1)], "counted when it is taken, uncounted when it is done"
    assert placed(stream.manager) == []
    assert is_free(lock_file(stream.manager))


def test_an_order_that_waits_for_long_or_has_failed_is_not_patient(
    stream: Stream, lock: int
) -> None:
    stream.order()
    [due] = placed(stream.manager)
    half_s = stream.plan.settings.materialize_interval_ms / 2000
    patience: list[bool] = []

    def look(is_patient: bool) -> AbstractContextManager[Compute]:
        patience.append(is_patient)
        return here(is_patient)

    serve.take(stream.manager, [due], look)
    late = replace(due, now_ms=due.now_ms + 1, ordered_s=time.monotonic() - half_s - 1)
    serve.take(stream.manager, [late], look)
    failed = replace(progress_of(stream.manager, 0), failures=1)
    record_progress(stream.manager, 0, failed)
    serve.take(stream.manager, [replace(due, now_ms=due.now_ms + 2)], look)
    assert patience == [True, False, False]


def test_an_order_that_was_done_or_given_up_is_only_removed(stream: Stream) -> None:
    for progress in (
        Progress(done_ms=DUE.now_ms),
        Progress(failures=3, error="killed"),
        Progress(failures=1, error="a missing permission", is_final=True),
    ):
        record_progress(stream.manager, 0, Progress())
        stream.order()
        record_progress(stream.manager, 0, progress)
        [due] = placed(stream.manager)
        serve.take(stream.manager, [due], here)
        assert not is_placed(stream.manager, 0)
        assert progress_of(stream.manager, 0) == progress
    assert bases(stream) == []


def test_a_process_killed_at_one_order_three_times_fails_the_subtasks_task(stream: Stream) -> None:
    def killed(_is_patient: bool) -> AbstractContextManager[Compute]:
        raise InterruptedError

    stream.order()
    [due] = placed(stream.manager)
    for _ in range(3):
        with pytest.raises(InterruptedError):
            serve.take(stream.manager, [due], killed)
    serve.take(stream.manager, [due], killed)
    with pytest.raises(StorageError, match=r"failures in a row: 3.*as a killed process does"):
        stream.order()
    stream.order()
    assert is_placed(stream.manager, 0), "counted anew"


def test_an_order_placed_while_the_process_ends_is_not_left_alone(
    stream: Stream, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def releases(descriptor: int) -> None:
        stream.order()  # before: a task that now finds the lock held starts no other process
        release(descriptor)

    monkeypatch.setattr(serve, "release", releases)
    assert not serve.is_let_go(stream.manager, lock)
    monkeypatch.undo()
    assert not is_free(lock_file(stream.manager))


def test_the_next_process_is_not_disturbed_by_the_one_that_ends(stream: Stream, lock: int) -> None:
    stream.order()
    release(lock)
    with ExitStack() as held:
        assert try_lock(lock_file(stream.manager), held) is not None
        assert serve.is_let_go(stream.manager, lock)


def test_a_fenced_run_ends_its_process_and_changes_nothing(stream: Stream, lock: int) -> None:
    stream.order()
    old = stream.plan
    newer = new_run(old.catalog.url, old.storage, old.settings.local_dir + "-2", parallelism=1)
    Task(newer, "one", 2, 0, 2, remember(2)).run()
    run(stream, lock)
    assert is_placed(stream.manager, 0)
    assert bases(stream) == []
    assert "SHARED" not in stream.sql("SELECT upper(scope) FROM cairn.physical_files")


def test_a_removed_directory_ends_the_process_even_if_a_late_task_makes_it_again(
    stream: Stream, lock: int
) -> None:
    shutil.rmtree(stream.manager.directory)
    due = Order(batch=stream.plan.batch(QUERY, 1), subtask=0, now_ms=1, ordered_s=0)
    place(stream.manager, due)
    run(stream, lock)
    assert is_placed(stream.manager, 0)
    assert bases(stream) == []


def test_the_process_ends_with_the_executor(stream: Stream, lock: int) -> None:
    executor = subprocess.Popen(["/bin/sleep", "60"])
    parent = identity_of(executor.pid)
    assert parent is not None
    executor.kill()
    os.waitid(os.P_PID, executor.pid, os.WEXITED | os.WNOWAIT)
    assert identity_of(executor.pid) is None, "it has ended, though nobody has asked how"
    executor.wait()
    stream.order()
    run(stream, lock, parent=parent)
    assert is_placed(stream.manager, 0)
    another = ProcessIdentity(os.getpid(), parent.start_ticks - 1)
    run(stream, lock, parent=another)
    assert is_placed(stream.manager, 0), "a later process of the same id"
    run(stream, lock)
    assert not is_placed(stream.manager, 0)


def test_an_end_that_cannot_be_recorded_ends_neither_the_process_nor_the_order(
    stream: Stream, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise MetastoreError("Postgres is away")

    monkeypatch.setattr(carry_out, "record_end", lost)
    stream.order()
    run(stream, lock)
    assert progress_of(stream.manager, 0) == Progress(done_ms=DUE.now_ms)
    assert bases(stream) == [0]
