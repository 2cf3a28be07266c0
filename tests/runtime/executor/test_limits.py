"""Local state at the limits of its machine: a full disk, a small map, few descriptors."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from cairn.errors import StorageError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor import local_store, open_stores
from cairn.runtime.executor.local_record import Position
from cairn.runtime.executor.local_store import LocalStore, MapGrownError
from cairn.runtime.executor.open_stores import most_open, open_local
from cairn.runtime.executor.private_files import disk_errors_below
from cairn.runtime.executor.task_manager import write_whole
from cairn.runtime.processing.spill import SpillDirectory
from cairn.state.entries import entry_prefix
from cairn.state.view import PUT, Changes, Overlay
from tests.runtime.tasks import Task, Write, new_run, read_back, remember, remembered

ROOT = Path(__file__).parents[3]
LARGE = entry_prefix(0, 9, b"large")


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Lowers a limit of this process for a while."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def put(store: LocalStore, size_bytes: int) -> None:
    with store.write() as writer:
        writer.apply(Changes([PUT], [LARGE], [random.Random(1).randbytes(size_bytes)]))
        writer.move_to(Position(1, "run", 1))


def large(number: int) -> Write:
    """Puts 60 kB in each key group beside what `remember` does."""

    def write(overlay: Overlay, groups: KeyGroupRange) -> None:
        remember(number)(overlay, groups)
        for group in range(groups.start, groups.end):
            overlay.put(entry_prefix(group, 9, b"%d" % number), os.urandom(60_000))

    return write


def test_a_disk_that_takes_no_more_is_a_storage_error_and_goes_on_when_it_does(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        for _ in range(2):
            with pytest.raises(StorageError, match=r"bytes free.*nothing is lost"):
                put(store, 4 << 20)
    with store.read() as reader:
        assert reader.position() is None
    put(store, 4 << 20)
    with store.read() as reader:
        reader.verify()
        assert len(reader.get(LARGE) or b"") == 4 << 20


def test_a_file_of_the_executor_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with (
        limited(resource.RLIMIT_FSIZE, 1 << 10),
        pytest.raises(StorageError, match="bytes free"),
    ):
        write_whole(tmp_path / "file", b"x" * 5000)
    assert list(tmp_path.iterdir()) == []


def test_a_job_goes_on_when_its_disk_has_room_again(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)

    def batch(number: int, attempt: int) -> None:
        Task(plan, "one", number, 0, attempt, large(number)).run()

    batch(0, 0)
    with limited(resource.RLIMIT_FSIZE, 400_000), pytest.raises(StorageError, match="bytes free"):
        batch(1, 1)
    for number in range(1, 4):
        batch(number, number + 1)
    state = read_back(plan, 3)
    assert {key: value for key, value in state.items() if key[3] != 9} == remembered(3)


@pytest.mark.slow
def test_each_operation_on_the_local_disk_may_fail(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    """Each error says what the disk has, and the next attempt is right."""
    command = [sys.executable, "-m", "tests.runtime.executor.failing_disk", metastore_url]
    done = subprocess.run(
        [*command, tmp_storage, str(tmp_path / "local")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(found) == 3
    assert min(found) > 20


def test_a_file_that_others_have_made_in_the_executors_directory_stays(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    Task(plan, "one", 0, 0, 0, remember(0)).run()
    [running] = (tmp_path / "local").glob("*/tm/*/running")
    others = [running / ".nfs000012", running.parents[1] / "lost+found"]
    for one in others:
        one.touch()
    Task(plan, "one", 1, 0, 1, remember(1)).run()
    assert all(one.exists() for one in others)


def test_rows_that_do_not_fit_the_spark_disk_are_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    rows = pa.RecordBatch.from_pydict({"n": list(range(100_000))})
    with SpillDirectory() as spill:
        file = spill.new_file(rows.schema)
        with (
            limited(resource.RLIMIT_FSIZE, 10_000),
            pytest.raises(StorageError, match=r"Spark's local disk.*spark\.local\.dir"),
        ):
            file.write(rows)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match=r"Spark's local disk"):
        SpillDirectory().new_file(rows.schema)


def test_errors_of_files_that_are_not_cairns_are_left_alone(tmp_path: Path) -> None:
    for raised in (
        PermissionError(13, "Permission denied", str(tmp_path / "theirs")),
        ConnectionResetError(104, "Connection reset by peer"),
    ):
        with pytest.raises(type(raised)), disk_errors_below(tmp_path / "ours"):
            raise raised


def test_the_map_grows_with_the_state(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "FIRST_MAP_BYTES", 1 << 20)
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    for number in range(12):
        Task(plan, "one", number, 0, number, large(number), materializes=number == 10).run()
    state = read_back(plan, 11)
    assert {key: value for key, value in state.items() if key[3] != 9} == remembered(11)


def test_a_transaction_that_the_map_is_too_small_for_succeeds_once_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "FIRST_MAP_BYTES", 1 << 20)
    store = LocalStore(tmp_path / "subtask-0-1")
    for _ in range(3):
        with pytest.raises(MapGrownError):
            put(store, 5 << 20)
    put(store, 5 << 20)
    with store.read() as reader:
        reader.verify()


def test_a_process_follows_another_one_that_has_made_the_map_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "FIRST_MAP_BYTES", 1 << 20)
    directory = tmp_path / "subtask-0-1"
    small = LocalStore(directory)
    put(small, 1000)
    command = [sys.executable, "-m", "tests.runtime.executor.local_writer", str(directory)]
    subprocess.run([*command, "grow", str(8 << 20)], check=True, cwd=ROOT)
    with small.read() as reader:
        reader.verify()
    put(small, 2 << 20)


def test_a_process_keeps_a_bounded_number_of_environments_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    # Beside those of the tests before, which a worker may have a hundred of.
    with limited(resource.RLIMIT_NOFILE, before + 128):
        with open_local(tmp_path / "subtask-0-200").read() as reader:
            for number in range(1, 200):
                with open_local(tmp_path / f"subtask-{number}-200").write() as writer:
                    writer.move_to(Position(number, "run", 1))
            assert len(os.listdir("/proc/self/fd")) - before <= 3 * (most_open() + 1)
            assert reader.position() is None  # in use, so not closed
        for number in range(1, 200):
            with open_local(tmp_path / f"subtask-{number}-200").read() as reader:
                assert reader.position() == Position(number, "run", 1)


def test_an_environment_that_is_not_used_any_more_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    left, kept = (tmp_path / f"subtask-{number}-2" for number in (0, 1))
    open_local(left)
    assert open_local(kept) is open_local(kept)
    assert len(os.listdir("/proc/self/fd")) == before + 6
    monkeypatch.setattr(open_stores, "IDLE_S", -1.0)
    open_local(kept)
    assert len(os.listdir("/proc/self/fd")) == before + 3
