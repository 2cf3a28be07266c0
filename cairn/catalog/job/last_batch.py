"""The last batch of a query that ends, and whether the driver that ends it may say so."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, func, select, text, update

from cairn.batch_ref import RunRef
from cairn.catalog.job.fencing import require_epoch
from cairn.errors import FencedError, RefusedError
from metastore.enums import CheckpointStatus
from metastore.models import Checkpoint, Job, Run

_OTHER_DRIVER = text("""
    SELECT j.current_epoch FROM cairn.jobs AS j
    WHERE j.name = :job
      AND j.current_epoch > (
        SELECT max(r.epoch) FROM cairn.runs AS r
        WHERE r.job_id = j.job_id AND r.supervisor_id = CAST(:supervisor_id AS uuid)
    )
""")


def require_no_other(connection: Connection, job: str, supervisor_id: UUID) -> None:
    """Refuses a driver whose runs another one has replaced: it must not take the job back.

    Raises:
        FencedError: a run that is not this driver's has begun after all of its own.
    """
    values = {"job": job, "supervisor_id": str(supervisor_id)}
    epoch = connection.scalar(_OTHER_DRIVER, values)
    if epoch is not None:
        raise FencedError(f"run {epoch} of another driver has replaced this one's", job=job)


def run_of(connection: Connection, job: str, supervisor_id: UUID) -> RunRef:
    """Returns the run that has begun batches last, which is of this driver.

    Raises:
        FencedError: it is not.
    """
    found = connection.execute(
        select(Run.job_id, Run.epoch, Run.run_id)
        .join(Job, Job.job_id == Run.job_id)
        .where(Job.name == job, Run.epoch == Job.current_epoch, Run.supervisor_id == supervisor_id)
    ).one_or_none()
    if found is None:
        raise FencedError("another driver has replaced this one's run", job=job)
    return RunRef(job=job, job_id=found.job_id, epoch=found.epoch, run_id=str(found.run_id))


def newest_confirmed(connection: Connection, job: str) -> int | None:
    """Returns the job's newest checkpoint if Spark is known to have committed it.

    Raises:
        RefusedError: there is a newer whole one, of which that is not known.
    """
    of_job = (
        select(func.max(Checkpoint.checkpoint_id))
        .join(Job, Job.job_id == Checkpoint.job_id)
        .where(Job.name == job)
    )
    confirmed = connection.scalar(of_job.where(Checkpoint.status == CheckpointStatus.CONFIRMED))
    whole = connection.scalar(of_job.where(Checkpoint.status == CheckpointStatus.COMPLETED))
    if whole is not None and whole > (confirmed or 0):
        raise RefusedError(
            "this start of the query has no batch yet, and whether Spark has committed the last "
            "one before is not known. Ask again after the next batch",
            job=job,
            checkpoint=whole,
        )
    return None if confirmed is None else int(confirmed)


def confirm_batch(connection: Connection, run: RunRef, query_id: str, batch_id: int) -> int:
    """Confirms the checkpoint of a batch that Spark has committed, and returns its id.

    The begin of the next batch does the same. This is for a query that has no next one.

    Raises:
        RefusedError: the batch has no whole checkpoint of this run.
    """
    require_epoch(connection, run, exclusive=True)
    of_batch = (
        Checkpoint.job_id == run.job_id,
        Checkpoint.epoch == run.epoch,
        Checkpoint.query_id == query_id,
        Checkpoint.batch_id == batch_id,
    )
    connection.execute(
        update(Checkpoint)
        .where(*of_batch, Checkpoint.status == CheckpointStatus.COMPLETED)
        .values(status=CheckpointStatus.CONFIRMED, confirmed_at=func.now())
    )
    confirmed = connection.scalar(
        select(Checkpoint.checkpoint_id).where(
            *of_batch, Checkpoint.status == CheckpointStatus.CONFIRMED
        )
    )
    if confirmed is None:
        raise RefusedError(
            f"batch {batch_id} of query {query_id} has no whole checkpoint of run {run.epoch}",
            job=run.job,
        )
    return int(confirmed)
