"""The jobs of a metastore, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    DateTime,
    Row,
    ScalarSelect,
    Text,
    bindparam,
    func,
    select,
    text,
)

from cairn.catalog.job.fencing import lock_job
from cairn.errors import BadInputError, did_you_mean
from metastore.models import Job


def job_names(connection: Connection) -> list[str]:
    """Returns the names of all jobs, in order."""
    return list(connection.scalars(select(Job.name).order_by(Job.name)))


def find_job(connection: Connection, name: str, *, locked: bool = False) -> Row[*tuple[Any, ...]]:
    """Returns a job's row, locked against changes until the transaction ends if asked.

    Raises:
        BadInputError: there is no such job; the message lists those there are.
    """
    query = select(Job.__table__).where(Job.name == name)
    locked_id: str | None = None
    while True:
        job = connection.execute(query).one_or_none()
        if job is None:
            raise unknown_job(name, job_names(connection))
        # Again once it is locked: it may have been renamed, and another one may have its name.
        if not locked or job.job_id == locked_id:
            return job
        locked_id = job.job_id
        lock_job(connection, job.job_id, exclusive=True)


def names_by_root(connection: Connection, storage: str) -> dict[str, str]:
    """Returns the names of the jobs in a storage by their ids, which their roots are called."""
    rows = connection.execute(select(Job.job_id, Job.name).where(Job.storage == storage))
    return {row.job_id: row.name for row in rows}


def end_of_file_retention(job_id: str) -> ScalarSelect[datetime]:
    """Returns the moment that is a job's `cairn.file-retention` ago.

    What was condemned or given up before may be deleted; a backup may still need what was later.
    """
    retention = func.make_interval(0, 0, 0, 0, 0, 0, Job.file_retention_ms / 1000.0)
    moment = func.now(type_=DateTime(timezone=True)) - retention
    return select(moment).where(Job.job_id == job_id).scalar_subquery()


def unknown_job(name: str, known: Sequence[str]) -> BadInputError:
    """Returns the error for a job that the metastore does not have."""
    there = f"there are: {', '.join(known)}" if known else "there are none yet"
    return BadInputError(f"no job {name!r}; {did_you_mean(name, known)}{there}")


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """Who asked which metastore, and which of some jobs there are, without those being deleted."""

    asker: str
    job_ids: frozenset[str]


_KNOWN = text("""
    SELECT
        concat_ws(' ', m.metastore_id, cairn.database_id(), session_user) AS asker,
        ARRAY(
            SELECT j.job_id FROM cairn.jobs AS j
            WHERE j.job_id = ANY (:job_ids) AND j.dropped_at IS NULL
        ) AS job_ids
    FROM cairn.metastore AS m
""").bindparams(bindparam("job_ids", type_=ARRAY(Text())))


def known_jobs(connection: Connection, job_ids: Sequence[str]) -> KnownJobs:
    """Returns which jobs there are, as this login sees them.

    Another login may see other jobs, and so does another metastore: both are in `asker`.
    """
    row = connection.execute(_KNOWN, {"job_ids": list(job_ids)}).one()
    return KnownJobs(row.asker, frozenset(row.job_ids))
