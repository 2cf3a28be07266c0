"""Copying ranges of objects into a new one, on a directory, on moto and on a real S3 server."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from cairn.errors import BadInputError, CorruptSegmentError, RefusedError, StorageError
from cairn.storage import ObjectStore, open_store
from cairn.storage import s3 as s3_module
from cairn.storage.posix import PosixStore
from cairn.storage.ranges import LEAST_PART_BYTES, ByteRange
from cairn.storage.store import LONGEST_HOLD_S, TEMP_PREFIX, copy_in_time

if TYPE_CHECKING:
    from tests.storage.conftest import Exchange, FaultyProxy

SOURCE, OTHER, TARGET = "job-1/shared/a.seg", "job-1/shared/b.seg", "job-1/maintenance/r/c.seg"
CONTENT = random.Random(1).randbytes(2 * LEAST_PART_BYTES + 100_003)
SMALL = random.Random(2).randbytes(50_000)


@pytest.fixture
def store(url: str) -> ObjectStore:
    store = open_store(url)
    store.put(SOURCE, [CONTENT])
    store.put(OTHER, [SMALL])
    return store


def whole(offset: int = 0, size_bytes: int = len(CONTENT)) -> ByteRange:
    data = CONTENT[offset : offset + size_bytes]
    checksum = hashlib.sha256(data).hexdigest()
    return ByteRange(path=SOURCE, offset=offset, size_bytes=size_bytes, sha256=checksum)


def small(offset: int = 0, size_bytes: int = len(SMALL), sha256: str | None = None) -> ByteRange:
    return ByteRange(path=OTHER, offset=offset, size_bytes=size_bytes, sha256=sha256)


def content(ranges: list[ByteRange]) -> bytes:
    of = {SOURCE: CONTENT, OTHER: SMALL}
    return b"".join(of[one.path][one.offset : one.end] for one in ranges)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [small(7, 100), small(0, 3), small(40_000, 10_000)],
        [whole()],
        [whole(11, LEAST_PART_BYTES + 1), small(5, 9), whole(3, LEAST_PART_BYTES)],
        [small(), whole(0, LEAST_PART_BYTES + 1000), small()],
        [small(0, 20_000), small(20_000, 30_000), whole(9, 2 * LEAST_PART_BYTES)],
    ],
    ids=["nothing", "small", "large", "large first", "small first", "neighbours"],
)
def test_a_copy_is_the_concatenated_ranges(store: ObjectStore, ranges: list[ByteRange]) -> None:
    passed_bytes = store.copy(TARGET, ranges)
    assert store.get(TARGET) == content(ranges)
    assert 0 <= passed_bytes <= len(content(ranges))
    assert [one.path for one in store.list("")] == [TARGET, SOURCE, OTHER]


def test_a_copy_never_overwrites(store: ObjectStore) -> None:
    store.put(TARGET, [b"first"])
    for ranges in ([small()], [whole()]):
        with pytest.raises(RefusedError, match="already has") as caught:
            store.copy(TARGET, ranges)
        assert caught.value.file == TARGET
    assert store.get(TARGET) == b"first"


MISSING = "job-1/shared/none.seg"


@pytest.mark.parametrize("size_bytes", [10, LEAST_PART_BYTES + 10])
def test_a_copy_of_what_is_not_there_names_it_and_makes_nothing(
    store: ObjectStore, size_bytes: int
) -> None:
    short = ByteRange(path=SOURCE, offset=len(CONTENT) - size_bytes + 1, size_bytes=size_bytes)
    missing = ByteRange(path=MISSING, offset=0, size_bytes=size_bytes)
    for one, said in ((short, "not the file that was written"), (missing, "no such object")):
        with pytest.raises(StorageError, match=said) as caught:
            store.copy(TARGET, [whole(0, LEAST_PART_BYTES), one])
        assert (caught.value.file, caught.value.offset) == (one.path, one.offset)
        assert caught.value.retryable
    with pytest.raises(BadInputError, match="range"):
        store.copy(TARGET, [ByteRange(path=SOURCE, offset=-1, size_bytes=1)])
    assert [one.path for one in store.list("")] == [SOURCE, OTHER]


def test_bytes_that_pass_through_are_compared_with_their_checksum(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", cannot_copy)
    wrong = "00" * 32
    for ranges in ([small(0, 10, wrong)], [whole(), small(0, 10, wrong)]):
        with pytest.raises(CorruptSegmentError, match="SHA-256") as caught:
            store.copy(TARGET, ranges)
        assert caught.value.file == OTHER
    assert [one.path for one in store.list("")] == [SOURCE, OTHER]


def cannot_copy(*_: object) -> int:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_a_copy_that_is_held_up_after_its_intent_is_not_sent(store: ObjectStore) -> None:
    with pytest.raises(StorageError, match="held up"):
        copy_in_time(store, TARGET, [small()], time.monotonic() - LONGEST_HOLD_S - 1)
    copy_in_time(store, TARGET, [small()], time.monotonic())
    assert store.get(TARGET) == SMALL


# ----------------------------------------------------------------------- a directory


@pytest.fixture
def posix(tmp_path: Path) -> PosixStore:
    store = PosixStore(tmp_path)
    store.put(SOURCE, [CONTENT])
    store.put(OTHER, [SMALL])
    return store


def test_the_file_system_copies_and_no_byte_passes_through(posix: PosixStore) -> None:
    ranges = [whole(3, 200_000), small(), whole(0, 10)]
    assert posix.copy(TARGET, ranges) == 0
    assert posix.get(TARGET) == content(ranges)


@pytest.mark.parametrize("answers", ["an error", "nothing", "an error after some"])
def test_where_the_file_system_cannot_copy_the_bytes_are_read(
    posix: PosixStore, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    copies, copy_file_range = 0, os.copy_file_range

    def answer(source: int, target: int, count: int, offset: int, at: int) -> int:
        nonlocal copies
        copies += 1
        if answers == "nothing":
            return 0
        if answers == "an error after some" and copies % 2:
            return copy_file_range(source, target, count // 2, offset, at)
        return cannot_copy()

    monkeypatch.setattr(os, "copy_file_range", answer)
    ranges = [whole(3, 200_000), small(), whole()]
    assert posix.copy(TARGET, ranges) == len(content(ranges))
    assert posix.get(TARGET) == content(ranges)


def test_a_copy_is_fsynced_before_it_appears_and_its_directories_after(
    posix: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((name, (tmp_path / TARGET).exists()))

    monkeypatch.setattr(os, "fsync", record)
    posix.copy(TARGET, [whole()])
    (file, visible), *directories = synced
    assert Path(file).name.startswith(TEMP_PREFIX)
    assert not visible
    assert str((tmp_path / TARGET).parent) in {name for name, visible in directories if visible}


KILLED = """
import os, signal, sys
from cairn.storage import open_store
from cairn.storage.ranges import ByteRange
copy = os.copy_file_range
def once(source, target, count, offset, at):
    copy(source, target, count // 2, offset, at)
    os.kill(os.getpid(), signal.SIGKILL)
os.copy_file_range = once
open_store(sys.argv[1]).copy(sys.argv[2], [ByteRange(path=sys.argv[3], offset=0, size_bytes=1000)])
"""


def test_a_killed_copy_leaves_no_object_and_the_path_free(
    posix: PosixStore, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), TARGET, SOURCE]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL  # noqa: PLW1510
    assert [one.path for one in posix.list("")] == [SOURCE, OTHER]
    posix.copy(TARGET, [small()])
    assert posix.get(TARGET) == SMALL


def test_a_copy_does_not_appear_after_the_time_in_which_it_may(
    posix: PosixStore, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=r"writing took .* longer than"):
        PosixStore(tmp_path, longest_write_s=0).copy(TARGET, [small()])
    assert [one.path for one in posix.list("")] == [SOURCE, OTHER]


def test_a_copy_below_a_root_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nothing is where its directory was"):
        PosixStore(tmp_path / "gone").copy(TARGET, [small()])
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_source_is_not_read(posix: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "job-1/shared/link.seg").symlink_to(tmp_path / OTHER)
    with pytest.raises(BadInputError, match="symbolic links"):
        posix.copy(TARGET, [ByteRange(path="job-1/shared/link.seg", offset=0, size_bytes=5)])


# ------------------------------------------------------------------------------- S3


def open_uploads(s3_url: str) -> list[str]:
    bucket = s3_url.split("/")[2]
    client = boto3.Session().client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return [one["Key"] for one in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


@pytest.fixture
def on_s3(s3_url: str, proxy: FaultyProxy) -> ObjectStore:
    store = open_store(s3_url)
    store.put(SOURCE, [CONTENT])
    store.put(OTHER, [SMALL])
    proxy.requests.clear()
    return store


def test_the_server_copies_from_5_mib_on_and_smaller_ranges_pass_through(
    on_s3: ObjectStore, proxy: FaultyProxy
) -> None:
    ranges = [whole(0, LEAST_PART_BYTES), small(0, 100), whole(5, LEAST_PART_BYTES + 7)]
    # The last range fills the small one up to a part; too little is left of it for the server.
    assert on_s3.copy(TARGET, ranges[:2]) == 100
    assert on_s3.get(TARGET) == content(ranges[:2])
    parts = [one for one in proxy.requests if one.startswith("PUT") and "partNumber" in one]
    assert len(parts) == 2
    assert sum(one.startswith("GET") and "list-type" not in one for one in proxy.requests) == 2


def fail(exchange: Exchange) -> None:
    exchange.answer(500, {}, b"")


def lose_answer(exchange: Exchange) -> None:
    exchange.forward()
    exchange.hang_up()


def test_a_copy_that_fails_gives_its_parts_back(
    on_s3: ObjectStore, proxy: FaultyProxy, s3_url: str
) -> None:
    proxy.faults["PUT"] = [fail] * 20
    with pytest.raises(StorageError, match="cannot copy"):
        on_s3.copy(TARGET, [whole()])
    assert open_uploads(s3_url) == []
    assert [one.path for one in on_s3.list("")] == [SOURCE, OTHER]


def test_a_copy_whose_last_answer_was_lost_is_not_sent_again(
    on_s3: ObjectStore, proxy: FaultyProxy, s3_url: str
) -> None:
    proxy.faults["POST"] = [lambda one: one.pass_on(), lose_answer]
    with pytest.raises(StorageError, match="cannot copy") as caught:
        on_s3.copy(TARGET, [whole()])
    assert caught.value.retryable
    assert sum(one.startswith("POST") for one in proxy.requests) == 2
    # It may be there: a new try takes another path.
    assert on_s3.get(TARGET) == CONTENT
    with pytest.raises(RefusedError, match="already has"):
        on_s3.copy(TARGET, [whole()])
    assert open_uploads(s3_url) == []


def test_a_copy_that_took_too_long_is_not_completed(
    on_s3: ObjectStore, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "_LONGEST_COPY_S", 0)
    with pytest.raises(StorageError, match=r"writing took .* longer than"):
        on_s3.copy(TARGET, [whole()])
    assert open_uploads(s3_url) == []
    assert [one.path for one in on_s3.list("")] == [SOURCE, OTHER]
