"""Physical files from their write intent to their seal.

Each function is the body of one transaction, or part of one, and may be run again with the same
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from cairn.batch_ref import BatchRef, RunRef
from cairn.catalog.connections import array, call
from cairn.catalog.job.directories import claim_directories
from cairn.catalog.job.fencing import require_epoch
from cairn.catalog.job.upload_stats import UploadStats
from cairn.handles import DirectoryHandle
from metastore.enums import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendedFile:
    """A physical file that is about to be written; `path` is its key below the job's storage.

    `batch_id` is the batch whose acks alone may seal it, if that is so. `retry_of` is the file of
    the first request, if this is another one for the same bytes. `materialization_id` is the
    materialization that writes it, if one does.
    """

    file_id: str
    path: str
    scope: Scope
    batch_id: int | None = None
    retry_of: str | None = None
    materialization_id: str | None = None


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


_ADD = "SELECT cairn.add_files(%(job_id)s, %(epoch)s, %(files)s)"
_INTEND = "SELECT cairn.intend_files(%(job_id)s, %(epoch)s, %(run_id)s, %(files)s)"
_SEAL = "SELECT cairn.seal_files(%(file_ids)s, %(sizes)s)"


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
    if claims:
        # First, as a part of the transaction: under the job's lock, no newer run begins in between.
        require_epoch(connection, batch)
        claim_directories(connection, batch.job_id, batch.epoch, claims)
    call(connection, _INTEND, _values(batch, files))


def intend_initial_rows(
    connection: Connection, run: RunRef, file: IntendedFile, claim: DirectoryHandle
) -> None:
    """Records that a file of initial state rows is about to be written, before its run begins.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, run, may_begin=True)
    claim_directories(connection, run.job_id, run.epoch, [claim])
    call(connection, _ADD, _values(run, [file]))


def _values(run: RunRef, files: Sequence[IntendedFile]) -> dict[str, object]:
    return {
        "job_id": run.job_id,
        "epoch": run.epoch,
        "run_id": run.run_id,
        "files": json.dumps([asdict(one) for one in files]),
    }


def seal_files(connection: Connection, files: Sequence[WrittenFile]) -> None:
    """Marks physical files whole up to their size; one that is sealed already grows to it.

    Doing it again changes nothing.

    Raises:
        FencedError: maintenance has condemned a file, or another writer has continued it.
    """
    if files:
        call(connection, _SEAL, seals(files))


def seals(files: Iterable[WrittenFile]) -> dict[str, object]:
    """Returns the parameters that say which files are whole, and up to where."""
    sizes = {file.file_id: file.size_bytes for file in files}
    return {"file_ids": array(sizes), "sizes": array(sizes.values())}
