"""What every object store does, on a directory, on moto and on a real S3 server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cairn.errors import BadInputError, CairnError, RefusedError, StorageError
from cairn.storage import ObjectStore, normalise_url, open_store
from cairn.storage.store import check_path, check_prefix

PATH = "job-1a2b/taskmanager-owned/tm-7/f00d.seg"
CONTENT = bytes(range(256)) * 3

VERBS: dict[str, Callable[[ObjectStore, str], object]] = {
    "put": lambda store, path: store.put(path, [b"x"]),
    "get": lambda store, path: store.get(path),
    "list": lambda store, path: list(store.list(f"{path}/")),
    "delete_many": lambda store, path: store.delete_many([PATH, path]),
    "remove_directory": lambda store, path: store.remove_directory(path),
    "remove_empty": lambda store, path: store.remove_empty(path),
}


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


# moto looks whether a key exists and writes it in two steps: two writers can both get through.
ATOMIC = pytest.mark.parametrize("url", ["posix", "server"], indirect=True)


def paths(store: ObjectStore, prefix: str = "") -> list[str]:
    return [stored.path for stored in store.list(prefix)]


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([b"one", memoryview(b"-two-")[1:4], memoryview(bytearray(b"three"))], b"onetwothree"),
        ([b"", b"x" * 3_000_000], b"x" * 3_000_000),
        ([b""], b""),
        ([], b""),
    ],
    ids=["views", "large", "empty", "no chunks"],
)
def test_get_returns_the_concatenated_parts(
    store: ObjectStore, chunks: list[bytes | memoryview], content: bytes
) -> None:
    store.put(PATH, chunks)
    assert store.get(PATH) == content
    assert [(stored.path, stored.size_bytes) for stored in store.list("")] == [(PATH, len(content))]


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(offset=st.integers(0, 800), size_bytes=st.none() | st.integers(0, 800))
@example(offset=768, size_bytes=None)
@example(offset=768, size_bytes=0)
@example(offset=0, size_bytes=768)
@example(offset=769, size_bytes=None)
@example(offset=769, size_bytes=0)
@example(offset=768, size_bytes=1)
@example(offset=5000, size_bytes=10)
def test_a_range_is_exactly_its_bytes_or_an_error(
    store: ObjectStore, offset: int, size_bytes: int | None
) -> None:
    if not paths(store):
        store.put(PATH, [CONTENT])
    end = len(CONTENT) if size_bytes is None else offset + size_bytes
    if offset <= len(CONTENT) and end <= len(CONTENT):
        assert store.get(PATH, offset, size_bytes) == CONTENT[offset:end]
    else:
        with pytest.raises(StorageError, match="the object has 768 bytes") as caught:
            store.get(PATH, offset, size_bytes)
        assert (caught.value.file, caught.value.offset) == (PATH, offset)


def test_a_negative_range_is_bad_input(store: ObjectStore) -> None:
    store.put(PATH, [CONTENT])
    for offset, size_bytes in ((-1, None), (0, -1)):
        with pytest.raises(BadInputError, match="range"):
            store.get(PATH, offset, size_bytes)


@pytest.mark.parametrize("path", ["job-1/none.seg", "job-1/a.seg/below", "job-1"])
def test_a_missing_object_is_an_error_that_names_it(store: ObjectStore, path: str) -> None:
    store.put("job-1/a.seg", [b"a"])
    for size_bytes in (None, 0, 10):
        with pytest.raises(StorageError, match="no such object") as caught:
            store.get(path, 4, size_bytes)
        assert (caught.value.file, caught.value.offset) == (path, 4)
        assert caught.value.retryable


def test_an_existing_object_is_never_overwritten(store: ObjectStore) -> None:
    store.put(PATH, [b"first"])
    for content in (b"second", b"first"):
        with pytest.raises(RefusedError, match="already has") as caught:
            store.put(PATH, [content])
        assert caught.value.file == PATH
    assert store.get(PATH) == b"first"
    assert paths(store) == [PATH]


@ATOMIC
def test_of_concurrent_puts_from_threads_one_wins(store: ObjectStore) -> None:
    writers = 8
    barrier = Barrier(writers)

    def put(writer: int) -> bool:
        barrier.wait()
        try:
            store.put(PATH, [b"%d" % writer * 100_000])
        except (RefusedError, StorageError):
            return False
        return True

    with ThreadPoolExecutor(writers) as pool:
        won = list(pool.map(put, range(writers)))
    assert won.count(True) == 1
    assert store.get(PATH) == b"%d" % won.index(True) * 100_000
    assert paths(store) == [PATH]


RACE = """
import sys
from cairn.errors import RefusedError, StorageError
from cairn.storage import open_store
store = open_store(sys.argv[1])
list(store.list(""))
print("ready", flush=True)
sys.stdin.readline()
for number in range(30):
    try:
        store.put(f"job-1/{number:02}.seg", [sys.argv[2].encode() * 50_000])
        print(number)
    except (RefusedError, StorageError):
        pass
"""


@ATOMIC
def test_of_concurrent_puts_from_processes_one_wins(store: ObjectStore) -> None:
    names = ["a", "b"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, store.url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = {
        int(number): name
        for name, writer in zip(names, writers, strict=True)
        for number in writer.communicate(timeout=60)[0].split()
    }
    assert sorted(won) == list(range(30))
    for number, name in won.items():
        assert store.get(f"job-1/{number:02}.seg") == name.encode() * 50_000


def test_list_is_sorted_and_takes_its_prefix_as_text(store: ObjectStore) -> None:
    written = ["a-b/1.seg", "a/b.seg", "a/b/c.seg", "a/b0", "a0", "a.seg", "b/z.seg"]
    for path in written:
        store.put(path, [path.encode()])
    assert paths(store) == sorted(written)
    for prefix in ("a", "a/", "a/b", "a-", "b/z.seg", "a/b/", "c", "a/x/", "a.seg/", "a0/x"):
        assert paths(store, prefix) == sorted(p for p in written if p.startswith(prefix))


def test_list_says_when_an_object_was_written(store: ObjectStore) -> None:
    store.put(PATH, [b"x"])
    (stored,) = store.list("job-1a2b/")
    assert stored.modified_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - stored.modified_at) < timedelta(minutes=1)


def test_list_of_a_store_without_objects_is_empty(store: ObjectStore) -> None:
    assert paths(store) == []
    assert paths(store, "job-1/") == []


def test_stores_with_a_common_start_of_their_urls_are_apart(store: ObjectStore) -> None:
    other = open_store(f"{store.url}2")
    store.put(PATH, [b"x"])
    other.put("job-2/a.seg", [b"y"])
    assert paths(store) == [PATH]
    assert paths(other) == ["job-2/a.seg"]
    assert other.delete_many([PATH]) == {}
    assert store.get(PATH) == b"x"


def test_delete_many_deletes_what_it_is_told_and_nothing_else(store: ObjectStore) -> None:
    for path in ("a/1", "a/2", "a/10", "b/1"):
        store.put(path, [b"x"])
    assert store.delete_many(["a/1", "b/1", "a/missing", "a/2/below", "gone/x", "a/1"]) == {}
    assert paths(store) == ["a/10", "a/2"]
    assert store.delete_many([]) == {}


@pytest.mark.parametrize(
    "path", ["../out", "a/../../out", "/etc/out", "a//b", "./a", "", "a/", "a\0b", "a\nb", "a/.."]
)
def test_a_path_that_is_not_below_the_store_is_refused(path: str) -> None:
    with pytest.raises(BadInputError, match="path of an object"):
        check_path(path)
    with pytest.raises(BadInputError, match=r"(path of an object|prefix of a path)"):
        check_prefix(f"{path}/")


def test_every_verb_checks_its_path(store: ObjectStore) -> None:
    store.put(PATH, [b"x"])
    for refused in VERBS.values():
        with pytest.raises(BadInputError, match="path of an object"):
            refused(store, "a/../../out")
    assert paths(store) == [PATH]


def test_a_name_for_unfinished_writes_is_refused(store: ObjectStore) -> None:
    with pytest.raises(BadInputError, match="unfinished"):
        store.put("job-1/.tmp-1", [b"x"])


def test_check_writable_leaves_nothing_behind(store: ObjectStore) -> None:
    store.check_writable()
    store.check_writable()
    assert paths(store) == []


def test_the_probe_of_appending_leaves_nothing_behind(store: ObjectStore) -> None:
    assert store.can_append() is store.url.startswith("file:")
    assert paths(store) == []


def test_a_store_that_cannot_append_says_so_and_changes_nothing(moto_url: str) -> None:
    store = open_store(moto_url)
    store.put(PATH, [CONTENT])
    with pytest.raises(BadInputError, match="cannot be appended to") as caught:
        store.append(PATH, len(CONTENT), [b"more"])
    assert (caught.value.file, caught.value.offset) == (PATH, len(CONTENT))
    assert store.get(PATH) == CONTENT


def test_a_job_root_is_removed_whole_and_takes_no_object_with_it(store: ObjectStore) -> None:
    store.put("job-1/tm/1/a.seg", [b"x"])
    store.put("job-1/shared/a.seg", [b"x"])
    store.put("job-10/a.seg", [b"x"])
    store.delete_many(["job-1/shared/a.seg"])
    assert not store.remove_empty("job-1")
    assert paths(store) == ["job-1/tm/1/a.seg", "job-10/a.seg"]
    store.delete_many(["job-1/tm/1/a.seg"])
    assert store.remove_empty("job-1")
    assert store.remove_empty("job-1"), "it is gone"
    assert paths(store) == ["job-10/a.seg"]


def test_a_directory_that_is_removed_takes_no_object_with_it(store: ObjectStore) -> None:
    store.put("job-1/tm-1/a.seg", [b"x"])
    store.put("job-1/tm-10/a.seg", [b"x"])
    store.remove_directory("job-1/tm-1")
    assert paths(store) == ["job-1/tm-1/a.seg", "job-1/tm-10/a.seg"]
    store.delete_many(["job-1/tm-1/a.seg"])
    assert store.remove_directory("job-1/tm-1")
    assert store.remove_directory("job-1/tm-1"), "it is gone"
    assert paths(store) == ["job-1/tm-10/a.seg"]


def test_a_store_opened_from_its_own_url_is_the_same(store: ObjectStore, url: str) -> None:
    assert store.url == normalise_url(url) == open_store(store.url).url
    store.put(PATH, [b"x"])
    assert open_store(store.url).get(PATH) == b"x"


def test_errors_are_cairns_own_and_name_the_store(store: ObjectStore) -> None:
    with pytest.raises(CairnError) as caught:
        store.get(PATH)
    assert store.url in str(caught.value)
