"""The end of a dropped job whose files are deleted: its directories, then its rows."""

from __future__ import annotations

import logging

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import delete_rows, end_ownerships, has_objects, has_ownership
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.layout import generation_of
from cairn.maintenance.deleter import delete_root
from cairn.maintenance.progress import Progress, silent
from cairn.ownership.check import require_owner
from cairn.storage import ObjectStore

_log = logging.getLogger(__name__)


def has_left(catalog: Catalog, job: JobFacts) -> bool:
    """Tells whether a job has a file or a directory that is not deleted."""
    return catalog.run("looking for files", lambda c: has_objects(c, job.job_id))


def holds_unknown(store: ObjectStore, job_id: str) -> int:
    """Returns how many objects are in a job's root besides those that say whose it is."""
    paths = (stored.path for stored in store.list(f"{job_id}/"))
    return sum(1 for path in paths if generation_of(path) is None)


def forget_job(
    catalog: Catalog, job: JobFacts, store: ObjectStore, *, progress: Progress = silent
) -> bool:
    """Deletes what is left of a dropped job once all its files are deleted; returns whether it did.

    An object that the metastore does not know keeps the job: who looks for its owner needs the
    rows. Killed in between, the next call continues.

    Raises:
        StorageError, MetastoreError: a store failed; the next call continues from there.
    """
    if has_left(catalog, job):
        return False
    if catalog.run("looking for an owner", lambda c: has_ownership(c, job.job_id)):
        require_owner(catalog, store, job.job_id)
        if holds_unknown(store, job.job_id):
            return False
        # Before the owner object: without it, a storage is one that is not mounted.
        catalog.run("giving up a root", lambda c: end_ownerships(c, job.job_id))
    if not delete_root(catalog, job, store):
        return False
    rows = 0
    # Step by step: one transaction for all of it would hold its locks for long.
    while step := catalog.run("deleting rows", lambda c: delete_rows(c, job.job_id)):
        rows += step
        progress("rows deleted", step)
    _log.info("job forgotten", extra={"job": job.name, "job_id": job.job_id, "rows": rows})
    return True
