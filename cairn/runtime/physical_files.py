"""Writing physical files: the intents in one transaction, then the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from cairn.handles import DirectoryHandle, Scope
from cairn.runtime.executor import TaskManager
from cairn.storage.store import ObjectStore
from metastore.acks import IntendedFile, intend_files
from metastore.batches import BatchRef
from metastore.engine import run_transaction


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes for a new physical file, or for the end of one that has `offset` bytes already."""

    file_id: str
    path: str
    offset: int
    parts: Callable[[], Sequence[bytes]]


def write_files(
    manager: TaskManager,
    store: ObjectStore,
    batch: BatchRef,
    scope: Scope,
    writes: Sequence[FileWrite],
    *,
    claim: DirectoryHandle | None,
    writers: int = 1,
) -> None:
    """Returns once all bytes are durable; the first of new files follow their intents' commit.

    `claim` is the directory that the new files are in, None if nobody owns it. Up to `writers`
    files are written at once. After an error, new files stay WRITING.

    Raises:
        FencedError: a newer run has begun a batch.
        RefusedError: a file to go on with does not end where it should.
        StorageError, MetastoreError: a store failed.
    """
    new = [IntendedFile(write.file_id, write.path, scope) for write in writes if not write.offset]
    if new:
        _intend(manager, batch, new, claim)
    if min(writers, len(writes)) <= 1:
        for write in writes:
            _write(store, write)
        return
    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(partial(_write, store), writes))


def _intend(
    manager: TaskManager,
    batch: BatchRef,
    new: Sequence[IntendedFile],
    claim: DirectoryHandle | None,
) -> None:
    claims = [claim] if claim is not None and not manager.is_claimed(claim) else []
    run_transaction(
        manager.plan.metastore_url,
        lambda connection: intend_files(connection, batch, new, claims),
        timeout_ms=manager.plan.settings.metastore_timeout_ms,
        what=f"record the write of {new[0].path}",
    )
    for claimed in claims:
        manager.remember_claim(claimed)


def _write(store: ObjectStore, write: FileWrite) -> None:
    if write.offset:
        store.append(write.path, write.offset, write.parts())
    else:
        store.put(write.path, write.parts())
