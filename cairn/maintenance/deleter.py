"""The one place that deletes from storage. Nothing is deleted without a committed intent."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.deletions import DeleteIntent, open_intents, record_outcome
from cairn.catalog.cleanup.quarantine import Condemned, condemned_after, record_swept
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.directories import (
    give_up_left,
    given_up_directories,
    kept_directories,
    record_removed,
)
from cairn.errors import RefusedError
from cairn.layout import generation_of, is_directory, is_unfinished, owns
from cairn.maintenance.breakers import max_deletes_per_s
from cairn.maintenance.pace import Pace
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import require_allowed
from cairn.ownership.check import require_last_owner, require_owner
from cairn.storage import ObjectStore
from cairn.storage.inventory import Inventory, UnfinishedUpload

_log = logging.getLogger(__name__)

BATCH_OBJECTS = 1000
"""Objects a request; S3 takes no more."""

_LOOKS = 16
"""Objects that are looked at at once before they are deleted."""

_REQUESTS = 3
"""Requests under way. A process has four connections to the metastore, and each thread takes one
for the moment in which it asks who owns the root."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a deleter did: files that became DELETED, their bytes, and deletes that failed."""

    files: int
    size_bytes: int
    failed: int


def delete_condemned(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    *,
    progress: Progress = silent,
) -> Deleted:
    """Deletes every object of a job with an open intent that is older than `cairn.file-retention`.

    Those that a killed process left are included.
    An object that is missing already counts as deleted. One that cannot be deleted keeps its
    intent, with the error, and is tried again by the next call.

    Raises:
        RefusedError: the store is not one that this process may clean; or an intent names an
            object outside the job's root, or the root is another metastore's; its batch is not
            deleted.
        StorageError: the store cannot be reached; deleted objects are found missing next time. Or
            it is not the one that the metastore knows; nothing is taken for deleted.
    """
    require_allowed(job, store.url)
    pace = Pace(max_deletes_per_s(os.environ))
    files = size_bytes = failed = 0
    began_s = time.monotonic()
    for intents, errors in _requests(catalog, job, store, pace):
        # Recorded after the delete: killed in between, the next call finds the objects missing.
        gone = [intent.file_id for intent in intents if intent.path not in errors]
        unable = {i.file_id: errors[i.path] for i in intents if i.path in errors}
        total = catalog.run(
            "recording deletions", partial(record_outcome, gone=gone, failed=unable)
        )
        files += total.files
        size_bytes += total.size_bytes
        failed += len(errors)
        if errors:
            _warn_of_failed(job, errors)
        progress("files deleted", len(gone))
    if files:
        facts = {"job": job.name, "files": files, "size_bytes": size_bytes}
        seconds = round(time.monotonic() - began_s, 3)
        _log.info("objects deleted", extra=facts | {"seconds": seconds})
    return Deleted(files, size_bytes, failed)


def _requests(
    catalog: Catalog, job: JobFacts, store: ObjectStore, pace: Pace
) -> Iterator[tuple[list[DeleteIntent], dict[str, str]]]:
    """Yields the intents of each request with its errors, in order, some requests under way.

    So one is answered while the outcome of another is recorded.
    """
    under_way: deque[tuple[list[DeleteIntent], Future[dict[str, str]]]] = deque()
    last: DeleteIntent | None = None
    with ThreadPoolExecutor(_REQUESTS) as threads:
        while True:
            while len(under_way) < _REQUESTS and (intents := _open_intents(catalog, job, last)):
                last = intents[-1]
                paths = [intent.path for intent in intents]
                pace.wait(len(paths))
                request = threads.submit(_delete, catalog, job, store, paths)
                under_way.append((intents, request))
            if not under_way:
                return
            done, request = under_way.popleft()
            yield done, request.result()


def _delete(
    catalog: Catalog, job: JobFacts, store: ObjectStore, paths: Sequence[str]
) -> dict[str, str]:
    # Before each request, as another metastore may take the root over at any time.
    require_owner(catalog, store, job.job_id)
    _refuse_foreign(job, paths)
    return store.delete_many(paths)


def delete_directories(catalog: Catalog, job: JobFacts, store: ObjectStore) -> None:
    """Deletes directories of a job that no run claims and whose files are all deleted.

    Those that were given up later than `cairn.file-retention` ago stay. Up to `BATCH_OBJECTS` a
    call. One that holds something which the metastore does not know is kept.

    Raises:
        RefusedError: a row names a directory outside the job's root, or the root is another
            metastore's; nothing is deleted.
        StorageError, MetastoreError: a store failed; the next call continues from there.
    """
    require_allowed(job, store.url)
    catalog.run(
        "giving up directories of runs that have ended", lambda c: give_up_left(c, job.job_id)
    )
    paths = catalog.run(
        "reading directories to remove",
        lambda c: given_up_directories(c, job.job_id, limit=BATCH_OBJECTS),
    )
    _refuse_foreign(job, paths)
    if paths:
        require_owner(catalog, store, job.job_id)
    # A directory with an object that SQL does not know stays: somebody else put it there.
    removed = [path for path in paths if store.remove_directory(path)]
    if removed:
        catalog.run(
            "recording removed directories",
            lambda c: record_removed(c, job.job_id, removed),
        )
        facts = {"job": job.name, "directories": len(removed)}
        _log.info("directories removed", extra=facts)


def delete_quarantined(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    inventory: Inventory,
    *,
    progress: Progress = silent,
) -> Deleted:
    """Deletes what a sweep has set aside, and whose delete intent is committed, if it is the same.

    What is another object by now leaves the quarantine; what is gone counts as deleted.

    Raises:
        RefusedError, StorageError: see `delete_condemned`.
    """
    require_allowed(job, store.url)
    pace = Pace(max_deletes_per_s(os.environ))
    files = size_bytes = failed = 0
    last: UUID | None = None
    while intents := _condemned_after(catalog, job, last):
        pace.wait(len(intents))
        # Before each request, as another metastore may take the root over at any time.
        require_owner(catalog, store, job.job_id)
        _refuse_foreign(job, [intent.place.path for intent in intents])
        changed = _changed(inventory, intents)
        same = [intent for intent in intents if intent.quarantine_id not in changed]
        errors = _delete_all(store, inventory, same)
        gone = [one.quarantine_id for one in same if one.quarantine_id not in errors]
        deleted, deleted_bytes = catalog.run(
            "recording deletions of orphans",
            partial(record_swept, gone=gone, changed=changed, failed=errors),
        )
        files += deleted
        size_bytes += deleted_bytes
        failed += len(errors)
        if errors:
            _warn_of_failed(job, {str(one): error for one, error in errors.items()})
        last = intents[-1].quarantine_id
        progress("orphans deleted", deleted)
    return Deleted(files, size_bytes, failed)


def delete_empty_directories(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    inventory: Inventory,
    is_old: Callable[[datetime], bool],
) -> int:
    """Deletes directories without any entry that are a job's by name, old, and nobody's by rows.

    Returns how many. One that a writer makes again at this moment, the writer finds missing.

    Raises:
        RefusedError, StorageError: see `delete_directories`.
    """
    require_allowed(job, store.url)
    found = (
        one.path
        for one in inventory.empty_directories(job.job_id)
        if is_directory(one.path) and is_old(one.modified_at)
    )
    removed = 0
    while some := list(islice(found, BATCH_OBJECTS)):
        _refuse_foreign(job, some)
        kept = catalog.run(
            "reading directories in use", partial(kept_directories, job_id=job.job_id, paths=some)
        )
        require_owner(catalog, store, job.job_id)
        removed += sum(store.remove_directory(path) for path in some if path not in kept)
    return removed


def delete_root(catalog: Catalog, job: JobFacts, store: ObjectStore) -> bool:
    """Deletes the owner objects and empty directories of a dropped job whose files are all deleted.

    Returns False, and keeps the owner objects, if there is any other object.

    Raises:
        RefusedError: the store is not one that this process may clean, or the root is another
            metastore's by now.
        StorageError: the store failed; call again.
    """
    require_allowed(job, store.url)
    owners = [stored.path for stored in store.list(f"{job.job_id}/")]
    if any(generation_of(path) is None for path in owners):
        return False
    require_last_owner(catalog, store, job.job_id)
    return not store.delete_many(owners) and store.remove_empty(job.job_id)


def _open_intents(
    catalog: Catalog, job: JobFacts, after: DeleteIntent | None
) -> list[DeleteIntent]:
    return catalog.run(
        "reading delete intents",
        lambda c: open_intents(c, job.job_id, after=after, limit=BATCH_OBJECTS),
    )


def _condemned_after(catalog: Catalog, job: JobFacts, after: UUID | None) -> list[Condemned]:
    return catalog.run(
        "reading delete intents of orphans",
        lambda c: condemned_after(c, job.job_id, after=after, limit=BATCH_OBJECTS),
    )


def _changed(inventory: Inventory, intents: Sequence[Condemned]) -> set[UUID]:
    """Returns which intents are of another object than what lies there now."""
    objects = [intent for intent in intents if not intent.place.upload_id]
    with ThreadPoolExecutor(_LOOKS) as threads:
        found = list(threads.map(lambda intent: inventory.find(intent.place.path), objects))
    return {
        intent.quarantine_id
        for intent, now in zip(objects, found, strict=True)
        if now is not None
        and (now.size_bytes, now.version, now.modified_at)
        != (intent.size_bytes, intent.version, intent.modified_at)
    }


def _delete_all(
    store: ObjectStore, inventory: Inventory, intents: Sequence[Condemned]
) -> dict[UUID, str]:
    """Deletes objects, unfinished writes and unfinished uploads; returns errors by intent."""
    uploads = [one for one in intents if one.place.upload_id]
    written = [one for one in intents if not one.place.upload_id]
    unfinished = [one for one in written if is_unfinished(one.place.path)]
    objects = [one for one in written if not is_unfinished(one.place.path)]
    by_path = store.delete_many([one.place.path for one in objects])
    by_path |= inventory.delete_unfinished([one.place.path for one in unfinished])
    by_upload = inventory.abort_uploads(
        [UnfinishedUpload(one.place.path, one.place.upload_id, one.modified_at) for one in uploads]
    )
    failed = {one.quarantine_id: by_path.get(one.place.path) for one in written}
    failed |= {one.quarantine_id: by_upload.get(one.place.upload_id) for one in uploads}
    return {one: error for one, error in failed.items() if error is not None}


def _warn_of_failed(job: JobFacts, errors: Mapping[str, str]) -> None:
    # One line a request: a store that refuses all deletes would fill the log otherwise.
    path, error = next(iter(errors.items()))
    facts = {"job": job.name, "failed": len(errors), "file": path, "error": error}
    _log.warning("deletes failed; left to the next cleanup", extra=facts)


def _refuse_foreign(job: JobFacts, paths: Sequence[str]) -> None:
    for path in paths:
        if not owns(job.job_id, path):
            raise RefusedError(
                f"a delete intent names an object outside the job's root {job.job_id}/; nothing "
                "was deleted. Find out who wrote that row before it is deleted",
                job=job.name,
                file=path,
            )
