"""Locks between processes: who waits says so, and gives up at the deadline with what to do."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cairn import locks
from cairn.errors import StorageError
from cairn.locks import Wait, is_free, lock, try_lock, wait_for_lock

HOLD = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print(); input()"


@contextmanager
def held_by_another(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    file.touch()
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def take(file: Path) -> None:
    with lock(file):
        pass


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "one.lock"


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LONG_WAIT_S", 0.05)
    monkeypatch.setattr(locks, "DEADLINE_S", 0.2)


def test_a_free_lock_is_had_without_a_thread(file: Path) -> None:
    before = threading.active_count()
    with lock(file):
        assert threading.active_count() == before
        assert not is_free(file)
    assert is_free(file)


def test_a_lock_is_free_once_its_holder_was_killed(file: Path) -> None:
    with held_by_another(file) as process:
        assert not is_free(file)
        with ExitStack() as held:
            assert try_lock(file, held) is None
        threading.Timer(0.1, process.kill).start()
        with lock(file):
            assert process.wait() < 0
    wait_for_lock(file)


def test_nobody_waits_for_a_lock_whose_file_is_gone(file: Path) -> None:
    wait_for_lock(file)
    assert is_free(file)
    with ExitStack() as held:
        assert try_lock(file, held) is None


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("wait", [take, wait_for_lock])
def test_who_waits_too_long_names_the_holder_and_gives_up(
    file: Path, wait: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with held_by_another(file) as process, pytest.raises(StorageError) as caught:
        wait(file)
    assert f"process {process.pid} holds" in str(caught.value)
    assert (caught.value.file, caught.value.retryable) == (str(file), True)
    [record] = caplog.records
    assert vars(record)["file"] == str(file)
    assert vars(record)["holder_pids"] == str(process.pid)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("wait", [take, wait_for_lock])
def test_a_wait_is_the_same_where_the_system_does_not_tell_the_holder(
    file: Path, wait: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOCKS_OF_THE_SYSTEM", file.with_name("missing"))
    with held_by_another(file), pytest.raises(StorageError, match="process unknown holds"):
        wait(file)


@pytest.mark.usefixtures("_impatient")
def test_a_lock_given_up_on_is_not_taken_later(file: Path) -> None:
    with held_by_another(file), pytest.raises(StorageError):
        take(file)
    with lock(file):  # the thread that waited had it for a moment at most
        assert not is_free(file)


@pytest.mark.usefixtures("_impatient")
def test_a_wait_without_a_lock_tells_once_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wait = Wait("room", tmp_path)

    def for_ever() -> None:
        while True:
            wait.pause()

    with pytest.raises(StorageError, match=rf"s for room\. .* \[file {tmp_path}\]"):
        for_ever()
    assert [record.message for record in caplog.records] == ["waiting for room"]
    assert wait.waited_s >= locks.DEADLINE_S


def test_waiters_get_a_lock_in_the_order_in_which_they_came(file: Path) -> None:
    order: list[int] = []

    def note(number: int) -> None:
        with lock(file):
            order.append(number)

    threads = [threading.Thread(target=note, args=(number,)) for number in range(5)]
    with lock(file):
        for thread in threads:
            thread.start()
            waiting = f":{os.stat(file).st_ino} "
            while Path("/proc/locks").read_text().count(waiting) < 2 + threads.index(thread):
                pass
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
