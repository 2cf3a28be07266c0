"""What is an orphan by name, age and rows: a plan without I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cairn.catalog.cleanup.quarantine import Known, RootFacts
from cairn.errors import RefusedError
from cairn.layout import (
    exclusive_file,
    is_directory,
    is_file,
    is_unfinished,
    maintenance_directory,
    maintenance_file,
    manifest_file,
    owner_directory,
    owner_file,
    shared_directory,
    shared_file,
    task_manager_directory,
    task_manager_file,
)
from cairn.maintenance.orphans import (
    MIN_AGE,
    MOST_SKEW,
    Clocks,
    Reason,
    Suspect,
    clocks_of,
    judge,
    suspect_object,
    suspect_upload,
)
from cairn.storage.inventory import FoundObject, UnfinishedUpload
from metastore.enums import FileStatus, QuarantineStatus

JOB = "clicks-1a2b3c4d"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
CLOCKS = Clocks(storage=NOW, database=NOW)
OLD = NOW - timedelta(days=2)
ROOT = RootFacts(now=NOW, owned_since=NOW - timedelta(days=99), is_confirmed=False)
# Written down: pytest names tests by them, and its workers have to find the same names.
FILE_ID = "0b5f3f0e-6a51-4d0b-9c39-3c7ad5a1d5d2"
RUN_ID = "7f1f9d6c-2f0a-4b52-8c8e-9b1c7e0a4f11"

FILES = [
    shared_file(JOB, 3, 4, FILE_ID),
    task_manager_file(JOB, "7-ab12_x", FILE_ID),
    exclusive_file(JOB, 12, 3, FILE_ID),
    maintenance_file(JOB, RUN_ID, FILE_ID),
]
DIRECTORIES = [
    shared_directory(JOB, 3, 4),
    task_manager_directory(JOB, "7-ab12_x"),
    f"{JOB}/exclusive",
    f"{JOB}/chk-12",
    owner_directory(JOB),
    maintenance_directory(JOB, RUN_ID),
    f"{JOB}/maintenance",
    f"{JOB}/shared",
    f"{JOB}/taskmanager-owned",
]


def found(path: str, modified_at: datetime = OLD, *, is_plain: bool = True) -> FoundObject:
    return FoundObject(
        path=path, size_bytes=5, modified_at=modified_at, version="v", is_plain=is_plain
    )


def reason_of(path: str, modified_at: datetime = OLD, clocks: Clocks = CLOCKS) -> Reason:
    return suspect_object(found(path, modified_at), JOB, clocks).reason


def suspect(modified_at: datetime = OLD) -> Suspect:
    return suspect_object(found(FILES[0], modified_at), JOB, CLOCKS)


@pytest.mark.parametrize("path", FILES)
def test_all_files_of_the_layout_are_known_by_their_names(path: str) -> None:
    assert is_file(path)
    assert reason_of(path) is Reason.NO_ROW
    assert suspect_object(found(path, is_plain=False), JOB, CLOCKS).reason is Reason.UNKNOWN
    for other in (f"{path}.bak", f"x/{path}", path.upper(), path[:-1], f"{path}/a"):
        assert not is_file(other)
        assert reason_of(other) is Reason.UNKNOWN


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_unfinished_writes_are_known_in_directories_of_the_layout_only(directory: str) -> None:
    assert is_directory(directory)
    temp = f"{directory}/.tmp-{FILE_ID}"
    assert is_unfinished(temp)
    assert reason_of(temp) is Reason.UNFINISHED
    for other in (f"{directory}/.tmp-1", f"{directory}x/y/.tmp-{FILE_ID}", f"{temp}.seg"):
        assert reason_of(other) is Reason.UNKNOWN


def test_a_manifest_is_known_and_an_owner_object_is_none_of_them() -> None:
    assert reason_of(manifest_file(JOB, 12)) is Reason.NO_ROW
    assert reason_of(owner_file(JOB, 12)) is Reason.OWNER


@pytest.mark.parametrize(
    "path",
    [
        FILES[0].replace(JOB, "other-1a2b3c4d"),
        f"below/{FILES[0]}",
        f"{JOB}/maintenance/notes",
        f"{JOB}/{JOB}/shared/subtask-0-1/{FILE_ID}.seg",
        f"{JOB}/.cairn-probe-{FILE_ID}",
        f"{JOB}/shared/subtask-0-1/\udcff.seg",
        JOB,
    ],
)
def test_a_name_that_the_layout_does_not_have_is_kept(path: str) -> None:
    assert reason_of(path) is Reason.UNKNOWN
    upload = UnfinishedUpload(path, "id", OLD)
    assert suspect_upload(upload, JOB, CLOCKS).reason is Reason.UNKNOWN


def test_the_age_is_by_the_clock_that_says_less() -> None:
    edge = NOW - MIN_AGE
    assert reason_of(FILES[0], edge) is Reason.NO_ROW
    assert reason_of(FILES[0], edge + timedelta(microseconds=1)) is Reason.YOUNG
    assert reason_of(FILES[0], NOW + timedelta(days=3)) is Reason.YOUNG
    for clocks in (
        Clocks(storage=NOW - timedelta(seconds=1), database=NOW),
        Clocks(storage=NOW, database=NOW - timedelta(seconds=1)),
    ):
        assert reason_of(FILES[0], edge, clocks) is Reason.YOUNG
    for began_at, reason in ((edge, Reason.UPLOAD), (NOW, Reason.YOUNG)):
        upload = UnfinishedUpload(FILES[0], "id", began_at)
        assert suspect_upload(upload, JOB, CLOCKS).reason is reason


def test_clocks_may_differ_a_little_and_no_more() -> None:
    for sign in (1, -1):
        assert clocks_of(NOW + sign * MOST_SKEW, NOW).min_age == MIN_AGE
        with pytest.raises(RefusedError, match=r"storage says that it is 2026-11-23 1.*the clock"):
            clocks_of(NOW + sign * (MOST_SKEW + timedelta(seconds=1)), NOW)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (Known(), Reason.NO_ROW),
        (Known(file_status=FileStatus.DELETED), Reason.DELETED_BEFORE),
        (Known(file_status=FileStatus.SEALED, keeper="its row is SEALED"), Reason.KNOWN),
        (Known(keeper="checkpoint 7 is one to come"), Reason.KNOWN),
        (Known(quarantine=QuarantineStatus.QUARANTINED), Reason.QUARANTINED),
        (Known(quarantine=QuarantineStatus.CONDEMNED), Reason.QUARANTINED),
        (Known(quarantine=QuarantineStatus.RESTORED), Reason.RESTORED),
    ],
)
def test_what_the_metastore_knows_decides(known: Known, reason: Reason) -> None:
    assert judge(suspect(), known, ROOT) is reason
    assert judge(suspect(NOW), known, ROOT) is Reason.YOUNG


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_what_is_older_than_the_ownership_waits_for_somebody(is_confirmed: bool) -> None:
    kept = Reason.NO_ROW if is_confirmed else Reason.BEFORE_OWNED
    for since, reason in (
        (OLD - MOST_SKEW, Reason.NO_ROW),
        (OLD - MOST_SKEW + timedelta(seconds=1), kept),
        (NOW, kept),
    ):
        root = RootFacts(now=NOW, owned_since=since, is_confirmed=is_confirmed)
        assert judge(suspect(), Known(), root) is reason
