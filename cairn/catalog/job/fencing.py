"""Who may write: the newest run that has begun a batch."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, Row, select

from cairn.errors import FencedError
from metastore.models import Job

_log = logging.getLogger(__name__)


def lock_job(connection: Connection, job_id: str, *, exclusive: bool) -> Row[*tuple[Any, ...]]:
    """Locks the job's row until the transaction ends; returns its names, epoch, query, next id.

    Beginning a batch takes the exclusive lock, so under either lock no newer run begins.
    """
    # Twice in every group commit, so without the key's schema, which may be long.
    return connection.execute(
        select(Job.current_epoch, Job.query_id, Job.next_checkpoint_id, Job.name, Job.job_id)
        .where(Job.job_id == job_id)
        .with_for_update(read=not exclusive)
    ).one()


def require_epoch(
    connection: Connection,
    job_id: str,
    epoch: int,
    *,
    exclusive: bool = False,
    may_begin: bool = False,
) -> Row[*tuple[Any, ...]]:
    """Locks the job's row like `lock_job` for a run that may write, and returns it.

    That is the newest run that has begun a batch; with `may_begin` a newer one, too, which has not
    begun yet.

    Raises:
        FencedError: a newer run has begun a batch; or this one has not, in this metastore.
    """
    job = lock_job(connection, job_id, exclusive=exclusive)
    # A higher epoch than the current one is no proof of being newer: it may have been given by a
    # metastore that was lost and is now a backup. Beginning a batch is what proves it.
    if job.current_epoch != epoch and not (may_begin and job.current_epoch < epoch):
        facts = {"job": job.name, "epoch": epoch, "current_epoch": job.current_epoch}
        _log.info("run %d of job %s is fenced", epoch, job.name, extra=facts)
        raise FencedError(f"run {epoch} was replaced by run {job.current_epoch}", job=job.name)
    return job
