"""What is in flight at once: uploads that wait for room, and room that the dead give back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cairn import locks
from cairn.catalog.job.files import Uploaded
from cairn.errors import StorageError
from tests.runtime.commit.one_upload import fails, hold, no_fault, waits
from tests.runtime.commit.uploading import (
    EXECUTOR,
    LOST,
    Uploading,
    faulty,
    until,
)
from tests.runtime.forks import FORKS
from tests.runtime.tasks import facts_of


@contextmanager
def uploading_meanwhile(
    uploading: Uploading, gate: threading.Event, *sizes: int
) -> Iterator[list[Future[Uploaded]]]:
    """Yields uploads that have begun one after the other, and are held until the gate opens."""
    store = faulty(uploading)
    store.faults = [waits(gate)] * len(sizes)
    with ThreadPoolExecutor(8) as threads:
        begun: list[Future[Uploaded]] = []
        for size in sizes:
            begun.append(threads.submit(uploading.upload, size))
            until(lambda: len(store.written) == len(begun))
        try:
            yield begun
        finally:
            gate.set()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once an upload waits for room, and so has counted those in flight."""
    waits_now = threading.Event()
    pause = locks.Wait.pause

    def pauses(wait: locks.Wait) -> None:
        waits_now.set()
        pause(wait)

    monkeypatch.setattr(locks.Wait, "pause", pauses)
    return waits_now


@pytest.mark.parametrize(
    "limit", [{"upload_in_flight_bytes": 100}, {"upload_threads": 1}], ids=["bytes", "threads"]
)
def test_an_upload_waits_while_there_is_no_room_in_flight_and_does_not_fail(
    uploads: Callable[..., Uploading],
    gate: threading.Event,
    waiting: threading.Event,
    limit: dict[str, int],
) -> None:
    uploading = uploads(**limit)
    with (
        ThreadPoolExecutor(1) as threads,
        uploading_meanwhile(uploading, gate, 60) as [first],
    ):
        second = threads.submit(uploading.upload, 60)
        assert waiting.wait(20)
        assert len(faulty(uploading).written) == 1
        gate.set()
        assert first.result().stats.queue_size == 0
        assert second.result().stats.queue_size == 1


def test_uploads_for_which_there_is_room_do_not_wait(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    uploading = uploads(upload_in_flight_bytes=100, upload_threads=3)
    with uploading_meanwhile(uploading, gate, 40, 40, 20) as begun:
        gate.set()
        assert [future.result().stats.queue_size for future in begun] == [0, 1, 2]


def test_an_upload_that_is_larger_than_the_limit_is_alone_in_flight(
    uploads: Callable[..., Uploading], gate: threading.Event, waiting: threading.Event
) -> None:
    uploading = uploads(upload_in_flight_bytes=100)
    with (
        ThreadPoolExecutor(1) as threads,
        uploading_meanwhile(uploading, gate, 1000) as [large],
    ):
        small = threads.submit(uploading.upload, 1)
        assert waiting.wait(20)
        gate.set()
        assert large.result().stats.size_bytes == 1000
        assert small.result().stats.queue_size == 1


def test_a_changelog_does_not_wait_for_bases(
    uploads: Callable[..., Uploading], gate: threading.Event
) -> None:
    uploading = uploads(upload_threads=1)
    store = faulty(uploading)
    store.faults = [waits(gate)]
    with ThreadPoolExecutor(1) as threads:
        base = threads.submit(uploading.upload, 1000, is_changelog=False)
        until(lambda: len(store.written) == 1)
        assert uploading.upload().stats.queue_size == 0
        assert not base.done()
        gate.set()
        assert base.result().stats.queue_size == 0


def test_an_upload_that_failed_is_in_flight_no_longer(
    uploads: Callable[..., Uploading],
) -> None:
    uploading = uploads(upload_threads=1, upload_retry_policy="none")
    faulty(uploading).faults = [fails(LOST), no_fault]
    with pytest.raises(StorageError, match="connection was lost"):
        uploading.upload()
    assert uploading.upload().stats.queue_size == 0


def test_a_killed_process_is_in_flight_no_longer(
    uploads: Callable[..., Uploading], waiting: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "DEADLINE_S", 10.0)
    uploading = uploads(upload_threads=1)
    ours, theirs = FORKS.Pipe()
    facts = facts_of(uploading.plan)
    process = FORKS.Process(target=hold, args=(theirs, facts, EXECUTOR, 10))
    process.start()
    theirs.close()
    assert ours.poll(20)
    assert ours.recv() == "in flight"
    with ThreadPoolExecutor(1) as threads:
        next_one = threads.submit(uploading.upload)
        assert waiting.wait(20)
        process.kill()
        process.join()
        assert next_one.result().stats.requests == 1
    assert list((uploading.manager.directory / "in-flight-changelog").iterdir()) == []
