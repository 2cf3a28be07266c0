"""The maintenance deletes below the storages that its own environment names, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.errors import BadInputError, CairnError, RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.deleter import delete_condemned, delete_directories
from cairn.maintenance.storages import STORAGES_VARIABLE, open_allowed, require_allowed
from cairn.storage import open_store
from tests.maintenance.synthetic import SyntheticJob, dump


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def facts(storage: str) -> JobFacts:
    return JobFacts(
        job_id="clicks-1a2b3c4d",
        name="clicks",
        storage=storage,
        num_retained=2,
        file_retention_ms=0,
        current_epoch=1,
    )


def assert_unchanged_by_cleanup(job: SyntheticJob, error: type[CairnError], match: str) -> None:
    rows, objects = dump(job.url), job.objects()
    for dry_run in (True, False):
        with pytest.raises(error, match=match):
            cleanup_job(job.catalog, job.name, dry_run=dry_run)
    assert (dump(job.url), job.objects()) == (rows, objects)


def test_without_an_allowed_storage_nothing_is_cleaned(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STORAGES_VARIABLE)
    assert_unchanged_by_cleanup(job, BadInputError, f"CAIRN_STORAGES is not set.*{job.storage}")
    monkeypatch.setenv(STORAGES_VARIABLE, "  ")
    assert_unchanged_by_cleanup(job, BadInputError, "CAIRN_STORAGES is not set")


def test_a_job_in_another_storage_is_neither_planned_nor_cleaned(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORAGES_VARIABLE, f"s3://bucket {job.storage}-2 {job.storage}/below")
    assert_unchanged_by_cleanup(job, RefusedError, f"{job.storage} is not below s3://bucket or ")
    monkeypatch.setenv(STORAGES_VARIABLE, f"s3://bucket {job.storage}")
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED


@pytest.mark.parametrize(
    ("allowed", "storage", "is_below"),
    [
        ("s3://bucket", "s3://bucket", True),
        ("s3://bucket/", "s3://bucket/state", True),
        ("s3://bucket/state", "s3://bucket/state/eu", True),
        ("s3://bucket/state", "s3://bucket/state-2", False),
        ("s3://bucket/state", "s3://bucket", False),
        ("s3://bucket", "s3://bucket-2", False),
        ("file:///bucket", "s3://bucket", False),
        ("file:///", "s3://bucket", False),
        ("file:///", "file:///state", True),
        ("/state", "file:///state/eu", True),
        ("/state/", "file:///state", True),
        ("file:///state", "file:///stately", False),
        ("file:///a%20b", "file:///a%20b/c", True),
        ("file:///state", "file:///state/../etc", False),
        ("file:///state", "file:///state/%2e%2e/etc", False),
        ("file:///state", "file:///state//eu", False),
        ("file:///state", "FILE:///state/eu", False),
        ("s3://bucket", "s3://bucket/", False),
    ],
)
def test_a_storage_is_below_another_by_whole_parts_of_its_normal_form(
    monkeypatch: pytest.MonkeyPatch, allowed: str, storage: str, is_below: bool
) -> None:
    monkeypatch.setenv(STORAGES_VARIABLE, f"s3://other {allowed}")
    if is_below:
        require_allowed(facts(storage), storage)
    else:
        with pytest.raises(RefusedError, match="where this process may delete"):
            require_allowed(facts(storage), storage)


@pytest.mark.parametrize("allowed", ["ftp://host/state", "s3://", "state:/"])
def test_an_allowed_storage_of_another_form_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    monkeypatch.setenv(STORAGES_VARIABLE, allowed)
    with pytest.raises(BadInputError, match="storage is one of"):
        require_allowed(facts("s3://bucket"), "s3://bucket")


def test_a_link_below_an_allowed_storage_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("allowed", "elsewhere"):
        (tmp_path / name).mkdir()
    link = tmp_path / "allowed" / "link"
    link.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv(STORAGES_VARIABLE, str(tmp_path / "allowed"))
    with pytest.raises(RefusedError, match="is not below"):
        open_allowed(facts(link.as_uri()))


def test_a_link_that_is_made_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("allowed/mine", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    given = tmp_path / "allowed" / "given"
    given.symlink_to(tmp_path / "allowed" / "mine")
    monkeypatch.setenv(STORAGES_VARIABLE, str(tmp_path / "allowed"))
    store = open_allowed(facts(given.as_uri()))
    given.unlink()
    given.symlink_to(tmp_path / "elsewhere")
    assert store.url == (tmp_path / "allowed" / "mine").as_uri()


def test_nobody_deletes_in_a_store_that_was_opened_without_asking(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORAGES_VARIABLE, "s3://bucket")
    own, store = facts(job.storage), open_store(job.storage)
    with pytest.raises(RefusedError, match="is not below s3://bucket"):
        delete_condemned(Catalog(job.url), own, store)
    with pytest.raises(RefusedError, match="is not below s3://bucket"):
        delete_directories(Catalog(job.url), own, store)
