"""Scrubbing: damage is found, recorded with all that needs it, and taken back when it is over."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cairn.catalog.cleanup.scrubbing import damaged_segments, record_scrubbed
from cairn.catalog.job.segments import lists_at, segments_at
from cairn.errors import BadInputError, RefusedError, StorageError
from cairn.keygroups import KeyGroupRange
from cairn.maintenance import checked_segments, scrub
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.scrub import ScrubReport, scrub_job
from cairn.storage import ObjectStore, StoredObject, open_store
from tests.maintenance.synthetic import dump
from tests.runtime.file_rows import rows
from tests.runtime.merging_stream import Stream
from tests.runtime.test_verify import at, job_of_six_batches, needed, object_file

NEEDED = (
    "SELECT f.path, s.offset_bytes, s.size_bytes, s.segment_id FROM cairn.segments AS s"
    " JOIN cairn.physical_files AS f USING (file_id) WHERE s.status = 'LIVE'"
    " ORDER BY f.path, s.offset_bytes"
)


@pytest.fixture
def stream(metastore_url: str, storage: str, tmp_path: Path) -> Stream:
    """A job with bases, increments and changelog, on a directory and on S3."""
    return job_of_six_batches(metastore_url, storage, tmp_path / "local")


@pytest.fixture
def posix_stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    """The job, on a directory."""
    return job_of_six_batches(metastore_url, tmp_storage, tmp_path / "local")


def whole_scrub(stream: Stream, **options: Any) -> ScrubReport:
    return scrub_job(stream.plan.catalog, stream.plan.job, sample_percent=None, **options)


def known(stream: Stream) -> list[Any]:
    return stream.plan.catalog.run(
        "reading damage", lambda c: damaged_segments(c, stream.plan.job_id)
    )


def flip_a_bit(stream: Stream, path: str, offset: int) -> None:
    with object_file(stream, path).open("r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def checkpoints_that_read(stream: Stream, path: str, offset: int) -> list[int]:
    """Returns the retained checkpoints whose restore reads a segment."""
    found = []
    for checkpoint_id in rows(
        stream.plan,
        "SELECT checkpoint_id FROM cairn.checkpoints WHERE job_id = :job"
        " AND status IN ('COMPLETED', 'CONFIRMED') ORDER BY 1",
    ):
        with stream.plan.catalog.begin() as connection:
            whole = KeyGroupRange(0, stream.plan.max_parallelism)
            handles = [
                *segments_at(connection, stream.plan.job_id, checkpoint_id, whole),
                *lists_at(connection, stream.plan.job_id, checkpoint_id).values(),
            ]
        if (path, offset) in {(handle.path, handle.offset) for handle in handles}:
            found.append(checkpoint_id)
    return found


def test_a_whole_scrub_of_a_whole_job_reads_each_live_byte_and_finds_nothing(
    stream: Stream,
) -> None:
    live = rows(stream.plan, NEEDED)
    report = whole_scrub(stream)
    assert (report.files, report.segments) == (len(needed(stream)), len(live))
    assert report.read_bytes == report.needed_bytes == sum(size for _, _, size, _ in live)
    assert (report.found_segments, report.damaged_segments) == (0, 0)
    assert report.newest_whole_checkpoint is None
    unread = "SELECT path FROM cairn.physical_files WHERE live_segments > 0 AND verified_at IS NULL"
    assert rows(stream.plan, unread) == []


def test_each_missing_object_is_recorded_with_the_checkpoints_that_need_it(stream: Stream) -> None:
    gone = {at(stream, path) for path in needed(stream)[::2]}
    expected = {
        (path, offset): checkpoints_that_read(stream, path, offset)
        for path, offset, _, _ in rows(stream.plan, NEEDED)
        if path in gone
    }
    assert open_store(stream.storage).delete_many(sorted(gone)) == {}
    report = whole_scrub(stream)
    found = known(stream)
    assert {row["damage"] for row in found} == {"missing"}
    assert {(row["path"], row["offset_bytes"]): row["checkpoints"] for row in found} == expected
    assert any(expected.values())
    assert report.found_segments == report.damaged_segments == len(expected)


def test_a_changed_bit_and_a_lost_end_are_recorded_as_what_they_are(posix_stream: Stream) -> None:
    live = rows(posix_stream.plan, NEEDED)
    short = next(one for one in reversed(live) if one[1] > 0)
    corrupt = next(one for one in live if one[0] != short[0])
    root = f"{posix_stream.plan.job_id}/"
    short_file = object_file(posix_stream, short[0].removeprefix(root))
    os.truncate(short_file, short_file.stat().st_size - 1)
    flip_a_bit(posix_stream, corrupt[0].removeprefix(root), corrupt[1] + corrupt[2] - 1)
    whole_scrub(posix_stream)
    assert {(row["segment_id"], row["damage"]) for row in known(posix_stream)} == {
        (max((o for o in live if o[0] == short[0]), key=lambda o: o[1])[3], "short"),
        (corrupt[3], "corrupt"),
    }


def test_damage_is_over_once_the_object_is_back_whatever_the_share(posix_stream: Stream) -> None:
    path = needed(posix_stream)[-1]
    file = object_file(posix_stream, path)
    data = file.read_bytes()
    file.unlink()
    assert whole_scrub(posix_stream).damaged_segments > 0
    file.write_bytes(data)
    # Of what is known as damaged each scrub reads all.
    report = scrub_job(posix_stream.plan.catalog, posix_stream.plan.job, sample_percent=0.0001)
    assert report.damaged_segments == 0
    assert report.resolved_segments > 0
    assert known(posix_stream) == []
    file.unlink()
    assert whole_scrub(posix_stream).damaged_segments == report.resolved_segments


def test_samples_begin_with_what_was_read_longest_ago_and_reach_every_file(
    posix_stream: Stream,
) -> None:
    catalog, job = posix_stream.plan.catalog, posix_stream.plan.job
    files = len(needed(posix_stream))
    assert files > 4
    live = "SELECT path FROM cairn.physical_files WHERE live_segments > 0"
    in_time = f"{live} ORDER BY coalesce(verified_at, sealed_at), file_id"
    read_last = f"{live} AND verified_at = (SELECT max(verified_at) FROM cairn.physical_files)"  # noqa: S608
    read = 0
    for _ in range(files):
        before = rows(posix_stream.plan, in_time)
        report = scrub_job(catalog, job, sample_percent=25)
        assert report.files < files
        assert report.read_bytes >= report.needed_bytes / 4
        assert set(rows(posix_stream.plan, read_last)) == set(before[: report.files])
        read += report.files
        if read >= files:
            break
    unread = "SELECT path FROM cairn.physical_files WHERE live_segments > 0 AND verified_at IS NULL"
    assert rows(posix_stream.plan, unread) == []


class ForbiddenStore:
    """Fails a test that asks for any bytes."""

    def get(self, *_: object) -> bytes:
        raise AssertionError("a dry run reads nothing")


def test_a_dry_run_says_what_would_be_read_and_reads_nothing(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(stream.url)
    with monkeypatch.context() as patch:
        patch.setattr(scrub, "require_owner", lambda *_: None)
        patch.setattr(scrub, "open_allowed", lambda _: ForbiddenStore())
        forecast = whole_scrub(stream, dry_run=True)
    assert dump(stream.url) == before
    done = whole_scrub(stream)
    assert (forecast.files, forecast.read_bytes) == (done.files, done.read_bytes)


@pytest.mark.parametrize("percent", [0.0, -1.0, 101.0, float("nan")])
def test_a_share_that_is_none_is_refused(posix_stream: Stream, percent: float) -> None:
    with pytest.raises(BadInputError, match="a sample is more than 0 %"):
        scrub_job(posix_stream.plan.catalog, posix_stream.plan.job, sample_percent=percent)


# ------------------------------------------------------------------ what is not damage


def test_a_storage_that_is_gone_or_emptied_is_an_error_and_no_damage(posix_stream: Stream) -> None:
    root = Path(posix_stream.storage.removeprefix("file://"))
    for path in sorted(root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(StorageError, match="has no owner object"):
        whole_scrub(posix_stream)
    shutil.rmtree(root)
    with pytest.raises(StorageError):
        whole_scrub(posix_stream)
    assert known(posix_stream) == []


@dataclass
class BusyStore:
    """A store in which something happens before some read."""

    store: ObjectStore
    happens: Callable[[], None]
    at_read: int = 0
    reads: int = field(default=0)

    @property
    def url(self) -> str:
        return self.store.url

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.store.list(prefix)

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        if path.endswith(".seg"):
            self.reads += 1
            if self.reads == self.at_read + 1:
                self.happens()
        return self.store.get(path, offset, size_bytes)


def make_busy(
    monkeypatch: pytest.MonkeyPatch, stream: Stream, happens: Callable[[], None], at_read: int = 0
) -> BusyStore:
    busy = BusyStore(open_store(stream.storage), happens, at_read)
    monkeypatch.setattr(scrub, "open_allowed", lambda _: busy)
    monkeypatch.setattr(checked_segments, "READERS", 1)
    monkeypatch.setattr(scrub, "FILES_READ", 3)
    return busy


@pytest.mark.parametrize("at_read", range(5))
def test_what_a_cleanup_deletes_meanwhile_is_not_damaged(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch, at_read: int
) -> None:
    def go_on() -> None:
        for _ in range(4):
            posix_stream.batch(materializes=True)
        cleanup_job(posix_stream.plan.catalog, posix_stream.plan.job)

    oldest = object_file(posix_stream, needed(posix_stream)[0])
    busy = make_busy(monkeypatch, posix_stream, go_on, at_read)
    assert whole_scrub(posix_stream).damaged_segments == 0
    assert busy.reads > at_read
    assert not oldest.exists()
    assert rows(posix_stream.plan, "SELECT damage FROM cairn.damaged_segments") == []


def test_an_owner_who_took_over_meanwhile_may_have_deleted_what_is_missing(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def not_any_more(*_: object) -> None:
        asked.append(1)
        if len(asked) > 1:
            raise RefusedError("another metastore's")

    object_file(posix_stream, needed(posix_stream)[0]).unlink()
    monkeypatch.setattr(scrub, "require_owner", not_any_more)
    with pytest.raises(RefusedError):
        whole_scrub(posix_stream)
    assert rows(posix_stream.plan, "SELECT damage FROM cairn.damaged_segments") == []


def test_a_store_that_fails_is_an_error_and_what_was_read_before_is_recorded(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        busy.at_read = busy.reads  # always
        raise StorageError("the disk says no")

    busy = make_busy(monkeypatch, posix_stream, fail, at_read=4)
    with pytest.raises(StorageError, match="the disk says no"):
        whole_scrub(posix_stream)
    assert known(posix_stream) == []
    read = "SELECT path FROM cairn.physical_files WHERE verified_at IS NOT NULL"
    assert 0 < len(rows(posix_stream.plan, read)) < len(needed(posix_stream))


def test_one_answer_with_other_bytes_is_not_damage(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flipping(BusyStore):
        def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            data = super().get(path, offset, size_bytes)
            is_first = path.endswith(".seg") and self.reads == 1
            return bytes([data[0] ^ 1]) + data[1:] if is_first else data

    flipping = Flipping(open_store(posix_stream.storage), lambda: None)
    monkeypatch.setattr(scrub, "open_allowed", lambda _: flipping)
    monkeypatch.setattr(checked_segments, "READERS", 1)
    assert whole_scrub(posix_stream).damaged_segments == 0
    assert flipping.reads > 1


# -------------------------------------------------------------- beside batches and cleanups


def test_a_file_that_a_batch_has_locked_is_not_waited_for(posix_stream: Stream) -> None:
    plan = posix_stream.plan
    [held, *_] = ids = rows(
        plan, "SELECT file_id FROM cairn.physical_files WHERE live_segments > 0 ORDER BY 1"
    )
    with plan.catalog.begin() as batch:
        batch.execute(
            text("SELECT 1 FROM cairn.physical_files WHERE file_id = :id FOR UPDATE"), {"id": held}
        )
        plan.catalog.run(
            "recording",
            lambda c: record_scrubbed(c, plan.job_id, file_ids=ids, damage=[], whole_segments=[]),
        )
    unread = (
        "SELECT file_id FROM cairn.physical_files WHERE live_segments > 0 AND verified_at IS NULL"
    )
    assert rows(plan, unread) == [held]


def test_while_newer_ones_are_damaged_the_newest_whole_checkpoint_stays(
    posix_stream: Stream,
) -> None:
    def confirmed() -> list[int]:
        return rows(
            posix_stream.plan,
            "SELECT checkpoint_id FROM cairn.checkpoints WHERE status = 'CONFIRMED' ORDER BY 1",
        )

    def batches(number: int) -> None:
        for _ in range(number):
            posix_stream.batch()
            cleanup_job(posix_stream.plan.catalog, posix_stream.plan.job)

    path, _, _, _ = next(
        one
        for one in rows(posix_stream.plan, NEEDED)
        if checkpoints_that_read(posix_stream, one[0], one[1])[:1] > confirmed()[:1]
    )
    file = object_file(posix_stream, path.removeprefix(f"{posix_stream.plan.job_id}/"))
    data = file.read_bytes()
    file.unlink()
    whole = whole_scrub(posix_stream).newest_whole_checkpoint
    assert whole is not None
    batches(5)
    assert confirmed()[0] == whole
    file.write_bytes(data)
    whole_scrub(posix_stream)
    batches(1)
    assert whole not in confirmed()


def test_a_scrub_that_finds_far_too_much_damage_stops(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "MOST_DAMAGED", 0)
    monkeypatch.setattr(scrub, "FILES_READ", 1)
    for path in needed(posix_stream):
        object_file(posix_stream, path).unlink()
    report = whole_scrub(posix_stream)
    assert report.files == 1
    assert report.damaged_segments == report.found_segments > 0


def test_all_threads_together_keep_to_the_pace(posix_stream: Stream) -> None:
    needed_bytes = whole_scrub(posix_stream, dry_run=True).needed_bytes
    began_s = time.monotonic()
    whole_scrub(posix_stream, max_bytes_per_s=2 * needed_bytes)
    # The last one does not wait for its own share.
    assert time.monotonic() - began_s >= 0.25
