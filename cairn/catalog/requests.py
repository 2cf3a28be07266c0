"""Requests to a job's running query: asking, and what its driver answers.

A request is a row, so that it outlives whoever asked and whoever answers. A job has one at a time:
a newer one withdraws it. The parallelism of the newest rescale that has not failed is the job's
until its code names another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, func, insert, select, text, update

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.jobs import find_job
from cairn.errors import BadInputError, RefusedError
from metastore.enums import RequestKind, RequestStatus
from metastore.models import Job, RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it is now; `status` says whether it is over."""

    request_id: UUID
    job: str
    job_id: str
    kind: RequestKind
    status: RequestStatus
    parallelism: int | None
    instead_of: int | None
    savepoint: str | None
    checkpoint_id: int | None
    message: str | None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.status not in _UNDONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a new request."""

    request_id: UUID
    kind: RequestKind
    parallelism: int | None = None
    savepoint: str | None = None


_UNDONE = (RequestStatus.OPEN, RequestStatus.TAKEN)
_COLUMNS = (
    RunRequest.request_id,
    Job.name.label("job"),
    RunRequest.job_id,
    RunRequest.kind,
    RunRequest.status,
    RunRequest.parallelism,
    RunRequest.instead_of,
    RunRequest.savepoint,
    RunRequest.checkpoint_id,
    RunRequest.message,
)
_REQUESTS = select(*_COLUMNS).join(Job, Job.job_id == RunRequest.job_id)


def ask(connection: Connection, job: str, wanted: Wanted) -> Request:
    """Asks something of a job's running query, instead of what it was asked before.

    `wanted.request_id` makes asking twice the same as once.

    Raises:
        BadInputError: there is no such job, it has fewer key groups than `parallelism`, or it has
            that parallelism.
        RefusedError: no driver would do it: the query is over, or was not started by `cairn.run`.
    """
    found = find_job(connection, job, locked=True)
    known = connection.execute(
        _REQUESTS.where(RunRequest.request_id == wanted.request_id)
    ).one_or_none()
    if known is not None:
        return _request(known)
    run = _require_supervised(connection, found)
    _check_parallelism(connection, found, run, wanted)
    connection.execute(
        update(RunRequest)
        .where(RunRequest.job_id == found.job_id, RunRequest.status.in_(_UNDONE))
        .values(
            status=RequestStatus.WITHDRAWN, ended_at=func.now(), message="a newer request is there"
        )
    )
    connection.execute(
        insert(RunRequest).values(
            request_id=wanted.request_id,
            job_id=found.job_id,
            kind=wanted.kind,
            parallelism=wanted.parallelism,
            savepoint=wanted.savepoint,
        )
    )
    return request(connection, wanted.request_id)


def check(connection: Connection, job: str, wanted: Wanted) -> int:
    """Raises what `ask` would raise, and changes nothing; returns the parallelism of the run."""
    found = find_job(connection, job)
    run = _require_supervised(connection, found)
    _check_parallelism(connection, found, run, wanted)
    return int(run.parallelism)


def request(connection: Connection, request_id: UUID) -> Request:
    """Returns a request as it is now.

    Raises:
        BadInputError: it is not there: its job was dropped.
    """
    query = _REQUESTS.where(RunRequest.request_id == request_id)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise BadInputError(f"request {request_id} is not there any more: its job was dropped")
    return _request(found)


def is_running(connection: Connection, job_id: str) -> bool:
    """Tells whether somebody does what is asked of a job now."""
    run = connection.execute(_NEWEST_RUN, {"job_id": job_id}).one_or_none()
    return run is not None and not run.is_over and run.supervisor_id is not None


def undone_request(connection: Connection, job: str) -> Request | None:
    """Returns what is asked of a job and not over; None: nothing, or there is no such job yet."""
    found = connection.execute(
        _REQUESTS.where(Job.name == job, RunRequest.status.in_(_UNDONE))
    ).one_or_none()
    return None if found is None else _request(found)


def newest_rescale(connection: Connection, job: str) -> Request | None:
    """Returns the job's newest rescale that has not failed, and was not withdrawn or overruled."""
    counts = (*_UNDONE, RequestStatus.DONE)
    found = connection.execute(
        _REQUESTS.where(
            Job.name == job,
            RunRequest.kind == RequestKind.RESCALE,
            RunRequest.status.in_(counts),
            RunRequest.overruled_at.is_(None),
        )
        .order_by(RunRequest.status.in_(_UNDONE).desc(), RunRequest.requested_at.desc())
        .limit(1)
    ).one_or_none()
    return None if found is None else _request(found)


def take(connection: Connection, asked: Request, *, instead_of: int) -> bool:
    """Notes that a driver does a request; returns whether it still is to be done.

    `instead_of` is the parallelism that the query's code gives the job.
    """
    lock_job(connection, asked.job_id, exclusive=True)
    taken = connection.execute(
        update(RunRequest)
        .where(RunRequest.request_id == asked.request_id, RunRequest.status == RequestStatus.OPEN)
        .values(status=RequestStatus.TAKEN, taken_at=func.now(), instead_of=instead_of)
    )
    return taken.rowcount == 1 or request(connection, asked.request_id).status in _UNDONE


def finish(
    connection: Connection,
    asked: Request,
    status: RequestStatus,
    *,
    checkpoint_id: int | None = None,
    message: str | None = None,
) -> bool:
    """Notes the result of a request that was taken; one that is over stays as it is.

    Returns whether this is its result.
    """
    lock_job(connection, asked.job_id, exclusive=True)
    connection.execute(
        update(RunRequest)
        .where(RunRequest.request_id == asked.request_id, RunRequest.status == RequestStatus.TAKEN)
        .values(status=status, ended_at=func.now(), checkpoint_id=checkpoint_id, message=message)
    )
    return request(connection, asked.request_id).status is status


def withdraw(connection: Connection, asked: Request, why: str) -> None:
    """Notes that a request is not to be done any more; one that is over stays as it is."""
    lock_job(connection, asked.job_id, exclusive=True)
    connection.execute(
        update(RunRequest)
        .where(RunRequest.request_id == asked.request_id, RunRequest.status.in_(_UNDONE))
        .values(status=RequestStatus.WITHDRAWN, ended_at=func.now(), message=why)
    )


def overrule(connection: Connection, asked: Request, given: int) -> None:
    """Notes that the query's code names another parallelism than when the rescale was taken."""
    if not asked.is_over:
        withdraw(connection, asked, f"the query's code says {given}")
    connection.execute(
        update(RunRequest)
        .where(RunRequest.request_id == asked.request_id)
        .values(overruled_at=func.now())
    )


_FAILED_STARTS = text("""
    SELECT count(*) FROM cairn.runs AS r
    JOIN cairn.run_requests AS q ON q.job_id = r.job_id
    WHERE q.request_id = :request_id
      AND r.registered_at > q.taken_at
      AND r.parallelism = q.parallelism
""")


def starts_at(connection: Connection, asked: Request) -> int:
    """Returns how often the query was started for a rescale, since it was taken."""
    return int(connection.scalar(_FAILED_STARTS, {"request_id": asked.request_id}) or 0)


_FIRST_WHOLE = text("""
    SELECT min(c.checkpoint_id) FROM cairn.checkpoints AS c
    JOIN cairn.runs AS r ON r.job_id = c.job_id AND r.epoch = c.epoch
    JOIN cairn.run_requests AS q ON q.job_id = c.job_id
    WHERE q.request_id = :request_id
      AND r.registered_at > q.taken_at
      AND c.parallelism = q.parallelism
      AND c.status IN ('COMPLETED', 'CONFIRMED', 'SUBSUMED')
""")


def first_rescaled_checkpoint(connection: Connection, asked: Request) -> int | None:
    """Returns the first whole checkpoint at the parallelism that a taken rescale asks for."""
    found = connection.scalar(_FIRST_WHOLE, {"request_id": asked.request_id})
    return None if found is None else int(found)


def _request(row: Row[*tuple[Any, ...]]) -> Request:
    return Request(**row._mapping)


# A plan that somebody has only built is a run, too, and does not matter beside one that runs.
_NEWEST_RUN = text("""
    SELECT r.epoch, r.parallelism, r.supervisor_id, o.is_over
    FROM cairn.runs AS r
    JOIN cairn.jobs AS j ON j.job_id = r.job_id
    CROSS JOIN LATERAL (SELECT cairn.is_over(r.ended_at, r.seen_at) AS is_over) AS o
    WHERE r.job_id = :job_id AND r.epoch >= j.current_epoch
    ORDER BY r.supervisor_id IS NOT NULL AND NOT o.is_over DESC, r.epoch DESC LIMIT 1
""")


def _require_supervised(
    connection: Connection, job: Row[*tuple[Any, ...]]
) -> Row[*tuple[Any, ...]]:
    run = connection.execute(_NEWEST_RUN, {"job_id": job.job_id}).one_or_none()
    if run is None or run.is_over:
        raise RefusedError(
            "its query does not run, so nobody would do it. Start it with the parallelism that it "
            "is to have; a savepoint of its newest checkpoint is `cairn savepoint`",
            job=job.name,
        )
    if run.supervisor_id is None:
        raise RefusedError(
            "its query was not started by cairn.run, which does what is asked of a running query. "
            "Stop the query where it runs, and start it with the parallelism that it is to have",
            job=job.name,
        )
    return run


def _check_parallelism(
    connection: Connection,
    job: Row[*tuple[Any, ...]],
    run: Row[*tuple[Any, ...]],
    wanted: Wanted,
) -> None:
    if wanted.parallelism is None:
        return
    if not 1 <= wanted.parallelism <= job.max_parallelism:
        raise BadInputError(
            f"parallelism is {wanted.parallelism}; allowed: 1 to {job.max_parallelism}, the job's "
            "key groups, a number that is fixed",
            job=job.name,
        )
    newest = newest_rescale(connection, job.name)
    under_way = newest is not None and not newest.is_over
    if wanted.parallelism == run.parallelism and not under_way:
        raise BadInputError(f"its parallelism is {run.parallelism} already", job=job.name)
