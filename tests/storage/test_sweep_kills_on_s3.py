"""Orphan sweeps of a bucket, on moto and on a real S3 server, killed at each of their steps."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import uuid4

import pytest

from cairn.layout import shared_file
from cairn.storage import inventory_of
from cairn.storage.s3 import S3Store
from tests.forked import Forked
from tests.maintenance.sweeping import (
    allow_any_share,
    cleaned_job,
    let_time_pass,
    orphans_of,
    put,
    quarantine,
    swept,
)
from tests.maintenance.synthetic import SyntheticJob
from tests.storage import killed_sweep

FEWEST_STEPS = 10
"""Commits of the plan, the lease, what is set aside and condemned, and the outcomes; requests."""


@pytest.fixture
def job(shared_metastore_url: str, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> SyntheticJob:
    monkeypatch.setenv("CAIRN_STORAGES", s3_url)
    allow_any_share(monkeypatch)
    made = cleaned_job(shared_metastore_url, s3_url)
    # moto says of every upload that it began in 2010, before the root was this metastore's.
    made.execute("UPDATE cairn.ownerships SET confirmed_at = now() WHERE job_id = :job")
    return made


@pytest.fixture
def orphans(job: SyntheticJob) -> list[str]:
    """Objects and an unfinished upload that are to be deleted now; the last is to be set aside."""
    *due, new = orphans_of(job)
    put(job.store, *due)
    upload = begin_upload(job)
    let_seconds_pass(job)
    swept(job)
    let_time_pass(job)
    put(job.store, new)
    let_seconds_pass(job)
    return [*due, upload, new]


def let_seconds_pass(job: SyntheticJob) -> None:
    """Waits until what was just written is older than now: a server's clock has whole seconds."""
    inventory = inventory_of(job.store)
    until = inventory.now() + timedelta(seconds=2)
    while inventory.now() < until:
        time.sleep(0.05)


def begin_upload(job: SyntheticJob) -> str:
    store, path = job.store, shared_file(job.job_id, 1, 2, str(uuid4()))
    assert isinstance(store, S3Store)
    store._client().create_multipart_upload(Bucket=store._bucket, Key=store._key(path))
    return path


def uploads(job: SyntheticJob) -> set[str]:
    return {one.path for one in inventory_of(job.store).unfinished_uploads(f"{job.job_id}/")}


def assert_safe(job: SyntheticJob, orphans: list[str]) -> None:
    """All that is needed is there, and what is gone has an intent that was committed before."""
    present, rows = job.objects(), quarantine(job)
    assert job.needed <= present
    gone = set(orphans) - present - uploads(job)
    assert {rows[path] for path in gone} <= {"CONDEMNED", "DELETED"}
    assert rows.get(orphans[-1], "QUARANTINED") == "QUARANTINED"


def assert_finished(job: SyntheticJob, orphans: list[str]) -> None:
    swept(job)
    assert job.objects() == {*job.needed, orphans[-1]}
    assert uploads(job) == set()
    assert quarantine(job) == dict.fromkeys(orphans[:-1], "DELETED") | {orphans[-1]: "QUARANTINED"}
    twice = job.execute(
        "SELECT path FROM cairn.quarantined_objects WHERE job_id = :job"
        " GROUP BY path HAVING count(*) > 1"
    )
    assert twice == [], "each orphan has one row, whoever was killed"


def test_killed_at_any_step_another_process_finishes(job: SyntheticJob, orphans: list[str]) -> None:
    # One after the other on the same root: each continues what those before have left.
    for number in range(1, 60):
        is_over = Forked(killed_sweep.sweep, job.url, job.name, number).run()
        assert_safe(job, orphans)
        if is_over:
            break
    assert FEWEST_STEPS < number < 59
    assert_finished(job, orphans)


def test_what_is_written_after_the_kill_is_not_deleted_by_the_retry(
    job: SyntheticJob, orphans: list[str]
) -> None:
    """The intents of the killed process are of other objects than what lies there by now."""
    again = orphans[1]
    for number in range(1, 60):
        assert not Forked(killed_sweep.sweep, job.url, job.name, number).run()
        if quarantine(job)[again] == "CONDEMNED":
            break
    assert again in job.objects(), "its intent is committed, and it is not deleted yet"
    job.store.delete_many([again])
    job.store.put(again, [b"what somebody else has written since"])
    report = swept(job)
    assert again in job.objects()
    assert report.deleted == len(orphans) - 2
    rows = job.execute(
        "SELECT status FROM cairn.quarantined_objects WHERE job_id = :job AND path = :path"
        " ORDER BY status",
        path=again,
    )
    assert rows == [("RELEASED",)]
    assert_safe(job, [path for path in orphans if path != again])
