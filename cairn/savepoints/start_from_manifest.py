"""Starting a new job from a manifest alone. The source is read, and stays as it is (NO_CLAIM)."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cairn.batch_ref import RunRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.runs import job_has_state
from cairn.catalog.savepoints.adopt import CopiedFile, adopt_checkpoint, intend_copy
from cairn.errors import CorruptSegmentError, StorageError
from cairn.handles import SegmentHandle
from cairn.layout import task_manager_file
from cairn.savepoints.manifest_files import Origin, read_manifest
from cairn.storage import ObjectStore
from cairn.storage.store import put_in_time

_log = logging.getLogger(__name__)

FILE_BYTES = 32 << 20
"""About how much a file of copied segments holds; it is in memory once."""

_READERS = 8

Placed = tuple[int, SegmentHandle]
"""A segment with its subtask."""


def find_origin(catalog: Catalog, job: str, restore_from: str) -> Origin | None:
    """Returns the manifest to restore a job from; None if the job has state of its own.

    The manifest of a job that has state is not read: its source may be deleted.

    Raises:
        see `cairn.savepoints.manifest_files.read_manifest`.
    """
    has_state = catalog.run(
        f"find out whether job {job} has state", lambda connection: job_has_state(connection, job)
    )
    return None if has_state else read_manifest(restore_from)


def restore(
    catalog: Catalog,
    origin: Origin,
    target: ObjectStore,
    *,
    run: RunRef,
) -> None:
    """Copies a manifest's state into a job that has none, and makes it what the job starts from.

    Killed at any point, the job has no state, and building its plan again restores it; the files
    of the first try are deleted once a run has begun.

    Raises:
        CorruptSegmentError: bytes are not those that the manifest names.
        StorageError, MetastoreError: a segment cannot be read, or a copy not be written.
        RefusedError: the job has begun meanwhile.
        FencedError: a newer run has begun a batch.
    """
    copied, restore_began_s = list[CopiedFile](), time.monotonic()
    for segments in _packed(origin.manifest.handles()):
        chunks = _read_all(origin, segments)
        # A new file for every try: a path is never used twice.
        file_id = str(uuid.uuid4())
        path = task_manager_file(run.job_id, f"{run.epoch}-restored", file_id)
        # Before the intent, as cleanup counts from that.
        began_s = time.monotonic()
        catalog.run(
            f"record the write of {path}",
            partial(intend_copy, run=run, file_id=file_id, path=path),
        )
        put_in_time(target, path, chunks, began_s)
        copied.append(_copied(segments, file_id, path))
    catalog.run(
        f"restore job {run.job} from {origin.url}",
        lambda connection: adopt_checkpoint(connection, run, origin.manifest, copied),
    )
    _log_restored(origin, run.job, copied, time.monotonic() - restore_began_s)


def _log_restored(origin: Origin, job: str, copied: Sequence[CopiedFile], took_s: float) -> None:
    facts = {
        "job": job,
        "manifest": origin.url,
        "checkpoint": origin.manifest.checkpoint_id,
        "files": len(copied),
        "size_bytes": sum(each.file.size_bytes for each in copied),
        "seconds": round(took_s, 3),
    }
    _log.info("job restored from a manifest", extra=facts)


def _packed(segments: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Yields the segments in groups of about `FILE_BYTES`, in order of their place in storage."""
    group: list[Placed] = []
    size_bytes = 0
    # By place, so that reads of one file follow each other.
    for placed in sorted(segments, key=lambda placed: (placed[1].path, placed[1].offset)):
        group.append(placed)
        size_bytes += placed[1].size_bytes
        if size_bytes >= FILE_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _read_all(origin: Origin, segments: Sequence[Placed]) -> list[bytes]:
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(lambda placed: _read(origin, placed[1]), segments))


def _copied(segments: Sequence[Placed], file_id: str, path: str) -> CopiedFile:
    """Returns a file that holds the segments one after the other, under ids of their own."""
    # Fresh segment ids: both jobs may be in one metastore.
    placed, offset = [], 0
    for subtask, handle in segments:
        copy = dataclasses.replace(handle, segment_id=str(uuid.uuid4()), path=path, offset=offset)
        placed.append((subtask, copy))
        offset += handle.size_bytes
    return CopiedFile(WrittenFile(file_id, offset), tuple(placed))


def _read(origin: Origin, handle: SegmentHandle) -> bytes:
    job, checkpoint = origin.manifest.job, origin.manifest.checkpoint_id
    try:
        data = origin.store.get(handle.path, handle.offset, handle.size_bytes)
    except StorageError as error:
        raise StorageError(
            f"segment {handle.segment_id} of {origin.url} cannot be copied: {error.message}. If a "
            "cleanup took it, restore a savepoint or a pinned checkpoint, which cleanups keep",
            job=job,
            checkpoint=checkpoint,
            file=handle.path,
            offset=handle.offset,
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != handle.sha256:
        raise CorruptSegmentError(
            f"segment {handle.segment_id} of {origin.url} is not what was written: its SHA-256 is "
            f"{found}. Put back the file's original bytes, or restore another checkpoint",
            job=job,
            checkpoint=checkpoint,
            file=handle.path,
            offset=handle.offset,
        )
    return data
