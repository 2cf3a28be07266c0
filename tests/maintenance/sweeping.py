"""A synthetic job with orphans of every kind, and time that passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.cleanup.quarantine import Lease, condemn_due
from cairn.catalog.maintenance.leases import take_lease
from cairn.catalog.maintenance.plans import NewPlan, store_plan
from cairn.layout import (
    exclusive_file,
    manifest_file,
    shared_directory,
    shared_file,
    task_manager_file,
)
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.sweep import SweepReport, sweep_job
from cairn.storage.store import ObjectStore
from metastore.enums import MaintenanceAction
from tests.maintenance.synthetic import SUBTASKS, SyntheticJob

ANY_SHARE = {"CAIRN_MAX_DELETED_SHARE": "100", "CAIRN_MIN_MATCH_RATE": "0"}
"""Of the environment: in a test's root most objects are orphans."""

ANY_AGE = timedelta(0)
"""In place of the 24 h: the objects of a test are new."""


def allow_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no circuit breaker speak of the shares of a root."""
    for name, value in ANY_SHARE.items():
        monkeypatch.setenv(name, value)


def swept(job: SyntheticJob, **options: Any) -> SweepReport:
    """Sweeps a job whose objects are as old as they have to be."""
    return sweep_job(job.catalog, job.name, **{"unsafe_min_age": ANY_AGE, **options})


def cleaned_job(url: str, storage: str) -> SyntheticJob:
    """Returns a job that was cleaned, and whose root this metastore has had for long."""
    job = SyntheticJob(url, storage).create()
    cleanup_job(job.catalog, job.name)
    unguarded(job, "UPDATE cairn.ownerships SET began_at = began_at - interval '1 day'")
    return job


def lease_of(job: SyntheticJob) -> Lease:
    """Returns the lease of a sweep whose plan is stored."""
    lease = Lease(uuid4(), uuid4())
    new = NewPlan(
        job_id=job.job_id, action=MaintenanceAction.ORPHAN_SWEEP, plan={}, sha256="0" * 64
    )
    job.catalog.run("a plan", lambda c: store_plan(c, lease.run_id, new))
    job.catalog.run("a lease", lambda c: take_lease(c, lease.run_id, lease.holder))
    return lease


def condemn(job: SyntheticJob) -> int:
    """Commits the delete intents of what is due, and deletes nothing."""
    lease = lease_of(job)
    return job.catalog.run("condemning", lambda c: condemn_due(c, job.job_id, lease, most=100))


def orphans_of(job: SyntheticJob) -> list[str]:
    """Returns a path of each kind that an orphaned object can have."""
    [deleted] = job.execute(
        "SELECT path FROM cairn.physical_files WHERE job_id = :job AND status = 'DELETED' LIMIT 1"
    )[0]
    return [
        deleted,
        shared_file(job.job_id, 0, SUBTASKS, str(uuid4())),
        shared_file(job.job_id, 7, 99, str(uuid4())),
        task_manager_file(job.job_id, "tm-1", str(uuid4())),
        task_manager_file(job.job_id, "1-gone", str(uuid4())),
        exclusive_file(job.job_id, 3, 0, str(uuid4())),
        manifest_file(job.job_id, 2),
    ]


def unknown_to(job: SyntheticJob) -> list[str]:
    """Returns paths below the root that nothing of Cairn's has."""
    return [
        f"{job.job_id}/notes.txt",
        f"{job.job_id}/shared/a.seg",
        f"{job.job_id}/exclusive/{uuid4()}.seg",
        f"{job.job_id}/chk-2/_metadata.bak",
        f"{job.job_id}/another-1a2b3c4d/shared/subtask-0-1/{uuid4()}.seg",
        f"{shared_directory(job.job_id, 0, 2)}/{uuid4()}.seg.crc",
    ]


def put(store: ObjectStore, *paths: str) -> None:
    for path in paths:
        store.put(path, [path.encode()])


def unguarded(job: SyntheticJob, statement: str) -> None:
    """Changes rows as no role may, such as to let time pass."""

    def work(connection: Connection) -> None:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(statement))

    job.catalog.run("testing", work)


def let_time_pass(job: SyntheticJob, days: int = 8) -> None:
    """Makes all that is in quarantine older."""
    unguarded(
        job,
        "UPDATE cairn.quarantined_objects SET"  # noqa: S608 - a number
        f" quarantined_at = quarantined_at - interval '{days} days',"
        f" quarantined_until = quarantined_until - interval '{days} days'",
    )


def quarantine(job: SyntheticJob) -> dict[str, str]:
    """Returns the status of all that ever was in quarantine, by path."""
    rows = job.execute("SELECT path, status FROM cairn.quarantined_objects WHERE job_id = :job")
    return {str(path): str(status) for path, status in rows}


@contextmanager
def sweeping_before(job: SyntheticJob) -> Iterator[set[str]]:
    """Yields the job's objects; all that its checkpoints need is there at the end."""
    yield job.objects()
    assert job.needed <= job.objects()
