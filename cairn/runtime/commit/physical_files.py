"""Writing physical files: the intents of new ones in one transaction, then the bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from cairn.catalog.job.files import Uploaded, WrittenFile
from cairn.catalog.job.upload_stats import UploadStats
from cairn.handles import DirectoryHandle
from cairn.runtime.commit.file_merging import AppendableFile
from cairn.runtime.commit.uploads import Intent, Target, intend, upload
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes for a new physical file, or for the end of a continued one."""

    target: Target
    chunks: Callable[[], Sequence[bytes]]
    appends_to: AppendableFile | None = None


def write_files(
    manager: TaskManager,
    store: ObjectStore,
    writes: Sequence[FileWrite],
    *,
    claims: Sequence[DirectoryHandle],
    writers: int = 1,
) -> list[Uploaded]:
    """Returns the files once all bytes are durable; first the intents of new ones are committed.

    `claims` are the directories of the new files that somebody owns. Up to `writers` files are
    written at once. After an error, new files stay WRITING.

    Raises:
        FencedError: a newer run has begun a batch.
        RefusedError: a file to continue does not end where it should.
        StoreFailedError, BadInputError: see `cairn.runtime.commit.uploads.upload`.
    """
    new = [write.target for write in writes if write.appends_to is None]
    # All intents in one transaction, before the first byte: SQL knows every object (ADR 0019).
    intents = iter(_intend(manager, new, claims) if new else [])
    work = [(write, None if write.appends_to else next(intents)) for write in writes]
    if min(writers, len(work)) <= 1:
        return [_write(manager, store, one) for one in work]
    with ThreadPoolExecutor(writers) as threads:
        return list(threads.map(partial(_write, manager, store), work))


def _intend(
    manager: TaskManager, new: Sequence[Target], claims: Sequence[DirectoryHandle]
) -> list[Intent]:
    unclaimed = [claim for claim in claims if not manager.is_claimed(claim)]
    intents = intend(manager, new, claims=unclaimed)
    # After the commit: a claim that was not noted is only made again.
    for claimed in unclaimed:
        manager.remember_claim(claimed)
    return intents


def _write(
    manager: TaskManager, store: ObjectStore, work: tuple[FileWrite, Intent | None]
) -> Uploaded:
    write, intent = work
    if write.appends_to is not None:
        return _append(store, write.appends_to, write.chunks())
    return upload(manager, store, write.target, write.chunks(), intent)


def _append(store: ObjectStore, file: AppendableFile, chunks: Sequence[bytes]) -> Uploaded:
    began, size_bytes = time.monotonic(), sum(map(len, chunks))
    store.append(file.path, file.size_bytes, chunks)
    took_ms = round((time.monotonic() - began) * 1000)
    stats = UploadStats.of_one_request(segments=len(chunks), size_bytes=size_bytes, took_ms=took_ms)
    return Uploaded(WrittenFile(file.file_id, file.size_bytes + size_bytes), file.path, stats)
