"""Signs of life of a run, and its end, as its driver knows them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, null, select, update

from cairn.batch_ref import RunRef
from metastore.models import Job, Run


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was renewed; `query_id` is that of the run's query, once it has begun."""

    query_id: str | None


def renew_lease(connection: Connection, run: RunRef) -> Lease | None:
    """Notes that a run is alive, also if it was over; None if it may not write any more."""
    current = select(Job.current_epoch).where(Job.job_id == run.job_id).scalar_subquery()
    renewed = connection.execute(
        update(Run)
        # A dropped job's current epoch is above all of its runs.
        .where(Run.run_id == run.run_id, Run.job_id == run.job_id, Run.epoch >= current)
        .values(seen_at=func.now(), ended_at=null())
        .returning(Run.query_id)
    ).one_or_none()
    return None if renewed is None else Lease(renewed.query_id)


def record_run_end(connection: Connection, run: RunRef) -> None:
    """Notes that a run's query is over. If a batch of it begins yet, that takes it back."""
    connection.execute(
        update(Run)
        .where(Run.run_id == run.run_id, Run.ended_at.is_(None))
        .values(ended_at=func.now())
    )
