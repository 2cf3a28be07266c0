"""Who may write: the newest run that has begun a batch."""

from __future__ import annotations

from sqlalchemy import Connection, select

from cairn.batch_ref import BatchRef
from cairn.errors import FencedError
from metastore.models import Job


def require_epoch(connection: Connection, batch: BatchRef) -> str | None:
    """Keeps newer runs from beginning until the transaction ends; returns the job's query.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    job = connection.execute(
        select(Job.current_epoch, Job.query_id)
        .where(Job.job_id == batch.job_id)
        .with_for_update(read=True)
    ).one()
    if job.current_epoch != batch.epoch:
        raise FencedError(
            f"run {batch.epoch} was replaced by run {job.current_epoch}", job=batch.job
        )
    query_id: str | None = job.query_id
    return query_id
