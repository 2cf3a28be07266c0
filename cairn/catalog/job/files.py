"""Physical files from their write intent to their seal.

Each function is the body of one transaction, or part of one, and may be run again with the same
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, select, text

from cairn.batch_ref import BatchRef
from cairn.catalog.job.directories import claim_directories
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import FencedError
from cairn.handles import DirectoryHandle
from metastore.enums import FileStatus, Scope
from metastore.models import PhysicalFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendedFile:
    """A physical file that is about to be written; `path` is its key below the job's storage.

    `batch_id` is the batch whose acks alone may seal it, if that is so. `retry_of` is the file of
    the first request, if this is another one for the same bytes.
    """

    file_id: str
    path: str
    scope: Scope
    batch_id: int | None = None
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A physical file whose bytes are durable up to `size_bytes`, its end."""

    file_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A physical file whose bytes are durable, and what that took."""

    file: WrittenFile
    path: str
    stats: UploadStats


# As constant texts: to build these statements anew takes longer than to run them.
_ADD = text("""INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, batch_id, retry_of
    ) VALUES (
        CAST(:file_id AS uuid), :job_id, :epoch, :path, :scope, :batch_id, CAST(:retry_of AS uuid)
    )
    ON CONFLICT (file_id) DO NOTHING
""")
# A sealed file only grows: another writer's longer end must not be cut.
_SEAL = text("""
    UPDATE cairn.physical_files AS f
    SET status = 'SEALED', size_bytes = written.size_bytes, sealed_at = coalesce(f.sealed_at, now())
    FROM unnest(CAST(:file_ids AS uuid[]), CAST(:sizes AS bigint[]))
        AS written (file_id, size_bytes)
    WHERE f.file_id = written.file_id
      AND (f.status = 'WRITING' OR (f.status = 'SEALED' AND f.size_bytes < written.size_bytes))
""")


def intend_files(
    connection: Connection,
    batch: BatchRef,
    files: Sequence[IntendedFile],
    claims: Sequence[DirectoryHandle] = (),
) -> None:
    """Records that physical files are about to be written, before their first byte.

    `claims` are the directories that the run writes to for the first time.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    # In the intent's transaction: under the job's lock, no newer run begins in between.
    require_epoch(connection, batch.job_id, batch.epoch)
    _add_files(connection, batch.job_id, batch.epoch, files, claims)


def intend_initial_rows(
    connection: Connection, job_id: str, epoch: int, file: IntendedFile, claim: DirectoryHandle
) -> None:
    """Records that a file of initial state rows is about to be written, before its run begins."""
    # No fence: the run has not begun a batch, and no other knows of the file.
    _add_files(connection, job_id, epoch, [file], [claim])


def _add_files(
    connection: Connection,
    job_id: str,
    epoch: int,
    files: Sequence[IntendedFile],
    claims: Sequence[DirectoryHandle],
) -> None:
    if claims:
        claim_directories(connection, job_id, epoch, claims)
    rows = [
        {
            "file_id": file.file_id,
            "job_id": job_id,
            "epoch": epoch,
            "path": file.path,
            "scope": file.scope.value,
            "batch_id": file.batch_id,
            "retry_of": file.retry_of,
        }
        for file in files
    ]
    connection.execute(_ADD, rows)


def seal_files(connection: Connection, batch: BatchRef, files: Sequence[WrittenFile]) -> None:
    """Marks physical files whole up to their size; one that is sealed already grows to it.

    Doing it again changes nothing.

    Raises:
        FencedError: maintenance has condemned a file, or another writer has continued it.
    """
    if not files:
        return
    sizes = {UUID(file.file_id): file.size_bytes for file in files}
    sealed = connection.execute(
        _SEAL, {"file_ids": [str(i) for i in sizes], "sizes": list(sizes.values())}
    )
    # A group that commits again finds its files sealed: that is right, if they have these sizes.
    if sealed.rowcount != len(sizes):
        _require_sealed(connection, batch, sizes)


def _require_sealed(connection: Connection, batch: BatchRef, sizes: Mapping[UUID, int]) -> None:
    for known in connection.execute(
        select(
            PhysicalFile.file_id, PhysicalFile.status, PhysicalFile.path, PhysicalFile.size_bytes
        ).where(PhysicalFile.file_id.in_(sizes))
    ):
        if (known.status, known.size_bytes) != (FileStatus.SEALED, sizes[known.file_id]):
            raise FencedError(
                f"the physical file is {known.status.value} with {known.size_bytes} bytes; "
                "nothing may point into it",
                job=batch.job,
                file=known.path,
                offset=sizes[known.file_id],
            )
