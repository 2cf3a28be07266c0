"""Physical files from their write intent to their seal.

Each function is the body of one transaction, or part of one, and may be run again with the same
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Uuid,
    and_,
    column,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

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
            "file_id": UUID(file.file_id),
            "job_id": job_id,
            "epoch": epoch,
            "path": file.path,
            "scope": file.scope,
            "batch_id": file.batch_id,
            "retry_of": UUID(file.retry_of) if file.retry_of else None,
        }
        for file in files
    ]
    statement = insert(PhysicalFile).on_conflict_do_nothing(index_elements=[PhysicalFile.file_id])
    connection.execute(statement, rows)


def seal_files(connection: Connection, batch: BatchRef, files: Sequence[WrittenFile]) -> None:
    """Marks physical files whole up to their size; one that is sealed already grows to it.

    Doing it again changes nothing.

    Raises:
        FencedError: maintenance has condemned a file, or another writer has continued it.
    """
    if not files:
        return
    sizes = {UUID(file.file_id): file.size_bytes for file in files}
    written = (
        # Two arrays: one statement, of one text, for any number of files.
        func.unnest(
            literal(list(sizes), ARRAY(Uuid())), literal(list(sizes.values()), ARRAY(BigInteger))
        )
        .table_valued(column("file_id", Uuid()), column("size_bytes", BigInteger), name="written")
        .render_derived()
    )
    sealed = connection.execute(
        update(PhysicalFile)
        .where(
            PhysicalFile.file_id == written.c.file_id,
            or_(
                PhysicalFile.status == FileStatus.WRITING,
                and_(
                    PhysicalFile.status == FileStatus.SEALED,
                    # Only to grow: another writer's longer end must not be cut.
                    PhysicalFile.size_bytes < written.c.size_bytes,
                ),
            ),
        )
        .values(
            status=FileStatus.SEALED,
            size_bytes=written.c.size_bytes,
            sealed_at=func.coalesce(PhysicalFile.sealed_at, func.now()),
        )
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
