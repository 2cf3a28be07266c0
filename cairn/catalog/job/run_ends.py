"""Signs of life of a run, and its end, as its driver knows them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, func, null, select, update

from cairn.batch_ref import RunRef
from cairn.catalog.job.fencing import lock_job
from metastore.models import Job, Run

_SEEN_MIN = 15
"""A sign of life that is as old is renewed with its directories, as in `ends.sql`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was renewed; `query_id` is that of the run's query, once it has begun."""

    query_id: str | None


def renew_lease(connection: Connection, run: RunRef) -> Lease | None:
    """Notes that a run is alive, also if it was over; None if it may not write any more."""
    if was_over := _may_be_over(connection, run):
        # Under this lock cleanups give up the directories of runs that are over.
        lock_job(connection, run.job_id, exclusive=False)
    current = select(Job.current_epoch).where(Job.job_id == run.job_id).scalar_subquery()
    renewed = connection.execute(
        update(Run)
        # A dropped job's current epoch is above all of its runs.
        .where(Run.run_id == run.run_id, Run.job_id == run.job_id, Run.epoch >= current)
        .values(seen_at=func.now(), ended_at=null())
        .returning(Run.query_id)
    ).one_or_none()
    if renewed is None:
        return None
    if was_over:
        # No task does it after this: to them the run was never over.
        connection.execute(select(func.cairn.see_run(run.job_id, run.epoch)))
    return Lease(renewed.query_id)


def _may_be_over(connection: Connection, run: RunRef) -> bool:
    """Tells it early, so that none that a cleanup takes for over is missed."""
    had_sign = Run.seen_at >= func.now() - func.make_interval(0, 0, 0, 0, 0, _SEEN_MIN)
    is_fresh = and_(Run.ended_at.is_(None), had_sign)
    return bool(connection.scalar(select(exists().where(Run.run_id == run.run_id, ~is_fresh))))


def close_replaced_runs(connection: Connection, job_id: str) -> int:
    """Notes the end of runs that a newer one has replaced and that nobody has; returns how many.

    They are fenced for good. Of the current run only its driver knows.
    """
    return connection.execute(
        update(Run).where(*_is_replaced(job_id)).values(ended_at=func.now())
    ).rowcount


def count_replaced_runs(connection: Connection, job_id: str) -> int:
    """Returns how many runs of a job `close_replaced_runs` would close now."""
    return connection.scalar(select(func.count()).where(*_is_replaced(job_id))) or 0


def _is_replaced(job_id: str) -> tuple[ColumnElement[bool], ...]:
    current = select(Job.current_epoch).where(Job.job_id == job_id).scalar_subquery()
    return Run.job_id == job_id, Run.epoch < current, Run.ended_at.is_(None)


def record_run_end(connection: Connection, run: RunRef) -> None:
    """Notes that a run's query is over. If a batch of it begins yet, that takes it back."""
    connection.execute(
        update(Run)
        .where(Run.run_id == run.run_id, Run.ended_at.is_(None))
        .values(ended_at=func.now())
    )
