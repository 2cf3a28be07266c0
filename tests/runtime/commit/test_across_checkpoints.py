"""Files that go on over checkpoints: what is in them, when they end, and who is killed when."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.errors import FencedError, StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.posix import PosixStore
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.forks import FORKS
from tests.runtime.merging_stream import CountingStore, Stream
from tests.runtime.one_task import run_task
from tests.runtime.tasks import facts_of, read_back, remembered

KILLS = [
    "before append",
    "half append",
    "after append",
    "before COMMIT",
    "after COMMIT",
    "before record",
    "after record",
]


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.restart(parallelism=2, across_checkpoint_boundary=True)
    return made


def sizes(stream: Stream) -> list[int]:
    return [size_bytes for _, size_bytes, _ in files(stream.plan)]


def clean(stream: Stream) -> None:
    cleanup_job(stream.plan.catalog, stream.plan.job)


def test_checkpoints_continue_one_file_each_by_one_append(stream: Stream) -> None:
    store = CountingStore(stream.storage)
    for batch in range(4):
        stream.batch(store=store)
        [(path, size_bytes, live)] = files(stream.plan)
        assert live == 2 * (batch + 1)
        assert objects(stream.plan) == {path: size_bytes}
        stream.assert_whole()
    assert store.requests == ["put", "append", "append", "append"]


def test_without_the_option_every_checkpoint_has_a_file_of_its_own(stream: Stream) -> None:
    stream.restart(parallelism=2)
    for _ in range(3):
        stream.batch()
    assert [live for _, _, live in files(stream.plan)] == [2, 2, 2]


def test_merging_that_is_off_never_continues_a_file(stream: Stream) -> None:
    stream.restart(parallelism=2, across_checkpoint_boundary=True, enabled=False)
    for _ in range(3):
        stream.batch()
    assert [live for _, _, live in files(stream.plan)] == [1] * 6


def test_a_file_ends_once_it_has_its_maximum_size(stream: Stream) -> None:
    stream.batch()
    [first] = sizes(stream)
    settings = replace(stream.plan.settings, max_file_bytes=2 * first)
    stream.plan = replace(stream.plan, settings=settings)
    for _ in range(5):
        stream.batch()
    *full, last = sizes(stream)
    assert len(full) >= 2
    assert all(2 * first <= size < 3 * first for size in full)
    assert last < 3 * first
    stream.assert_whole()


def test_so_many_subtasks_share_a_file_over_all_checkpoints(stream: Stream) -> None:
    stream.restart(parallelism=4, across_checkpoint_boundary=True, max_subtasks_per_file=2)
    for _ in range(3):
        stream.batch()
    shared = rows(
        stream.plan,
        "SELECT array_agg(DISTINCT subtask ORDER BY subtask), count(*) FROM cairn.segments"
        " GROUP BY file_id ORDER BY 1",
    )
    assert shared == [([0, 1], 6), ([2, 3], 6)]
    stream.assert_whole()


def shared(stream: Stream) -> list[tuple[str, int, int]]:
    return [found for found in files(stream.plan) if found[0].startswith("shared/")]


def test_materializations_continue_one_file_a_subtask(stream: Stream) -> None:
    stream.batch()
    store = CountingStore(stream.storage)
    for times in range(1, 4):
        stream.batch(materializes=True, store=store)
        assert [path.split("/")[1] for path, _, _ in shared(stream)] == [
            "subtask-0-2",
            "subtask-1-2",
        ]
        segments = rows(
            stream.plan, "SELECT count(*) FROM cairn.segments WHERE kind <> 'changelog'"
        )
        assert segments == [2 * times]
        stream.assert_whole()
    assert store.requests.count("put") == 2
    clean(stream)
    stream.assert_whole()


def test_a_failed_materialization_gives_its_file_up_and_the_next_writes_a_new_one(
    stream: Stream,
) -> None:
    stream.batch()
    stream.batch(materializes=True)
    before = shared(stream)
    store = TearingStore(stream.storage, written_bytes=10)
    with pytest.raises(StorageError, match="the disk is full"):
        stream.task(0, materializes=True, store=store).run()
    assert shared(stream) == before
    stream.batch(materializes=True)
    after = shared(stream)
    assert len(after) == 3
    [torn] = [found for found in after if found in before]
    assert torn[0].startswith("shared/subtask-0-2/"), "the other one went on"
    stream.batch()
    stream.assert_whole(may_be_torn=True)


def test_a_materialization_whose_file_was_deleted_takes_a_new_one(stream: Stream) -> None:
    stream.batch()
    stream.batch(materializes=True)
    going = stream.plan
    elsewhere = replace(going.settings, merging_enabled=False)
    stream.plan = replace(going, settings=elsewhere)
    for _ in range(4):
        stream.batch(materializes=True)
    clean(stream)
    stream.plan = going
    assert shared(stream) == [], "other bases have replaced those in it"
    stream.batch(materializes=True)
    assert len(shared(stream)) == 2
    stream.batch()
    stream.assert_whole()


def test_a_newer_run_continues_no_file_of_an_older_one(stream: Stream) -> None:
    stream.batch()
    before = files(stream.plan)
    stream.restart(parallelism=2, across_checkpoint_boundary=True)
    stream.batch()
    assert files(stream.plan)[0] == before[0]
    assert len(files(stream.plan)) == 2
    stream.assert_whole()


def known_open(stream: Stream) -> set[str]:
    """Returns the files that the metastore takes for open."""
    return set(
        rows(
            stream.plan,
            "SELECT f.path FROM cairn.physical_files AS f WHERE cairn.is_open_file(f)",
        )
    )


def at_rest(stream: Stream) -> set[str]:
    """Returns the files that the executor's own records say it may continue."""
    records = Path(stream.local_dir).rglob("pool/*.open")
    return {msgspec.msgpack.decode(record.read_bytes())["path"] for record in records}


def test_the_metastore_knows_every_file_that_an_executor_may_continue(stream: Stream) -> None:
    for batch in range(3):
        stream.batch(materializes=batch == 1)
        assert at_rest(stream)
        assert at_rest(stream) <= known_open(stream)
    stream.restart(parallelism=2)
    stream.batch()
    assert known_open(stream) == set()


def empty_the_open_file(stream: Stream) -> str:
    """Makes bases of all that the open file holds; returns its path."""
    stream.batch()
    [(path, _, _)] = files(stream.plan)
    quiet = replace(stream.plan, settings=replace(stream.plan.settings, merging_enabled=False))
    going, stream.plan = stream.plan, quiet
    stream.batch(materializes=True)
    stream.batch()
    stream.batch()
    stream.batch()
    stream.plan = going
    return path


def test_cleanup_deletes_an_open_file_that_nothing_needs_and_the_writer_takes_a_new_one(
    stream: Stream,
) -> None:
    path = empty_the_open_file(stream)
    clean(stream)
    assert path in [deleted for deleted, _, _ in files(stream.plan, "DELETED")]
    stream.batch()
    assert path not in objects(stream.plan)
    clean(stream)
    stream.assert_whole()
    stream.batch()
    assert len([found for found in files(stream.plan) if "taskmanager" in found[0]]) == 1


class CleaningStore(PosixStore):
    """Runs a cleanup right before or after it appends."""

    def __init__(self, stream: Stream, *, before: bool) -> None:
        super().__init__(Path(stream.storage.removeprefix("file://")))
        self.stream = stream
        self.before = before
        self.appends = 0

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        self.appends += 1
        if self.before:
            clean(self.stream)
        super().append(path, offset, chunks)
        if not self.before:
            clean(self.stream)


@pytest.mark.parametrize("before", [True, False])
def test_cleanup_that_condemns_the_file_while_it_is_written_costs_a_new_file_and_no_state(
    stream: Stream, before: bool
) -> None:
    path = empty_the_open_file(stream)
    store = CleaningStore(stream, before=before)
    stream.batch(store=store)
    assert store.appends == 1
    assert path not in objects(stream.plan)
    stream.assert_whole()
    stream.batch()
    stream.assert_whole()


def test_cleanup_leaves_the_file_that_an_acknowledgement_has_just_gone_on_with(
    stream: Stream,
) -> None:
    path = empty_the_open_file(stream)
    stream.batch()
    clean(stream)
    assert path in [sealed for sealed, _, live in files(stream.plan) if live == 2]
    stream.assert_whole()


def test_a_file_with_bytes_that_nobody_recorded_is_given_up(stream: Stream) -> None:
    stream.batch()
    [(path, size_bytes, _)] = files(stream.plan)
    root = Path(stream.storage.removeprefix("file://"))
    with (root / stream.plan.job_id / path).open("ab") as torn:
        torn.write(b"half a segment")
    stream.batch()
    assert files(stream.plan)[0] == (path, size_bytes, 2)
    assert len(files(stream.plan)) == 2
    stream.batch()
    assert len(files(stream.plan)) == 2
    stream.assert_whole(may_be_torn=True)


class TearingStore(PosixStore):
    """Its first append fails, after so many of the bytes are there."""

    def __init__(self, storage: str, written_bytes: int | None) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.written_bytes = written_bytes
        self.failed = False

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        if self.failed:
            super().append(path, offset, chunks)
            return
        self.failed = True
        super().append(path, offset, [b"".join(chunks)[: self.written_bytes]])
        raise StorageError("the disk is full", file=path)


@pytest.mark.parametrize("written_bytes", [0, 10, None])
def test_a_failed_append_acknowledges_nobody_and_the_file_is_given_up(
    stream: Stream, written_bytes: int | None
) -> None:
    stream.batch()
    before = files(stream.plan)
    store = TearingStore(stream.storage, written_bytes)
    with pytest.raises(StorageError, match="the disk is full"):
        stream.batch(store=store)
    assert files(stream.plan) == before
    assert rows(stream.plan, "SELECT max(checkpoint_id) FROM cairn.subtask_acks") == [1]
    stream.batch(store=store)
    assert files(stream.plan)[0] == before[0]
    assert len(files(stream.plan)) == 2
    stream.assert_whole(may_be_torn=True)


def test_a_late_attempt_neither_changes_nor_hides_a_later_checkpoints_bytes(
    stream: Stream,
) -> None:
    late = stream.task(0).steps()
    assert [next(late), next(late)] == ["begun", "restored"]
    for _ in range(2):
        stream.batch()
    with pytest.raises(FencedError):
        list(late)
    stream.assert_whole(may_be_torn=True)
    stream.batch()
    stream.assert_whole(may_be_torn=True)


@pytest.mark.parametrize("kill_at", KILLS)
def test_whoever_is_killed_while_a_file_is_continued_loses_nothing(
    stream: Stream, kill_at: str
) -> None:
    stream.batch()
    pipe, other_end = FORKS.Pipe()
    arguments = (other_end, facts_of(stream.plan), "executor", 0, kill_at, 1)
    process = FORKS.Process(target=run_task, args=arguments)
    process.start()
    assert pipe.poll(20)
    assert pipe.recv() == "restored"
    pipe.send("go")
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    was_acknowledged = kill_at in ("after COMMIT", "before record", "after record")
    acked = rows(stream.plan, "SELECT subtask FROM cairn.subtask_acks WHERE checkpoint_id = 2")
    assert acked == ([0] if was_acknowledged else [])
    assert_readable_up_to_their_size(stream)

    stream.batch()
    assert read_back(stream.plan, 2) == remembered(2)
    appends_to = kill_at == "after record"
    assert len(files(stream.plan)) == (1 if appends_to else 2), "given up, unless it is at rest"
    for _ in range(3):
        stream.batch()
    assert len(files(stream.plan)) == (1 if appends_to else 2), "the new one goes on"
    clean(stream)
    assert_readable_up_to_their_size(stream)
    assert read_back(stream.plan, 5) == remembered(5)


def assert_readable_up_to_their_size(stream: Stream) -> None:
    stored = objects(stream.plan)
    for path, size_bytes, _ in files(stream.plan):
        assert stored[path] >= size_bytes


def test_the_record_of_an_open_file_is_there_only_while_it_is_at_rest(stream: Stream) -> None:
    record = TaskManager(stream.plan, "executor").directory / "pool" / "0.open"
    seen: list[bool] = []

    class Looking(CountingStore):
        def append(self, path: str, offset: int, chunks: Any) -> None:
            seen.append(record.exists())
            super().append(path, offset, chunks)

    stream.batch()
    assert record.exists()
    stream.batch(store=Looking(stream.storage))
    assert seen == [False]
    assert record.exists()
