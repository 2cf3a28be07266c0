"""The end of a dropped job whose files are deleted: its directories, then its rows."""

from __future__ import annotations

import logging

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import delete_rows, has_objects
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.maintenance.deleter import delete_root
from cairn.maintenance.progress import Progress, silent
from cairn.storage import ObjectStore

_log = logging.getLogger(__name__)


def forget_job(
    catalog: Catalog, job: JobFacts, store: ObjectStore, *, progress: Progress = silent
) -> bool:
    """Deletes what is left of a dropped job once all its files are deleted; returns whether it did.

    An object that the metastore does not know keeps the job: who looks for its owner needs the
    rows. Killed in between, the next call continues.

    Raises:
        StorageError, MetastoreError: a store failed; the next call continues from there.
    """
    if catalog.run("looking for files", lambda c: has_objects(c, job.job_id)):
        return False
    if not delete_root(job, store):
        return False
    rows = 0
    # Step by step: one transaction for all of it would hold its locks for long.
    while step := catalog.run("deleting rows", lambda c: delete_rows(c, job.job_id)):
        rows += step
        progress("rows deleted", step)
    _log.info("job forgotten", extra={"job": job.name, "job_id": job.job_id, "rows": rows})
    return True
