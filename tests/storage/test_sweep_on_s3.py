"""The orphan sweep with everything on S3: objects, and uploads that nobody has finished."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cairn.layout import shared_file
from cairn.maintenance.orphans import Reason
from cairn.storage import open_store
from cairn.storage.s3 import S3Store
from tests.maintenance.sweeping import (
    allow_any_share,
    cleaned_job,
    let_time_pass,
    orphans_of,
    put,
    quarantine,
    swept,
    unknown_to,
)
from tests.maintenance.synthetic import SyntheticJob


@pytest.fixture
def job(metastore_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch) -> SyntheticJob:
    allow_any_share(monkeypatch)
    monkeypatch.setenv("CAIRN_STORAGES", moto_url)
    return cleaned_job(metastore_url, moto_url)


def begin_upload(job: SyntheticJob, path: str) -> None:
    store = open_store(job.storage)
    assert isinstance(store, S3Store)
    store._client().create_multipart_upload(Bucket=store._bucket, Key=store._key(path))


def uploads(job: SyntheticJob) -> set[str]:
    store = open_store(job.storage)
    assert isinstance(store, S3Store)
    found = store._client().list_multipart_uploads(Bucket=store._bucket).get("Uploads", [])
    return {one["Key"].removeprefix(store._root) for one in found}


def test_orphans_and_unfinished_uploads_are_set_aside_and_deleted(job: SyntheticJob) -> None:
    orphans, unknown = orphans_of(job), unknown_to(job)
    put(job.store, *orphans, *unknown)
    in_flight = shared_file(job.job_id, 0, 2, str(uuid4()))
    nobodys, odd = shared_file(job.job_id, 0, 2, str(uuid4())), f"{job.job_id}/notes"
    won = min(job.needed)
    job.catalog.run("intent", lambda c: job.add_file(c, in_flight, segments=1, seal=False))
    for path in (in_flight, nobodys, odd, won):
        begin_upload(job, path)
    # moto's uploads all began in 2010, long before the root was this metastore's.
    assert swept(job, dry_run=True).kept[Reason.BEFORE_OWNED.value] == 2
    job.execute("UPDATE cairn.ownerships SET confirmed_at = now() WHERE job_id = :job")
    first = swept(job)
    [sealed] = [path for path in quarantine(job) if path == won]
    assert sealed == won, "of a file that is sealed, another request has won"
    assert first.quarantined == len(orphans) + 2
    assert first.kept[Reason.UNKNOWN.value] == len(unknown) + 1
    let_time_pass(job)
    assert swept(job).deleted == len(orphans) + 2
    assert job.objects() == {*job.needed, *unknown, in_flight}
    assert uploads(job) == {in_flight, odd}
