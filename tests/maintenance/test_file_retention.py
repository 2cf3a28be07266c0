"""Condemned objects wait: a metastore that is restored from a backup may need them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.maintenance.cleanup import CleanupReport, cleanup_job
from cairn.ownership.take import take_over
from cairn.settings import Settings
from cairn.storage import open_store
from tests.databases import copy_rows
from tests.maintenance.synthetic import SyntheticJob
from tests.runtime.tasks import Task, new_run, read_back, remember, remembered

HOUR_MS = 3_600_000
HOUR = timedelta(hours=1)


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage, file_retention_ms=HOUR_MS).create()


def test_by_default_condemned_files_wait_for_an_hour_at_least() -> None:
    assert Settings.from_options({}).file_retention_ms >= HOUR_MS


def age(job: SyntheticJob, minutes: int, paths: str = "%") -> None:
    """Makes the open intents of some paths older."""
    job.execute(
        "UPDATE cairn.deletions SET requested_at = requested_at - make_interval(mins => :minutes)"
        " WHERE job_id = :job AND done_at IS NULL AND path LIKE :paths",
        minutes=minutes,
        paths=paths,
    )


def deleted(report: CleanupReport) -> tuple[int, int]:
    return report.deleted_files, report.freed_bytes


def waiting(report: CleanupReport) -> tuple[int, int]:
    return report.waiting_files, report.waiting_bytes


def test_a_condemned_file_is_deleted_once_that_is_its_retention_ago(job: SyntheticJob) -> None:
    everything = job.objects()
    before = datetime.now(UTC)
    first = cleanup_job(job.catalog, job.name)
    assert first.condemned_files == job.DOOMED
    assert deleted(first) == (0, 0)
    assert waiting(first) == (job.DOOMED, job.FREED_BYTES)
    assert first.next_delete_at is not None
    assert before + HOUR <= first.next_delete_at <= datetime.now(UTC) + HOUR
    age(job, minutes=59)
    second = cleanup_job(job.catalog, job.name)
    assert (second.condemned_files, deleted(second)) == (0, (0, 0))
    assert second.next_delete_at == first.next_delete_at - timedelta(minutes=59)
    assert job.objects() == everything
    age(job, minutes=1)
    last = cleanup_job(job.catalog, job.name)
    assert deleted(last) == (job.DOOMED, job.FREED_BYTES)
    assert (waiting(last), last.next_delete_at) == ((0, 0), None)
    assert job.objects() == job.needed


def test_of_files_that_were_condemned_at_other_times_each_waits_for_its_own(
    job: SyntheticJob,
) -> None:
    cleanup_job(job.catalog, job.name)
    gone = set(sorted(job.doomed)[::2])
    for path in gone:
        age(job, minutes=61, paths=path)
    report = cleanup_job(job.catalog, job.name)
    assert report.deleted_files == len(gone)
    assert report.waiting_files == job.DOOMED - len(gone)
    assert job.objects() & gone == set()
    assert job.objects() >= job.needed


def test_a_dry_run_foretells_what_waits_and_what_is_deleted(job: SyntheticJob) -> None:
    forecast = cleanup_job(job.catalog, job.name, dry_run=True)
    done = cleanup_job(job.catalog, job.name)
    assert forecast.next_delete_at is not None
    assert done.next_delete_at is not None
    assert timedelta(0) <= done.next_delete_at - forecast.next_delete_at < timedelta(minutes=1)
    same = {"dry_run": False, "next_delete_at": None}
    assert replace(forecast, **same) == replace(done, **same)  # type: ignore[arg-type]
    age(job, minutes=61)
    forecast = cleanup_job(job.catalog, job.name, dry_run=True)
    assert deleted(forecast) == (job.DOOMED, job.FREED_BYTES)
    assert replace(forecast, dry_run=False) == cleanup_job(job.catalog, job.name)


def test_what_killed_cleanups_have_condemned_waits_as_well(job: SyntheticJob) -> None:
    cleanup_job(job.catalog, job.name)
    for _ in range(3):
        report = cleanup_job(job.catalog, job.name)
    assert waiting(report) == (job.DOOMED, job.FREED_BYTES)


def test_a_metastore_restored_from_a_backup_of_20_batches_ago_has_all_objects_that_it_needs(
    metastore_url: str, other_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    options = {"cairn.file-retention": "1 h"}
    plan = new_run(
        metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1, options=options
    )
    catalog, backup = Catalog(metastore_url), Catalog(other_url)

    def batch(number: int) -> None:
        materializes = number % 5 == 4
        Task(plan, "one", number, 0, 1, remember(number), materializes=materializes).run()
        if number % 5 == 0:
            cleanup_job(catalog, plan.job)

    for number in range(6):
        batch(number)
    copy_rows(metastore_url, other_url)
    for number in range(6, 26):
        batch(number)
    assert cleanup_job(catalog, plan.job).waiting_files > 20
    objects = {stored.path for stored in open_store(tmp_storage).list("")}
    needed = backup.run(
        "listing what is needed",
        lambda c: set(
            c.scalars(text("SELECT path FROM cairn.physical_files WHERE live_segments > 0"))
        ),
    )
    assert needed
    assert needed <= objects
    # In another database it is another metastore.
    take_over(backup, open_store(tmp_storage), plan.job_id)
    restored = new_run(
        other_url, tmp_storage, str(tmp_path / "other"), parallelism=1, options=options
    )
    Task(restored, "two", 6, 0, 1, remember(6)).run()
    Task(restored, "two", 7, 0, 2, remember(7), materializes=True).run()
    [newest] = backup.run(
        "reading", lambda c: c.execute(text("SELECT max(checkpoint_id) FROM cairn.checkpoints"))
    ).one()
    assert read_back(restored, newest) == remembered(8)
