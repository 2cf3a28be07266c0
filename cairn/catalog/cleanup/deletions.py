"""Delete intents: the objects to delete, and the result for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import BigInteger, Connection, cast, func, select, update

from cairn.catalog.cleanup.needs import any_uuid
from metastore.enums import FileStatus
from metastore.models import Deletion, PhysicalFile

_LOWEST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class DeleteIntent:
    """One object to delete; `path` is its key below the job's storage."""

    file_id: UUID
    path: str


@dataclass(frozen=True, slots=True)
class FileTotal:
    """A number of files and the sum of their sizes, where known."""

    files: int
    size_bytes: int


def open_intents(
    connection: Connection, job_id: str, *, after: UUID | None, limit: int
) -> list[DeleteIntent]:
    """Returns up to `limit` open intents of a job with file ids above `after`, by file id."""
    rows = connection.execute(
        select(Deletion.file_id, Deletion.path)
        .where(
            Deletion.job_id == job_id,
            Deletion.done_at.is_(None),
            Deletion.file_id > (after or _LOWEST_ID),
        )
        .order_by(Deletion.file_id)
        .limit(limit)
    )
    return [DeleteIntent(*row) for row in rows]


def total_open(connection: Connection, job_id: str) -> FileTotal:
    """Returns how many files of a job wait for their deletion, and their bytes."""
    size_bytes = cast(func.coalesce(func.sum(PhysicalFile.size_bytes), 0), BigInteger)
    files, total_bytes = connection.execute(
        select(func.count(), size_bytes)
        .select_from(Deletion)
        .join(PhysicalFile, PhysicalFile.file_id == Deletion.file_id)
        .where(Deletion.job_id == job_id, Deletion.done_at.is_(None))
    ).one()
    return FileTotal(files, total_bytes)


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
