"""All that lies in a storage, on a directory, on moto and on a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError, StorageError
from cairn.storage import ObjectStore, inventory_of, open_store
from cairn.storage.inventory import (
    MOST_RANGES,
    Inventory,
    KeyRange,
    UnfinishedUpload,
    key_ranges,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ROOT = "job-1a2b"
GROUPS = ("shared", "taskmanager-owned")
WRITTEN = [
    f"{ROOT}/owner/00000000000000000001",
    f"{ROOT}/chk-1/_metadata",
    f"{ROOT}/chk-12/_metadata",
    *(f"{ROOT}/exclusive/{n}-0-{n:08x}.seg" for n in range(5)),
    *(f"{ROOT}/shared/subtask-{n}-2/{c}{n}.seg" for n in range(2) for c in "09afz"),
    *(f"{ROOT}/taskmanager-owned/{n}-tm/{c}{n}.seg" for n in range(2) for c in "0-~"),
    f"{ROOT}/of nobody",
    f"{ROOT}/Z",
    f"{ROOT}/~",
]
BESIDE = [f"{ROOT}0/a.seg", f"{ROOT}-/a.seg", "job-2/a.seg"]


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


@pytest.fixture
def inventory(store: ObjectStore) -> Inventory:
    return inventory_of(store)


def s3_client(store: ObjectStore) -> tuple[S3Client, str, str]:
    """Returns a client, the bucket, and the prefix of the store's keys."""
    from cairn.storage.s3 import S3Store

    assert isinstance(store, S3Store)
    return store._client(), store._bucket, store._root


def paths(inventory: Inventory, keys: KeyRange) -> list[str]:
    return [found.path for found in inventory.list_all(keys)]


def test_the_ranges_of_a_root_hold_each_of_its_paths_once_and_in_order(
    store: ObjectStore, inventory: Inventory
) -> None:
    for path in (*WRITTEN, *BESIDE):
        store.put(path, [path.encode()])
    ranges = key_ranges(inventory, ROOT, GROUPS)
    assert len(ranges) >= 9
    assert [path for keys in ranges for path in paths(inventory, keys)] == sorted(WRITTEN)
    late = f"{ROOT}/taskmanager-owned/3-tm/new.seg"
    store.put(late, [b"x"])
    assert sum(late in paths(inventory, keys) for keys in ranges) == 1


class Directories:
    """The directories of a root as an inventory."""

    splits_directories = True

    def __init__(self, found: dict[str, list[str]]) -> None:
        self._found = found

    def directories(self, path: str) -> list[str]:
        return [f"{path}/{name}" for name in self._found.get(path, [])]


names = st.text("ab-/0~", min_size=1, max_size=4).map(lambda text: text.replace("/", "_"))


@given(
    found=st.lists(names, max_size=6),
    below=st.lists(names, max_size=6),
    path=st.lists(names, min_size=1, max_size=3).map("/".join),
)
def test_every_path_is_in_exactly_one_range(found: list[str], below: list[str], path: str) -> None:
    made = Directories({"job": sorted(found), **{f"job/{one}": sorted(below) for one in found}})
    ranges = key_ranges(made, "job", found[:2])  # type: ignore[arg-type]
    assert sum(keys.holds(f"job/{path}") for keys in ranges) == 1
    directory = f"job/{path}/"
    for keys in ranges:
        if keys.holds(f"{directory}x"):
            assert keys.may_hold_below(directory)


def test_a_root_with_very_many_directories_has_a_bounded_number_of_ranges() -> None:
    made = Directories({"job": [f"chk-{number}" for number in range(5000)]})
    ranges = key_ranges(made, "job")  # type: ignore[arg-type]
    assert MOST_RANGES / 2 < len(ranges) <= MOST_RANGES + 1
    assert sum(keys.holds("job/chk-4321/_metadata") for keys in ranges) == 1


def test_the_files_of_one_executor_are_many_ranges_beside_those_of_many_subtasks() -> None:
    subtasks = [f"subtask-{number}-200" for number in range(200)]
    below = {"job/shared": subtasks, "job/taskmanager-owned": ["1-tm"]}
    made = Directories({"job": ["shared", "taskmanager-owned"], **below})
    ranges = key_ranges(made, "job", ["shared", "taskmanager-owned"])  # type: ignore[arg-type]
    files = [f"job/taskmanager-owned/1-tm/{digit}.seg" for digit in "0123456789abcdef"]
    assert len({keys for keys in ranges for file in files if keys.holds(file)}) == len(files)


def test_what_is_listed_is_what_is_found(store: ObjectStore, inventory: Inventory) -> None:
    store.put(WRITTEN[0], [b"abc"])
    store.put(f"{WRITTEN[0]}0", [b"abcd"])
    [listed, _] = inventory.list_all(KeyRange(f"{ROOT}/"))
    assert inventory.find(WRITTEN[0]) == listed
    assert (listed.path, listed.size_bytes, listed.is_plain) == (WRITTEN[0], 3, True)
    for missing in (f"{ROOT}/owner", WRITTEN[0][:-1], f"{WRITTEN[0]}/x"):
        assert inventory.find(missing) is None


def test_another_object_of_the_same_path_has_another_version(
    store: ObjectStore, inventory: Inventory
) -> None:
    versions = set()
    for content in (b"abc", b"abd"):
        store.put("a/b", [content])
        found = inventory.find("a/b")
        assert found is not None
        versions.add(found.version)
        store.delete_many(["a/b"])
    assert len(versions) == 2


def test_the_storage_says_what_time_it_is(store: ObjectStore, inventory: Inventory) -> None:
    store.put("a", [b"x"])
    found = inventory.find("a")
    assert found is not None
    now = inventory.now()
    assert now.utcoffset() == timedelta(0)
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=10)
    assert timedelta(seconds=-2) < now - found.modified_at < timedelta(seconds=10)
    assert [one.path for one in inventory.list_all(KeyRange(""))] == ["a"]


def test_a_directory_with_an_object_is_not_removed_and_says_so(store: ObjectStore) -> None:
    store.put("job-1/tm-1/a.seg", [b"x"])
    store.put("job-1/tm-10/a.seg", [b"x"])
    assert not store.remove_directory("job-1/tm-1")
    assert not store.remove_directory("job-1")
    store.delete_many(["job-1/tm-1/a.seg"])
    assert store.remove_directory("job-1/tm-1")


@pytest.mark.parametrize("path", ["a/b.seg", "a/b.tmp-1", ".tmp-1/a", "../.tmp-1", "a//.tmp-1", ""])
def test_only_unfinished_writes_are_deleted_as_such(inventory: Inventory, path: str) -> None:
    with pytest.raises(BadInputError, match="path of an"):
        inventory.delete_unfinished(["a/.tmp-1", path])


def test_a_storage_that_is_not_there_is_never_shown_empty(tmp_path: Path) -> None:
    inventory = inventory_of(open_store(str(tmp_path / "none")))
    asks: list[Callable[[], object]] = [
        lambda: list(inventory.list_all(KeyRange("job/"))),
        lambda: inventory.find("job/a"),
        lambda: inventory.directories("job"),
        lambda: list(inventory.empty_directories("job")),
        lambda: inventory.delete_unfinished(["job/.tmp-1"]),
        inventory.now,
    ]
    for ask in asks:
        with pytest.raises(StorageError, match="nothing is where its directory was"):
            ask()


def test_a_bucket_that_is_not_there_is_never_shown_empty(moto_url: str) -> None:
    inventory = inventory_of(open_store("s3://cairn-no-such-bucket/x"))
    asks: list[Callable[[], object]] = [
        lambda: list(inventory.list_all(KeyRange("job/"))),
        lambda: inventory.find("job/a"),
        lambda: inventory.directories("job"),
        lambda: list(inventory.unfinished_uploads("job/")),
        inventory.now,
    ]
    for ask in asks:
        with pytest.raises(BadInputError, match="NoSuchBucket"):
            ask()


def test_unfinished_writes_and_links_are_listed_and_no_link_is_followed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    inventory = inventory_of(store)
    store.put("job/tm/a.seg", [b"x"])
    (tmp_path / "job/tm/.tmp-1").write_bytes(b"half")
    (tmp_path / "job/tm/link").symlink_to(tmp_path / "job/tm/a.seg")
    (tmp_path / "job/linked").symlink_to(tmp_path / "job/tm")
    found = {one.path: one.is_plain for one in inventory.list_all(KeyRange("job/"))}
    assert found == {
        "job/linked": False,
        "job/tm/.tmp-1": True,
        "job/tm/a.seg": True,
        "job/tm/link": False,
    }
    assert inventory.directories("job") == ["job/tm"]
    with pytest.raises(BadInputError, match="symbolic link"):
        inventory.find("job/linked/a.seg")
    with pytest.raises(BadInputError, match="symbolic link"):
        list(inventory.list_all(KeyRange("job/linked/")))
    assert inventory.delete_unfinished(["job/tm/.tmp-1", "job/tm/.tmp-2"]) == {}
    assert not (tmp_path / "job/tm/.tmp-1").exists()
    assert store.get("job/tm/a.seg") == b"x"


def test_a_file_that_was_moved_here_is_as_old_as_its_name(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a", [b"x"])
    os.utime(tmp_path / "a", (0, 0))
    found = inventory_of(store).find("a")
    assert found is not None
    assert datetime.now(UTC) - found.modified_at < timedelta(minutes=1)


def test_directories_without_entries_are_found_and_others_are_not(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("job/tm/a.seg", [b"x"])
    for name in ("chk-1", "exclusive", "shared/subtask-0-1", "unfinished"):
        (tmp_path / "job" / name).mkdir(parents=True)
    (tmp_path / "job/unfinished/.tmp-1").write_bytes(b"half")
    found = list(inventory_of(store).empty_directories("job"))
    assert [one.path for one in found] == ["job/chk-1", "job/exclusive", "job/shared/subtask-0-1"]
    assert all(datetime.now(UTC) - one.modified_at < timedelta(minutes=1) for one in found)


def test_unfinished_uploads_are_listed_and_aborted_one_by_one(moto_url: str) -> None:
    store = open_store(moto_url)
    inventory = inventory_of(store)
    client, bucket, root = s3_client(store)
    for key in ("job/a", "job/a", "job-2/a"):
        client.create_multipart_upload(Bucket=bucket, Key=root + key)
    one, other = inventory.unfinished_uploads("job/")
    assert one.path == other.path == "job/a"
    assert one.began_at <= datetime.now(UTC)
    gone = UnfinishedUpload("job/a", "no-such-upload", one.began_at)
    assert inventory.abort_uploads([one, gone]) == {}
    assert list(inventory.unfinished_uploads("job/")) == [other]
    assert len(list(inventory.unfinished_uploads("job-2/"))) == 1
    assert list(inventory_of(open_store(f"{moto_url}/below")).unfinished_uploads("")) == []


def test_unfinished_writes_that_were_copied_to_a_bucket_are_deleted(moto_url: str) -> None:
    store = open_store(moto_url)
    inventory = inventory_of(store)
    client, bucket, root = s3_client(store)
    for key in ("job/tm/.tmp-1", "job/tm/.tmp-2"):
        client.put_object(Bucket=bucket, Key=root + key, Body=b"half")
    assert inventory.delete_unfinished(["job/tm/.tmp-1", "job/tm/.tmp-3"]) == {}
    assert [one.path for one in inventory.list_all(KeyRange("job/"))] == ["job/tm/.tmp-2"]


def test_a_directory_that_another_tool_has_made_is_no_object(moto_url: str) -> None:
    store = open_store(moto_url)
    client, bucket, root = s3_client(store)
    client.put_object(Bucket=bucket, Key=f"{root}job/tm/", Body=b"")
    [found] = inventory_of(store).list_all(KeyRange("job/"))
    assert (found.path, found.is_plain) == ("job/tm/", False)
