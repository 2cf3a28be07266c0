"""Writing files to a job's storage under the lease of a maintenance run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.maintenance.leased_files import LeaseRef, intend_leased_file
from cairn.errors import StorageError
from cairn.maintenance.storages import require_allowed
from cairn.ownership.check import require_owner
from cairn.storage import ObjectStore
from cairn.storage.ranges import ByteRange
from cairn.storage.store import copy_in_time, put_in_time

_ATTEMPTS = 3
_PAUSE_S = 1.0

_Send = Callable[[str, float], int]
"""Writes the object of a path, whose intent was recorded after a moment, and returns its size."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeasedFile:
    """A file whose bytes are durable, and its path below the job's storage."""

    file: WrittenFile
    path: str


def write_leased_file(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    pieces: Sequence[bytes | memoryview],
) -> LeasedFile:
    """Writes one object, the concatenation of the pieces, in the directory of the run.

    It holds nothing until a transaction under the lease seals it. Until then, the cleanup deletes
    it once the run is over or the lease is lost.

    Raises:
        FencedError: the process does not hold the lease any more.
        RefusedError: the store is not one that this process may write to, or the job's root belongs
            to another metastore; nothing was written.
        BadInputError: `CAIRN_STORAGES` is not set, or the file is too large for the store.
        StoreFailedError: the metastore or the storage failed, several times.
    """

    def send(path: str, began_s: float) -> int:
        put_in_time(store, path, pieces, began_s)
        return sum(map(len, pieces))

    return _write(catalog, job, store, lease, send)


def copy_leased_file(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    ranges: Sequence[ByteRange],
) -> tuple[LeasedFile, int]:
    """Does what `write_leased_file` does with ranges of other objects.

    Returns how many bytes passed through this process, too; the store copied the others itself.

    Raises:
        CorruptSegmentError: bytes that passed through are not those of the checksum.
        FencedError, RefusedError, BadInputError, StoreFailedError: see `write_leased_file`.
    """
    passed_bytes = 0

    def send(path: str, began_s: float) -> int:
        nonlocal passed_bytes
        passed_bytes += copy_in_time(store, path, ranges, began_s)
        return sum(one.size_bytes for one in ranges)

    return _write(catalog, job, store, lease, send), passed_bytes


def _write(
    catalog: Catalog, job: JobFacts, store: ObjectStore, lease: LeaseRef, send: _Send
) -> LeasedFile:
    require_allowed(job, store.url)
    # Before each file, as before each delete: another metastore may take the root over.
    require_owner(catalog, store, job.job_id)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _write_once(catalog, job, lease, send)
        except StorageError as failed:
            facts = {"job": job.name, "error": str(failed)}
            _log.warning("write failed; again, to a new file", extra=facts)
            time.sleep(_PAUSE_S)
    return _write_once(catalog, job, lease, send)


def _write_once(catalog: Catalog, job: JobFacts, lease: LeaseRef, send: _Send) -> LeasedFile:
    # An id of its own for each attempt: the outcome of a request that failed is not known.
    file_id, began_s = uuid4(), time.monotonic()
    path = catalog.run(
        f"record the write of a file of job {job.name}",
        lambda c: intend_leased_file(c, lease, file_id),
    )
    return LeasedFile(WrittenFile(str(file_id), send(path, began_s)), path)
