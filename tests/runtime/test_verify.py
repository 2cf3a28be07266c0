"""Objects compared with rows: what is wrong is found, and what only changes meanwhile is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.catalog.cleanup.verification import KnownFile
from cairn.errors import BadInputError, StorageError
from cairn.maintenance import merge_rows, verify
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.verify import Finding, Problem, Verification, verification_of
from cairn.storage import ObjectStore, StoredObject, open_store
from metastore.enums import FileStatus
from tests.runtime.file_rows import files, rows
from tests.runtime.merging_stream import Stream

NOBODYS = "taskmanager-owned/9-none/4a1ed2a2-0000-0000-0000-000000000000.seg"


def job_of_six_batches(url: str, storage: str, local_dir: Path, **options: object) -> Stream:
    """Returns a job with bases, increments, changelog, and files of all kinds that are deleted."""
    made = Stream(url, storage, str(local_dir))
    made.restart(parallelism=2, **options)
    for _ in range(2):
        made.batch()
        made.batch(materializes=True)
        made.batch()
        clean(made)
    return made


def clean(stream: Stream) -> None:
    cleanup_job(stream.plan.catalog, stream.plan.job)


@pytest.fixture
def stream(metastore_url: str, storage: str, tmp_path: Path) -> Stream:
    """The job, on a directory and on S3."""
    return job_of_six_batches(metastore_url, storage, tmp_path / "local")


@pytest.fixture
def posix_stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    """The job, on a directory."""
    return job_of_six_batches(metastore_url, tmp_storage, tmp_path / "local")


def verification(stream: Stream) -> Verification:
    return verification_of(stream.plan.catalog, stream.plan.job)


def found(stream: Stream, *, reads: bool = False) -> set[tuple[Problem, str]]:
    """Returns the problems, with the path below the job's root."""
    made = verification(stream)
    findings: list[Finding] = [*made.compare(), *(made.read() if reads else ())]
    return {(f.problem, f.path.removeprefix(f"{stream.plan.job_id}/")) for f in findings}


def needed(stream: Stream) -> list[str]:
    return [path for path, _, live in files(stream.plan) if live]


def at(stream: Stream, path: str) -> str:
    return f"{stream.plan.job_id}/{path}"


def object_file(stream: Stream, path: str) -> Path:
    return Path(stream.storage.removeprefix("file://")) / at(stream, path)


def test_of_a_whole_job_nothing_is_found(stream: Stream) -> None:
    assert found(stream, reads=True) == set()


def test_each_needed_object_that_is_missing_is_found_and_no_other(stream: Stream) -> None:
    store = open_store(stream.storage)
    assert len(needed(stream)) > 4
    gone = set(needed(stream)[::2])
    assert store.delete_many([at(stream, path) for path in gone]) == {}
    assert found(stream, reads=True) == {(Problem.MISSING, path) for path in gone}


def test_an_object_that_no_checkpoint_needs_any_more_may_be_missing(posix_stream: Stream) -> None:
    rows(posix_stream.plan, "UPDATE cairn.jobs SET file_retention_ms = 3600000 RETURNING 1")
    for _ in range(3):
        posix_stream.batch(materializes=True)
    clean(posix_stream)
    condemned = [path for path, _, _ in files(posix_stream.plan, "CONDEMNED")]
    assert condemned
    for path in condemned:
        object_file(posix_stream, path).unlink()
    assert found(posix_stream) == set()


def test_an_object_is_found_that_no_row_knows_or_that_was_deleted(stream: Stream) -> None:
    store = open_store(stream.storage)
    deleted = files(stream.plan, "DELETED")[0][0]
    for path in (NOBODYS, deleted):
        store.put(at(stream, path), [b"late"])
    assert found(stream) == {(Problem.UNKNOWN, NOBODYS), (Problem.DELETED, deleted)}
    [unknown] = [f for f in verification(stream).compare() if f.problem is Problem.UNKNOWN]
    assert (unknown.wanted_bytes, unknown.found_bytes) == (None, 4)
    assert unknown.modified_at is not None


@pytest.mark.parametrize("name", [b"\xff.seg", b"a\nb", "ö/ä".encode(), b"-"])
def test_an_object_may_have_any_name(posix_stream: Stream, name: bytes) -> None:
    file = object_file(posix_stream, os.fsdecode(name))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"?")
    assert found(posix_stream) == {(Problem.UNKNOWN, os.fsdecode(name))}


def test_an_object_that_is_shorter_than_sealed_is_found_and_a_longer_one_is_not(
    posix_stream: Stream,
) -> None:
    short, longer = needed(posix_stream)[:2]
    size_bytes = object_file(posix_stream, short).stat().st_size
    os.truncate(object_file(posix_stream, short), size_bytes - 1)
    with object_file(posix_stream, longer).open("ab") as file:
        file.write(b"of a batch that is under way")
    [finding] = verification(posix_stream).compare()
    assert (finding.problem, finding.path) == (Problem.SHORT, at(posix_stream, short))
    assert (finding.wanted_bytes, finding.found_bytes) == (size_bytes, size_bytes - 1)


def test_other_bytes_than_sealed_are_found_by_segment_where_they_are_read(
    posix_stream: Stream,
) -> None:
    [*_, (path, offset, size_bytes)] = rows(
        posix_stream.plan,
        "SELECT f.path, s.offset_bytes, s.size_bytes FROM cairn.segments AS s"
        " JOIN cairn.physical_files AS f USING (file_id) WHERE s.status = 'LIVE'"
        " ORDER BY s.offset_bytes, f.path",
    )
    assert offset > 0
    name = path.removeprefix(f"{posix_stream.plan.job_id}/")
    with object_file(posix_stream, name).open("r+b") as file:
        file.seek(offset + size_bytes - 1)
        last = file.read(1)
        file.seek(offset + size_bytes - 1)
        file.write(bytes([last[0] ^ 1]))
    assert found(posix_stream) == set()
    [finding] = verification(posix_stream).read()
    assert (finding.problem, finding.path) == (Problem.CORRUPT, path)
    assert (finding.offset_bytes, finding.wanted_bytes) == (offset, size_bytes)


def test_a_storage_that_is_not_there_is_not_taken_for_one_without_objects(
    posix_stream: Stream,
) -> None:
    shutil.rmtree(posix_stream.storage.removeprefix("file://"))
    with pytest.raises(StorageError, match="mount the disk"):
        list(verification(posix_stream).compare())


def test_an_unknown_job_is_refused(metastore_url: str, posix_stream: Stream) -> None:
    with pytest.raises(BadInputError, match="no job 'nobody'"):
        verification_of(posix_stream.plan.catalog, "nobody")


# ------------------------------------------------------------- beside writers and cleanups


@dataclass
class BusyStore:
    """Lists a storage in which something happens when so many objects have been listed."""

    store: ObjectStore
    happens: Callable[[int], None]

    def __post_init__(self) -> None:
        self._listed = count()

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for stored in self.store.list(prefix):
            self.happens(next(self._listed))
            yield stored

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        self.happens(next(self._listed))
        return self.store.get(path, offset, size_bytes)


def busy(stream: Stream, happens: Callable[[int], None]) -> Verification:
    store = BusyStore(open_store(stream.storage), happens)
    return replace(verification(stream), store=store)  # type: ignore[arg-type]


@pytest.mark.parametrize("across", [False, True])
def test_what_is_sealed_or_deleted_meanwhile_is_not_found(
    metastore_url: str,
    tmp_storage: str,
    tmp_path: Path,
    across: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rows are read one at a time, so they and the objects are of many moments.
    for module in (verify, merge_rows):
        monkeypatch.setattr(module, "PAGE_FILES", 1)
    monkeypatch.setattr(verify, "FILES_READ", 1)
    stream = job_of_six_batches(
        metastore_url, tmp_storage, tmp_path / "local", across_checkpoint_boundary=across
    )
    happened = 0

    def go_on(moment: int, now: int) -> None:
        nonlocal happened
        if now == moment:
            happened += 1
            stream.batch(materializes=True)
            stream.batch()
            clean(stream)

    for moment in range(0, 12, 2):
        assert list(busy(stream, partial(go_on, moment)).compare()) == []
    # Files that are continued are few.
    assert happened > (1 if across else 3)
    for moment in range(3):
        assert list(busy(stream, partial(go_on, moment)).read()) == []


def test_a_file_that_is_deleted_between_two_looks_at_it_is_not_missing(
    posix_stream: Stream,
) -> None:
    oldest = at(posix_stream, needed(posix_stream)[0])

    class Late(BusyStore):
        """Does not list an object at first, and has it deleted before it lists again."""

        lists = 0

        def list(self, prefix: str) -> Iterator[StoredObject]:
            self.lists += 1
            if self.lists > 1:
                for _ in range(4):
                    posix_stream.batch(materializes=True)
                clean(posix_stream)
            return (one for one in self.store.list(prefix) if one.path != oldest)

    store = Late(open_store(posix_stream.storage), lambda listed: None)
    made = replace(verification(posix_stream), store=store)  # type: ignore[arg-type]
    assert list(made.compare()) == []
    assert store.lists == 2
    assert not (Path(posix_stream.storage.removeprefix("file://")) / oldest).exists()


def test_findings_come_while_the_listing_goes_on(
    posix_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (verify, merge_rows):
        monkeypatch.setattr(module, "PAGE_FILES", 2)
    root = object_file(posix_stream, "aaa")
    root.mkdir()
    for number in range(20):
        (root / f"{number:02}").touch()
    listed = 0

    def note(number: int) -> None:
        nonlocal listed
        listed = number

    assert next(busy(posix_stream, note).compare()).problem is Problem.UNKNOWN
    assert listed < 10


# --------------------------------------------------------------------- the comparison alone

PATHS = st.text(alphabet="ab/-", min_size=1, max_size=4)


def known(path: str, status: FileStatus, size_bytes: int) -> KnownFile:
    return KnownFile(
        file_id=uuid4(), path=path, status=status, size_bytes=size_bytes, live_segments=1
    )


@given(
    st.dictionaries(PATHS, st.tuples(st.sampled_from(FileStatus), st.integers(1, 3))),
    st.dictionaries(PATHS, st.integers(1, 3)),
)
def test_suspects_are_the_paths_at_which_rows_and_objects_differ(
    of_rows: dict[str, tuple[FileStatus, int]], of_objects: dict[str, int]
) -> None:
    at = datetime.now(UTC)
    suspects = {
        path
        for path in of_rows.keys() | of_objects.keys()
        if path not in of_rows
        or (of_rows[path][0] is FileStatus.SEALED and of_objects.get(path, 0) < of_rows[path][1])
    }
    given_files = (known(path, *of_rows[path]) for path in sorted(of_rows))
    given_objects = (StoredObject(path, of_objects[path], at) for path in sorted(of_objects))
    assert {path for path, _ in verify._suspects(given_files, given_objects)} == suspects
