"""Directory handles: claimed on first use, given up whole (FLIP-306 4.3, 4.4).

A directory that a run writes to is CLAIMED by its first write intent there. It stays claimed over
failovers. When a newer run begins, what that run will not write to becomes UNCLAIMED; once no
undeleted file is in it, cleanup removes it and makes it DELETED. When its run has ended and left no
file in it, cleanup makes it UNCLAIMED, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Uuid,
    and_,
    case,
    cast,
    exists,
    func,
    not_,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.jobs import end_of_file_retention
from cairn.handles import DirectoryHandle
from metastore.enums import DirectoryStatus, FileStatus, Scope
from metastore.models import Directory, PhysicalFile, Run

_UUID_LENGTH = 36


def claim_directories(
    connection: Connection, job_id: str, epoch: int, handles: Sequence[DirectoryHandle]
) -> None:
    """Makes directories CLAIMED by a run, those too that an earlier run has given up.

    The caller holds the job's row against newer runs.
    """
    # In one order, so that two executors that claim the same directories do not deadlock.
    rows = [
        {
            "job_id": job_id,
            "path": handle.path,
            "scope": handle.scope,
            "subtask": handle.subtask,
            "parallelism": handle.parallelism,
            "tm_id": handle.tm_id,
            "epoch": epoch,
        }
        for handle in sorted(handles, key=lambda handle: handle.path)
    ]
    statement = insert(Directory)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[Directory.job_id, Directory.path],
            set_={
                "status": DirectoryStatus.CLAIMED,
                "epoch": statement.excluded.epoch,
                "claimed_at": func.now(),
                # An earlier run's directory is taken again rather than removed: its path is the
                # same.
                "unclaimed_at": null(),
                "deleted_at": null(),
            },
            # One that this run has claimed already is not written again.
            where=or_(
                Directory.status != DirectoryStatus.CLAIMED,
                Directory.epoch < statement.excluded.epoch,
            ),
        ),
        rows,
    )


def give_up_left(connection: Connection, job_id: str) -> None:
    """Makes directories UNCLAIMED whose run has ended, or lost its lease, and that have no file."""
    is_of_ended_run = exists().where(
        Run.job_id == Directory.job_id,
        Run.epoch == Directory.epoch,
        func.cairn.is_over(Run.ended_at, Run.seen_at),
    )
    # A retry under another lease claims it again with its first write intent.
    is_leased = func.cairn.is_leased(cast(func.right(Directory.path, _UUID_LENGTH), Uuid))
    is_left = and_(
        _is_empty(job_id),
        Directory.status == DirectoryStatus.CLAIMED,
        case(
            (Directory.scope == Scope.MAINTENANCE, not_(is_leased)),
            else_=is_of_ended_run,
        ),
    )
    # First without the lock, which batches wait for: mostly there is none.
    if not connection.scalar(select(exists().where(is_left))):
        return
    # A run that continues after its lease writes under this lock, and claims its directories again.
    lock_job(connection, job_id, exclusive=True)
    connection.execute(
        update(Directory)
        .where(is_left)
        .values(status=DirectoryStatus.UNCLAIMED, unclaimed_at=func.now())
    )


def given_up_directories(connection: Connection, job_id: str, *, limit: int) -> list[str]:
    """Returns the paths of up to `limit` UNCLAIMED directories without an undeleted file.

    Those that were given up later than `cairn.file-retention` ago stay.
    """
    return list(
        connection.scalars(
            select(Directory.path).where(_is_given_up(job_id)).order_by(Directory.path).limit(limit)
        )
    )


def record_removed(connection: Connection, job_id: str, paths: Sequence[str]) -> None:
    """Makes removed directories DELETED, but for those that a run has claimed again."""
    connection.execute(
        update(Directory)
        .where(_is_given_up(job_id), Directory.path.in_(paths))
        .values(status=DirectoryStatus.DELETED, deleted_at=func.now())
    )


def _is_given_up(job_id: str) -> ColumnElement[bool]:
    return and_(
        _is_empty(job_id),
        Directory.status == DirectoryStatus.UNCLAIMED,
        Directory.unclaimed_at <= end_of_file_retention(job_id),
    )


def kept_directories(connection: Connection, job_id: str, paths: Sequence[str]) -> set[str]:
    """Returns which directories a run may write to, or have a file that is not DELETED."""
    rows = select(Directory.path).where(
        Directory.job_id == job_id,
        Directory.path.in_(paths),
        Directory.status != DirectoryStatus.DELETED,
    )
    with_files = _with_files(job_id)
    files = select(with_files.c.path).where(with_files.c.path.in_(paths))
    return {*connection.scalars(rows), *connection.scalars(files)}


def _is_empty(job_id: str) -> ColumnElement[bool]:
    with_files = _with_files(job_id)
    holds_file = select(with_files.c.path).where(with_files.c.path == Directory.path).exists()
    return and_(Directory.job_id == job_id, ~holds_file)


def _with_files(job_id: str) -> CTE:
    """Returns the directories that have a file which is not DELETED.

    The files of the job are read once, however many directories are compared with the result.
    """
    return (
        select(func.cairn.directory_of(PhysicalFile.path).label("path"))
        .where(PhysicalFile.job_id == job_id, PhysicalFile.status != FileStatus.DELETED)
        .distinct()
        .cte("with_files")
        .prefix_with("MATERIALIZED")
    )
