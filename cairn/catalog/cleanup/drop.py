"""Dropping a job, step by step: marking it, and deleting its rows once its files are deleted.

What is decided here, triggers decide again (`metastore/triggers/jobs.sql`, `history.sql`). In
between, a dropped job's files are unneeded files like others (`v_unneeded_files`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, TextClause, delete, exists, func, select, text, update
from sqlalchemy.exc import IntegrityError

from cairn.catalog.cleanup.history import LOCK_HISTORY, OF_FILES
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.jobs import find_job
from cairn.errors import BadInputError, RefusedError
from cairn.names import check_job_name
from metastore.enums import DirectoryStatus, FileStatus
from metastore.models import Directory, Job, Ownership, PhysicalFile, Run

DELETED_ROWS = 5_000
"""Most rows of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToDrop:
    """A job as it was when somebody asked to drop it, by its name or by its id."""

    job_id: str
    name: str
    is_dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a job has: undeleted files with their sealed bytes, and rows of all tables."""

    files: int
    size_bytes: int
    rows: int


_CALLED = text("""
    SELECT job_id, name, former_name, dropped_at FROM cairn.jobs
    WHERE name = :name OR former_name = :name
    -- A job that has the name now, before those that had it.
    ORDER BY name <> :name, dropped_at
    LIMIT 1
""")


def job_to_drop(connection: Connection, name: str) -> JobToDrop:
    """Returns the job of a name; if there is none, the one that had it and is being deleted.

    Raises:
        BadInputError: there is neither; the message lists the jobs.
    """
    found = connection.execute(_CALLED, {"name": name}).one_or_none()
    job = find_job(connection, name) if found is None else found
    return JobToDrop(
        job_id=job.job_id,
        name=job.former_name or job.name,
        is_dropped=job.dropped_at is not None,
    )


_LIVING = text("""
    SELECT r.epoch, r.seen_at, r.seen_at + INTERVAL '1 hour' AS until FROM cairn.runs AS r
    JOIN cairn.jobs AS j ON j.job_id = r.job_id
    WHERE r.job_id = :job_id
      AND r.epoch >= j.current_epoch
      AND NOT cairn.is_over(r.ended_at, r.seen_at)
    ORDER BY r.epoch DESC LIMIT 1
""")
_PINNED = text("""
    SELECT checkpoint_id FROM cairn.pins WHERE job_id = :job_id AND removed_at IS NULL
    ORDER BY checkpoint_id
""")


def mark_dropped(connection: Connection, job_id: str, *, dry_run: bool = False) -> None:
    """Makes a job dropped: all its runs are fenced, and its name is free for another one.

    From then on each cleanup of it deletes what it has. Doing it again changes nothing. A dry run
    only refuses what would be refused.

    Raises:
        RefusedError: a run of the job is alive, or a checkpoint is pinned.
    """
    lock_job(connection, job_id, exclusive=True)
    job = _row(connection, job_id)
    if job.dropped_at is not None:
        return
    refuse_living(connection, job, "dropped")
    pinned = [str(one) for one in connection.scalars(_PINNED, {"job_id": job_id})]
    if pinned:
        raise RefusedError(
            f"checkpoints {', '.join(pinned[:10])} are pinned, so somebody may need them. Look at "
            "`cairn pins`, and remove the pins with `cairn unpin` before",
            job=job.name,
        )
    if dry_run:
        return
    newest = connection.scalar(select(func.max(Run.epoch)).where(Run.job_id == job_id)) or 0
    connection.execute(
        update(Job)
        .where(Job.job_id == job_id)
        .values(
            name=job_id,
            former_name=job.name,
            dropped_at=func.now(),
            # Above all runs: what fences runs that were replaced fences these, and what they have
            # left is found by the same rules.
            current_epoch=newest + 1,
        )
    )
    connection.execute(
        update(Directory)
        .where(Directory.job_id == job_id, Directory.status == DirectoryStatus.CLAIMED)
        .values(status=DirectoryStatus.UNCLAIMED, unclaimed_at=func.now())
    )


def rename_job(connection: Connection, job_id: str, new: str) -> None:
    """Gives a job another name. Doing it again changes nothing.

    Raises:
        BadInputError: no job may have the name, or another one has it.
        RefusedError: a run of the job is alive, or the job was dropped.
    """
    check_job_name(new)
    lock_job(connection, job_id, exclusive=True)
    job = _row(connection, job_id)
    if job.name == new:
        return
    if job.dropped_at is not None:
        raise RefusedError("the job was dropped, and is being deleted", job=job.name)
    refuse_living(connection, job, "renamed")
    taken = BadInputError(f"there is a job {new!r} already; names are unique", job=job.name)
    if connection.scalar(select(Job.job_id).where(Job.name == new)):
        raise taken
    try:
        connection.execute(update(Job).where(Job.job_id == job_id).values(name=new))
    except IntegrityError as error:
        # By a job that has been made meanwhile, or by one of another tenant, which is not seen.
        raise taken from error


def refuse_living(connection: Connection, job: Row[Any], what: str) -> None:
    """Refuses to drop or rename a job that has a run which is not over."""
    living = connection.execute(_LIVING, {"job_id": job.job_id}).one_or_none()
    if living is not None:
        raise RefusedError(
            f"run {living.epoch} is alive, so the job is not {what}. Stop its query, or the driver "
            "that has built its plan: that is noted within a minute. If the driver is gone, this "
            "can be done after "
            f"{living.until:%Y-%m-%d %H:%M:%S} UTC, an hour after the run's last sign of life",
            job=job.name,
        )


def size_of(connection: Connection, job_id: str) -> Size:
    """Returns what dropping a job deletes."""
    files, size_bytes = connection.execute(_FILES, {"job_id": job_id}).one()
    rows = sum(connection.scalar(_count(table), {"job_id": job_id}) or 0 for table in TABLES)
    return Size(files=files, size_bytes=size_bytes, rows=rows)


_FILES = text("""
    SELECT count(*), CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM cairn.physical_files
    WHERE job_id = :job_id AND status <> 'DELETED'
""")
TABLES = (
    "pins",
    "group_commits",
    "damaged_segments",
    "placed_segments",
    "deletions",
    "physical_files",
    "maintenance_decisions",
    "maintenance_runs",
    "quarantined_objects",
    "materializations",
    "upload_totals",
    "directories",
    "ownerships",
    "checkpoints",
    "state_variables",
    "materialization_totals",
    "good_runs",
    "history_days",
    "run_requests",
    "runs",
    "jobs",
)
"""All with rows of a job, in the order of their references: what is referred to is last."""
_BY_FILE = ("damaged_segments", "placed_segments", "deletions", "physical_files")


def _count(table: str) -> TextClause:
    return text(f"SELECT count(*) FROM cairn.{table} WHERE job_id = :job_id")  # noqa: S608 - fixed


def has_objects(connection: Connection, job_id: str) -> bool:
    """Tells whether a job has a file or a directory that is not DELETED."""
    return bool(
        connection.scalar(
            select(
                exists().where(
                    PhysicalFile.job_id == job_id, PhysicalFile.status != FileStatus.DELETED
                )
                | exists().where(
                    Directory.job_id == job_id, Directory.status != DirectoryStatus.DELETED
                )
            )
        )
    )


def has_ownership(connection: Connection, job_id: str) -> bool:
    """Tells whether this metastore has set out to own a job's root, and has not given it up."""
    return bool(connection.scalar(select(exists().where(Ownership.job_id == job_id))))


def end_ownerships(connection: Connection, job_id: str) -> None:
    """Gives up the root of a dropped job, before the objects that say whose it is are deleted."""
    connection.execute(delete(Ownership).where(Ownership.job_id == job_id))


# Requests after the first name its file.
_SOME_FILES = text("""
    SELECT file_id FROM cairn.physical_files WHERE job_id = :job_id
    ORDER BY retry_of IS NULL LIMIT :most
""")


def delete_rows(connection: Connection, job_id: str) -> int:
    """Deletes up to `DELETED_ROWS` rows of a dropped job, its own last; returns how many.

    Zero: there are none left.
    """
    connection.execute(LOCK_HISTORY, {"job_id": job_id})
    for table in TABLES:
        if table in _BY_FILE[:-1]:
            continue
        facts = {"job_id": job_id, "most": DELETED_ROWS}
        if table == _BY_FILE[-1]:
            ids = list(connection.scalars(_SOME_FILES, facts))
            rows = sum(connection.execute(s, {"ids": ids}).rowcount for s in OF_FILES)
        else:
            rows = connection.execute(_delete(table), facts).rowcount
        if rows:
            return rows
    return 0


def _delete(table: str) -> TextClause:
    return text(
        f"DELETE FROM cairn.{table} WHERE ctid = ANY(ARRAY("  # noqa: S608 - fixed
        f"SELECT ctid FROM cairn.{table} WHERE job_id = :job_id LIMIT :most))"
    )


def _row(connection: Connection, job_id: str) -> Row[Any]:
    return connection.execute(select(Job.__table__).where(Job.job_id == job_id)).one()
