"""The orphan sweep: it sets aside what nothing keeps, and deletes it a week later, and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.quarantine import (
    confirm_root,
    restore,
)
from cairn.catalog.cleanup.snapshot import facts_of_job
from cairn.catalog.cleanup.verification import KnownFile
from cairn.errors import BadInputError, RefusedError, StorageError
from cairn.layout import manifest_file, shared_file, task_manager_file
from cairn.maintenance import deleter, find_orphans, orphan_spill
from cairn.maintenance.deleter import delete_quarantined
from cairn.maintenance.orphans import Reason
from cairn.maintenance.sweep import sweep_job
from cairn.ownership.objects import write_owner
from cairn.ownership.take import take_over
from cairn.storage import inventory_of
from cairn.storage.inventory import FoundObject, KeyRange
from cairn.storage.posix_inventory import PosixInventory
from tests.databases import be_restored, copy_rows
from tests.maintenance.sweeping import (
    ANY_AGE,
    condemn,
    let_time_pass,
    put,
    quarantine,
    swept,
    unknown_to,
)
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.ownership.test_two_metastores import another


def root(job: SyntheticJob) -> Path:
    return Path(job.storage.removeprefix("file://")) / job.job_id


def test_every_kind_of_orphan_is_set_aside_and_deleted_when_its_time_is_over(
    job: SyntheticJob, orphans: list[str]
) -> None:
    unknown = unknown_to(job)
    put(job.store, *unknown)
    temp = root(job) / "taskmanager-owned/tm-1" / f".tmp-{uuid4()}"
    temp.write_bytes(b"half")
    first = swept(job)
    assert (first.orphans, first.quarantined) == (len(orphans) + 1, len(orphans) + 1)
    assert (first.deleted, first.removed_directories) == (0, 0)
    assert first.kept[Reason.UNKNOWN.value] == len(unknown)
    assert set(first.unknown) == set(unknown)
    assert job.objects() == {*job.needed, *orphans, *unknown}
    assert temp.exists()
    again = swept(job)
    assert (again.orphans, again.quarantined, again.deleted) == (0, 0, 0)
    assert again.kept[Reason.QUARANTINED.value] == len(orphans) + 1
    let_time_pass(job)
    last = swept(job)
    assert (last.deleted, last.failed_deletes) == (len(orphans) + 1, 0)
    assert last.freed_bytes == first.orphan_bytes
    assert job.objects() == {*job.needed, *unknown}
    assert not temp.exists()
    assert set(quarantine(job).values()) == {"DELETED"}


def test_a_name_that_is_no_text_keeps_a_sweep_from_nothing(
    job: SyntheticJob, orphans: list[str]
) -> None:
    for name in (b"\xff\xfe", b"a\nb", "\u202e".encode()):
        for where in ("", "shared/", "taskmanager-owned/"):
            odd = Path(os.fsdecode(f"{root(job)}/{where}".encode() + name))
            odd.mkdir()
            (odd / "x.seg").touch()
    assert swept(job).quarantined == len(orphans)


def test_a_dry_run_says_what_is_done_and_changes_nothing(
    job: SyntheticJob, orphans: list[str]
) -> None:
    swept(job)
    let_time_pass(job)
    put(job.store, more := shared_file(job.job_id, 0, 2, str(uuid4())))
    before = dump(job.url), job.objects()
    forecast = swept(job, dry_run=True)
    assert (dump(job.url), job.objects()) == before
    assert (forecast.quarantined, forecast.deleted) == (1, len(orphans))
    done = swept(job)
    # What is in quarantine is listed, too, by both.
    assert asdict(done) | {"dry_run": True, "removed_directories": 0} == asdict(forecast)
    assert quarantine(job)[more] == "QUARANTINED"


def test_nothing_younger_than_a_day_is_an_orphan(job: SyntheticJob, orphans: list[str]) -> None:
    (root(job) / "chk-1").mkdir()
    report = sweep_job(job.catalog, job.name)
    assert (report.orphans, report.removed_directories) == (0, 0)
    assert report.kept[Reason.YOUNG.value] == len(orphans)
    for path in orphans:
        os.utime(root(job).parent / path, (0, 0))
    assert sweep_job(job.catalog, job.name).orphans == 0, "the times of their bytes do not count"


def test_a_place_where_a_manifest_may_be_written_is_kept(job: SyntheticJob) -> None:
    put(job.store, manifest_file(job.job_id, 5), manifest_file(job.job_id, 6))
    assert swept(job).orphans == 0
    assert swept(job).kept[Reason.KNOWN.value] == 2


def test_a_file_that_is_being_written_is_kept_whenever_its_object_appears(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_before, appears_later = (
        task_manager_file(job.job_id, "tm-1", str(uuid4())) for _ in range(2)
    )

    def add(path: str) -> None:
        job.catalog.run("an upload", lambda c: job.add_file(c, path, segments=1, seal=False))

    listed = PosixInventory.list_all

    def slow(self: PosixInventory, keys: KeyRange) -> Iterator[FoundObject]:
        found = list(listed(self, keys))
        if keys.holds(appears_later) and appears_later not in job.objects():
            add(appears_later)
        yield from found

    add(listed_before)
    monkeypatch.setattr(PosixInventory, "list_all", slow)
    # The rows are read before what is listed with them: the one that is added meanwhile is missing.
    monkeypatch.setattr(find_orphans, "file_rows", no_rows)
    assert swept(job).orphans == 0
    assert swept(job).orphans == 0
    assert {listed_before, appears_later} <= job.objects()
    assert quarantine(job) == {}


def no_rows(*_: object, **__: object) -> Iterator[KnownFile]:
    """Reads no row, as if all had been added since."""
    return iter(())


def test_an_object_that_gets_a_row_leaves_the_quarantine(
    job: SyntheticJob, orphans: list[str]
) -> None:
    swept(job)
    let_time_pass(job)
    known = orphans[1]
    (root(job).parent / known).unlink()
    job.catalog.run("intent", lambda c: job.add_file(c, known, segments=1, seal=False))
    # Not even where a sweep has not looked at it yet.
    assert condemn(job) == len(orphans) - 1
    assert swept(job).released == 1
    assert quarantine(job)[known] == "RELEASED"
    assert known in job.objects()


def test_a_row_that_appears_after_the_intent_keeps_the_object(
    job: SyntheticJob, orphans: list[str]
) -> None:
    swept(job)
    let_time_pass(job)
    condemn(job)
    known = orphans[1]
    job.execute(
        "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope)"
        " VALUES (gen_random_uuid(), :job, 2, :path, 'shared')",
        path=known,
    )
    assert deleted_now(job) == len(orphans) - 1
    assert known in job.objects()
    assert swept(job).released == 1


def deleted_now(job: SyntheticJob) -> int:
    facts = job.catalog.run("reading", lambda c: facts_of_job(c, job.name))
    return delete_quarantined(job.catalog, facts, job.store, inventory_of(job.store)).files


@pytest.mark.parametrize("when", ["before the intent", "after the intent"])
def test_an_object_that_is_another_one_by_now_is_not_deleted(
    job: SyntheticJob, orphans: list[str], when: str
) -> None:
    swept(job)
    let_time_pass(job)
    if when == "after the intent":
        condemn(job)
    changed, same_size = orphans[1:3]
    (root(job).parent / changed).write_bytes(b"other bytes")
    (root(job).parent / same_size).write_bytes(same_size.encode())
    report = swept(job)
    assert report.deleted == len(orphans) - 2
    assert {changed, same_size} <= job.objects()
    # As what they are now they are orphans, and set aside anew.
    assert swept(job).quarantined == 2


def test_what_was_taken_out_stays_and_is_not_set_aside_again(
    job: SyntheticJob, orphans: list[str]
) -> None:
    swept(job)
    wanted = [orphans[3], f"{job.job_id}/nothing"]
    out = job.catalog.run("restoring", lambda c: restore(c, job.job_id, wanted))
    assert out == [orphans[3]]
    assert job.catalog.run("again", lambda c: restore(c, job.job_id, wanted)) == out
    let_time_pass(job)
    report = swept(job)
    assert report.deleted == len(orphans) - 1
    assert swept(job).kept[Reason.RESTORED.value] == 1
    assert job.objects() == {*job.needed, orphans[3]}
    gone = job.catalog.run("too late", lambda c: restore(c, job.job_id, orphans))
    assert gone == [orphans[3]]


def test_a_root_of_another_metastore_is_not_swept(job: SyntheticJob, orphans: list[str]) -> None:
    swept(job)
    let_time_pass(job)
    put(job.store, shared_file(job.job_id, 0, 2, str(uuid4())))
    write_owner(job.store, job.job_id, another(2))
    before = dump(job.url), job.objects()
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="is another one"):
            swept(job, dry_run=dry_run)
    assert (dump(job.url), job.objects()) == before


def test_a_root_that_is_taken_over_after_the_intents_keeps_its_objects(
    job: SyntheticJob, orphans: list[str]
) -> None:
    swept(job)
    let_time_pass(job)
    condemn(job)
    write_owner(job.store, job.job_id, another(2))
    with pytest.raises(RefusedError, match="is another one"):
        deleted_now(job)
    assert set(orphans) <= job.objects()


def test_a_restored_backup_sweeps_nothing_until_it_is_confirmed(
    job: SyntheticJob, orphans: list[str], other_url: str
) -> None:
    copy_rows(job.url, other_url)
    be_restored(other_url, of=job.url, timeline=7)
    restored = SyntheticJob(other_url, job.storage, name=job.name, job_id=job.job_id)
    with pytest.raises(RefusedError, match="is on timeline 7 now"):
        swept(restored)
    take_over(restored.catalog, restored.store, job.job_id)
    report = swept(restored)
    assert report.orphans == 0
    assert report.kept[Reason.BEFORE_OWNED.value] == len(orphans)
    restored.catalog.run("confirming", lambda c: confirm_root(c, job.job_id))
    assert swept(restored).quarantined == len(orphans)
    take_over(restored.catalog, restored.store, job.job_id)
    put(job.store, shared_file(job.job_id, 0, 2, str(uuid4())))
    assert swept(restored).orphans == 0, "a later take-over is confirmed anew"


@pytest.mark.parametrize("skew", [timedelta(hours=1), -timedelta(hours=1)])
def test_clocks_that_differ_by_an_hour_are_refused(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch, skew: timedelta
) -> None:
    monkeypatch.setattr(PosixInventory, "now", lambda self: datetime.now(UTC) + skew)
    before = dump(job.url), job.objects()
    with pytest.raises(RefusedError, match="one of the clocks is wrong by more than 5 min"):
        swept(job)
    assert (dump(job.url), job.objects()) == before
    assert set(orphans) <= job.objects()


def test_a_storage_that_may_not_be_cleaned_is_not_swept(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_STORAGES", "s3://bucket")
    with pytest.raises(RefusedError, match="is not below s3://bucket"):
        swept(job)
    monkeypatch.delenv("CAIRN_STORAGES")
    with pytest.raises(BadInputError, match="CAIRN_STORAGES is not set"):
        swept(job)
    assert set(orphans) <= job.objects()


def test_a_failed_listing_sets_nothing_aside(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = PosixInventory.list_all

    def fails(self: PosixInventory, keys: KeyRange) -> Iterator[FoundObject]:
        yield from listed(self, keys)
        raise StorageError("503 SlowDown")

    monkeypatch.setattr(PosixInventory, "list_all", fails)
    with pytest.raises(StorageError, match="503"):
        swept(job)
    assert quarantine(job) == {}
    assert set(orphans) <= job.objects()


def test_directories_that_nobody_claims_and_that_are_empty_go(job: SyntheticJob) -> None:
    for name in ("chk-1", "exclusive", "shared/subtask-7-9", "of-nobody", "shared/subtask-0-3"):
        (root(job) / name).mkdir(parents=True, exist_ok=True)
    job.execute(
        "INSERT INTO cairn.directories (job_id, path, scope, subtask, parallelism, epoch)"
        " VALUES (:job, :job || '/shared/subtask-0-3', 'shared', 0, 3, 2)"
    )
    (root(job) / "shared/subtask-8-9").mkdir()
    (root(job) / "shared/subtask-8-9" / f".tmp-{uuid4()}").write_bytes(b"half")
    assert swept(job).removed_directories == 3
    left = {one.relative_to(root(job)).as_posix() for one in root(job).rglob("*") if one.is_dir()}
    assert {"chk-1", "exclusive", "shared/subtask-7-9"} & left == set()
    assert {"of-nobody", "shared/subtask-0-3", "shared/subtask-8-9"} <= left


def test_a_large_root_is_swept_in_batches(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_orphans, "BATCH_SUSPECTS", 2)
    monkeypatch.setattr(orphan_spill, "BATCH_ORPHANS", 2)
    monkeypatch.setattr(deleter, "BATCH_OBJECTS", 2)
    monkeypatch.setattr("cairn.maintenance.sweep.BATCH_OBJECTS", 2)
    assert swept(job).quarantined == len(orphans)
    let_time_pass(job)
    assert swept(job).deleted == len(orphans)
    assert job.objects() == job.needed


def test_a_job_that_is_unknown_is_bad_input(metastore_url: str) -> None:
    with pytest.raises(BadInputError, match="no job 'nobody'"):
        sweep_job(Catalog(metastore_url), "nobody", unsafe_min_age=ANY_AGE)
