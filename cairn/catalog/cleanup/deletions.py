"""Delete intents: the objects to delete, when they may be, and the result for each.

A metastore that is restored from a backup needs the objects that were needed then, so an intent is
not carried out before it is as old as the job's file retention, by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Connection, cast, func, select, true, tuple_, update

from cairn.catalog.cleanup.needs import any_uuid
from cairn.catalog.jobs import end_of_file_retention
from metastore.enums import FileStatus
from metastore.models import Deletion, PhysicalFile


@dataclass(frozen=True, slots=True)
class DeleteIntent:
    """One object to delete; `path` is its key below the job's storage."""

    file_id: UUID
    path: str
    requested_at: datetime


@dataclass(frozen=True, slots=True)
class FileTotal:
    """A number of files and the sum of their sizes, where known."""

    files: int
    size_bytes: int

    def __add__(self, other: FileTotal) -> FileTotal:
        return FileTotal(self.files + other.files, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDeletes:
    """The condemned files of a job: those that may be deleted now, and those that wait yet.

    `next_at` is when the first of those that wait may be deleted; None: there is none. What is
    condemned now may be deleted at `condemned_now_at`.
    """

    due: FileTotal
    waiting: FileTotal
    next_at: datetime | None
    condemned_now_at: datetime


def open_intents(
    connection: Connection, job_id: str, *, after: DeleteIntent | None, limit: int
) -> list[DeleteIntent]:
    """Returns up to `limit` open intents of a job after another one, the oldest first.

    Those younger than `cairn.file-retention` are left out.
    """
    order = (Deletion.requested_at, Deletion.file_id)
    rows = connection.execute(
        select(Deletion.file_id, Deletion.path, Deletion.requested_at)
        .where(
            Deletion.job_id == job_id,
            Deletion.done_at.is_(None),
            Deletion.requested_at <= end_of_file_retention(job_id),
            tuple_(*order) > (after.requested_at, after.file_id) if after else true(),
        )
        .order_by(*order)
        .limit(limit)
    )
    return [DeleteIntent(*row) for row in rows]


def total_open(connection: Connection, job_id: str) -> OpenDeletes:
    """Returns how many files of a job wait for their deletion and their bytes, due or not yet."""
    end = end_of_file_retention(job_id)
    is_due = Deletion.requested_at <= end
    size_bytes = func.sum(PhysicalFile.size_bytes)
    row = connection.execute(
        select(
            func.count().filter(is_due).label("due"),
            cast(func.coalesce(size_bytes.filter(is_due), 0), BigInteger).label("due_bytes"),
            func.count().filter(~is_due).label("waiting"),
            cast(func.coalesce(size_bytes.filter(~is_due), 0), BigInteger).label("waiting_bytes"),
            (func.min(Deletion.requested_at).filter(~is_due) + (func.now() - end)).label("next_at"),
            (func.now() + (func.now() - end)).label("condemned_now_at"),
        )
        .select_from(Deletion)
        .join(PhysicalFile, PhysicalFile.file_id == Deletion.file_id)
        .where(Deletion.job_id == job_id, Deletion.done_at.is_(None))
    ).one()
    return OpenDeletes(
        due=FileTotal(row.due, row.due_bytes),
        waiting=FileTotal(row.waiting, row.waiting_bytes),
        next_at=row.next_at,
        condemned_now_at=row.condemned_now_at,
    )


def record_outcome(
    connection: Connection, *, gone: Sequence[UUID], failed: Mapping[UUID, str]
) -> FileTotal:
    """Closes the intents of deleted objects, their files DELETED; notes the other errors.

    A closed intent is passed over, so of two processes that delete the same object one counts
    it. Returns the total of the files that this call made DELETED.
    """
    # Under lock: of two deleters of one object, only one counts its bytes.
    still_open = _lock_open(connection, [*gone, *failed])
    # One by one: each has an error of its own, and they are few.
    for file_id in sorted(still_open & failed.keys()):
        connection.execute(
            update(Deletion)
            .where(Deletion.file_id == file_id)
            .values(attempts=Deletion.attempts + 1, last_error=failed[file_id])
        )
    return _close(connection, sorted(still_open - failed.keys()))


def _lock_open(connection: Connection, file_ids: Sequence[UUID]) -> set[UUID]:
    """Returns which intents are open, locked in one order so that two deleters do not deadlock."""
    return set(
        connection.scalars(
            select(Deletion.file_id)
            .where(
                Deletion.file_id == any_uuid(file_ids),
                Deletion.done_at.is_(None),
            )
            .order_by(Deletion.file_id)
            .with_for_update()
        )
    )


def _close(connection: Connection, file_ids: Sequence[UUID]) -> FileTotal:
    chosen = any_uuid(file_ids)
    connection.execute(
        update(Deletion)
        .where(Deletion.file_id == chosen)
        .values(attempts=Deletion.attempts + 1, last_error=None, done_at=func.now())
    )
    sizes = connection.scalars(
        update(PhysicalFile)
        .where(PhysicalFile.file_id == chosen)
        # The file's row stays: it says that its path was used, which is never used again.
        .values(status=FileStatus.DELETED, deleted_at=func.now())
        .returning(func.coalesce(PhysicalFile.size_bytes, 0))
    ).all()
    return FileTotal(len(sizes), sum(sizes))
