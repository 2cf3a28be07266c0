from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.errors import BadInputError, RefusedError, StorageError
from cairn.storage import ObjectStore, open_store
from cairn.storage.posix import PosixStore
from cairn.storage.store import TEMP_PREFIX

PATH = "job-1/taskmanager-owned/tm/a.seg"


def files(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


HALF = """
import sys, time
from cairn.storage import open_store

class Chunks(list):
    def __iter__(self):
        yield b"x" * 1_000_000
        print("half", flush=True)
        time.sleep(60)

open_store(sys.argv[1]).put(sys.argv[2], Chunks())
"""


def test_a_killed_put_leaves_no_object_and_the_path_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path), PATH], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
    store = open_store(str(tmp_path))
    (left,) = files(tmp_path)
    assert Path(left).name.startswith(TEMP_PREFIX)
    assert list(store.list("")) == []
    assert list(store.list(f"{os.path.dirname(PATH)}/{TEMP_PREFIX}")) == []
    store.put(PATH, [b"whole"])
    assert store.get(PATH) == b"whole"


LOOP = """
import itertools, sys
from cairn.storage import open_store
store = open_store(sys.argv[1])
for number in itertools.count():
    store.put(f"job/{number % 7}/{number}.seg", [b"x" * 65_536] * 16)
    print(number, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [3, 17, 40])
def test_a_writer_killed_at_any_time_leaves_whole_objects_only(
    tmp_path: Path, delay_ms: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(delay_ms / 1000)
        writer.send_signal(signal.SIGKILL)
        reported = 1 + len(writer.stdout.read().split())
    store = open_store(str(tmp_path))
    found = list(store.list(""))
    assert {stored.size_bytes for stored in found} == {1_048_576}
    assert len(found) in (reported, reported + 1)
    assert all(store.get(stored.path) == b"x" * 1_048_576 for stored in found)


FULL = """
import resource, sys
from cairn.errors import StorageError
from cairn.storage import open_store
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    open_store(sys.argv[1]).put(sys.argv[2], [b"x" * 1_000_000])
except StorageError as error:
    print(error, error.retryable)
"""


def test_a_put_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), PATH],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert f"cannot write: File too large [file {PATH}] True" in said
    assert files(tmp_path) == []


def test_a_put_is_fsynced_before_it_appears_and_its_directories_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "new" / "store"
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (root / PATH).exists()))

    monkeypatch.setattr(os, "fsync", record)
    open_store(str(root)).put(PATH, [b"x"])
    (file, visible), *directories = synced
    assert Path(file).name.startswith(TEMP_PREFIX)
    assert not visible
    parents = [root / PATH, *(root / PATH).parents]
    made = parents[1 : parents.index(tmp_path) + 1]
    assert {name for name, visible in directories if visible} == {str(parent) for parent in made}


def test_appended_bytes_are_at_the_end_and_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    store.put(PATH, [b"one"])
    synced: list[bytes] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(store.get(PATH))

    monkeypatch.setattr(os, "fsync", record)
    store.append(PATH, 3, [b"two", memoryview(b"-three-")[1:6]])
    assert synced == [b"onetwothree"]
    assert store.get(PATH, 3, 3) == b"two"


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_an_append_to_another_end_is_refused_and_changes_nothing(
    tmp_path: Path, offset: int
) -> None:
    store = open_store(str(tmp_path))
    store.put(PATH, [b"one"])
    with pytest.raises(RefusedError, match="the object has 3 bytes") as caught:
        store.append(PATH, offset, [b"two"])
    assert (caught.value.file, caught.value.offset) == (PATH, offset)
    assert store.get(PATH) == b"one"


@pytest.mark.parametrize("path", ["job-1/none.seg", f"{PATH}/below", "job-1"])
def test_an_append_to_what_is_no_object_makes_none(tmp_path: Path, path: str) -> None:
    store = open_store(str(tmp_path))
    store.put(PATH, [b"one"])
    with pytest.raises(RefusedError, match="the object is missing"):
        store.append(path, 3, [b"two"])
    assert files(tmp_path) == [PATH]


def test_an_append_for_which_there_is_no_room_is_an_error(tmp_path: Path) -> None:
    open_store(str(tmp_path)).put(PATH, [b"x"])
    program = FULL.replace("put(sys.argv[2], ", "append(sys.argv[2], 1, ")
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), PATH],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert f"cannot append: File too large [file {PATH}, offset 1] True" in said


def test_removing_a_directory_takes_unfinished_writes_with_it_and_is_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    store.put("job-1/tm-1/a.seg", [b"x"])
    store.delete_many(["job-1/tm-1/a.seg"])
    (tmp_path / "job-1/tm-1" / f"{TEMP_PREFIX}1").write_bytes(b"half")
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", record)
    assert store.remove_directory("job-1/tm-1")
    assert not (tmp_path / "job-1/tm-1").exists()
    assert synced == [str(tmp_path / "job-1")]


def test_a_file_where_a_directory_was_is_kept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("job-1/tm-1", [b"x"])
    assert not store.remove_directory("job-1/tm-1")
    assert files(tmp_path) == ["job-1/tm-1"]


def test_a_delete_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    store.put(PATH, [b"x"])
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", record)
    store.delete_many([PATH])
    assert synced == [str((tmp_path / PATH).parent)]


@pytest.mark.parametrize("below", ["", "/state"])
def test_a_root_that_is_no_directory_is_bad_input(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = open_store(f"{tmp_path}/file{below}")
    with pytest.raises(BadInputError, match="name a directory; a part of the path is a file"):
        store.check_writable()
    assert (tmp_path / "file").read_text() == "not a directory"


def test_a_root_without_permission_is_bad_input(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        root = str(tmp_path)
    else:  # root may write anywhere but in the kernel's own tree
        root = "/sys/kernel"
    with pytest.raises(BadInputError, match=r"cannot write: .*(permission|mount)") as caught:
        open_store(root).check_writable()
    assert not caught.value.retryable
    assert root in str(caught.value)


def test_a_delete_that_fails_is_told_by_path() -> None:
    failed = open_store("/proc/self").delete_many(["comm", "missing"])
    assert list(failed) == ["comm"]
    assert "cannot delete: Operation not permitted" in failed["comm"]


ON_A_ROOT: dict[str, Callable[[ObjectStore], object]] = {
    "read": lambda store: store.get(PATH),
    "list": lambda store: list(store.list("job-1/")),
    "delete": lambda store: store.delete_many([PATH]),
    "remove": lambda store: store.remove_directory("job-1/tm-2"),
}


@pytest.mark.parametrize("verb", ON_A_ROOT)
@pytest.mark.parametrize("found", ["nothing", "a file"])
def test_a_missing_root_is_an_error_and_not_an_empty_store(
    tmp_path: Path, verb: str, found: str
) -> None:
    root = tmp_path / "disk"
    store = open_store(str(root))
    store.put(PATH, [b"x"])
    root.rename(tmp_path / "moved")
    if found == "a file":
        root.write_text("in the way")
    with pytest.raises(
        StorageError, match=f"cannot {verb}: {found} is where .*mount the"
    ) as caught:
        ON_A_ROOT[verb](store)
    assert caught.value.retryable
    root.unlink(missing_ok=True)
    (tmp_path / "moved").rename(root)
    assert files(root) == [PATH]
    ON_A_ROOT[verb](store)


def test_a_root_that_goes_while_it_is_listed_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    store = open_store(str(root))
    for path in ("a/1", "b/1"):
        store.put(path, [b"x"])
    listing = store.list("")
    assert next(listing).path == "a/1"
    root.rename(tmp_path / "moved")
    with pytest.raises(StorageError, match="nothing is where its directory was"):
        next(listing)


def test_check_writable_makes_the_root(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new" / "store"))
    store.check_writable()
    assert list(store.list("")) == []


THROUGH_LINK: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("link/new", [b"x"]),
    "get": lambda store: store.get("link/precious"),
    "list": lambda store: list(store.list("link/")),
    "list part": lambda store: list(store.list("link/pre")),
    "delete_many": lambda store: store.delete_many(["link/precious"]),
    "append": lambda store: store.append("link/precious", 1, [b"y"]),
    "remove_directory": lambda store: store.remove_directory("link"),
    "remove_directory below": lambda store: store.remove_directory("link/below"),
}


@pytest.mark.parametrize("verb", THROUGH_LINK)
def test_a_symbolic_link_does_not_lead_out_of_the_root(tmp_path: Path, verb: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    store = open_store(str(root))
    with pytest.raises(BadInputError, match=re.escape(f"leads to {outside}")):
        THROUGH_LINK[verb](store)
    assert files(outside) == ["precious"]
    assert list(store.list("")) == []


@pytest.mark.parametrize("verb", THROUGH_LINK)
def test_a_symbolic_link_does_not_lead_from_one_directory_to_another(
    tmp_path: Path, verb: str
) -> None:
    root = tmp_path / "root"
    (root / "theirs").mkdir(parents=True)
    (root / "theirs" / "precious").write_bytes(b"x")
    (root / "link").symlink_to("theirs")
    with pytest.raises(BadInputError, match=re.escape(f"leads to {root / 'theirs'}")):
        THROUGH_LINK[verb](open_store(str(root)))
    assert files(root / "theirs") == ["precious"]


def test_an_object_that_is_a_symbolic_link_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(secret)
    store = open_store(str(root))
    with pytest.raises(BadInputError, match="without symbolic links"):
        store.get("link")
    with pytest.raises(BadInputError, match="without symbolic links"):
        store.append("link", 1, [b"y"])
    assert secret.read_bytes() == b"x"
    assert list(store.list("")) == []


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = open_store(str(tmp_path / "root"))
    store.put(PATH, [b"x"])
    assert store.get(PATH) == b"x"
    assert files(tmp_path / "real") == [PATH]


def test_list_goes_on_when_files_vanish_meanwhile(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for path in ("a/1", "a/2", "b/1", "c/1"):
        store.put(path, [b"x"])
    listing = store.list("")
    assert next(listing).path == "a/1"
    store.delete_many(["a/2", "b/1"])
    (tmp_path / "b").rmdir()
    assert [stored.path for stored in listing] == ["c/1"]


def test_a_failing_disk_is_a_storage_error_that_names_the_file() -> None:
    with pytest.raises(StorageError, match="cannot read: Input/output error") as caught:
        open_store("/proc/self").get("mem", 0, 10)
    assert (caught.value.file, caught.value.offset) == ("mem", 0)


def test_an_object_does_not_appear_after_the_time_in_which_it_may(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, longest_write_s=0)
    with pytest.raises(StorageError, match=r"writing took .* longer than"):
        store.put(PATH, [b"late"])
    assert files(tmp_path) == []
