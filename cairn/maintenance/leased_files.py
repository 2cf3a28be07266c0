"""Writing files to a job's storage under the lease of a maintenance run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
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
from cairn.storage.store import put_in_time

_ATTEMPTS = 3
_PAUSE_S = 1.0

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
    require_allowed(job, store.url)
    # Before each file, as before each delete: another metastore may take the root over.
    require_owner(catalog, store, job.job_id)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _write_once(catalog, job, store, lease, pieces)
        except StorageError as failed:
            facts = {"job": job.name, "error": str(failed)}
            _log.warning("write failed; again, to a new file", extra=facts)
            time.sleep(_PAUSE_S)
    return _write_once(catalog, job, store, lease, pieces)


def _write_once(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    pieces: Sequence[bytes | memoryview],
) -> LeasedFile:
    # An id of its own for each attempt: what became of a request that failed is not known.
    file_id, began_s = uuid4(), time.monotonic()
    path = catalog.run(
        f"record the write of a file of job {job.name}",
        lambda c: intend_leased_file(c, lease, file_id),
    )
    put_in_time(store, path, pieces, began_s)
    return LeasedFile(WrittenFile(str(file_id), sum(map(len, pieces))), path)
