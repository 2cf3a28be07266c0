"""Who may write: the newest run that has begun a batch."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, Row, text

from cairn.errors import FencedError

_log = logging.getLogger(__name__)


# Two statements in one round trip: the second takes its snapshot when the lock is held.
_LOCK = """
    SELECT {function}(hashtextextended(:job_id, 0));
    SELECT current_epoch, query_id, next_checkpoint_id, max_parallelism, num_retained, name, job_id
    FROM cairn.jobs WHERE job_id = :job_id
"""
_EXCLUSIVE = text(_LOCK.format(function="pg_advisory_xact_lock"))
_SHARED = text(_LOCK.format(function="pg_advisory_xact_lock_shared"))


def lock_job(connection: Connection, job_id: str, *, exclusive: bool) -> Row[*tuple[Any, ...]]:
    """Locks a job until the transaction ends; returns its epoch, query, next id and such facts.

    Beginning a batch takes the exclusive lock, so under either lock no newer run begins. Those who
    wait are served in order, so that executors that share the lock cannot starve maintenance.
    """
    # No lock of the job's row: sharing that writes to it, and lets later sharers pass who waits.
    return connection.execute(_EXCLUSIVE if exclusive else _SHARED, {"job_id": job_id}).one()


def require_epoch(
    connection: Connection,
    job_id: str,
    epoch: int,
    *,
    exclusive: bool = False,
    may_begin: bool = False,
) -> Row[*tuple[Any, ...]]:
    """Locks the job like `lock_job` for a run that may write, and returns its facts.

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
