"""Reading a segment back from storage, checked against what the metastore recorded."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from cairn.errors import CorruptSegmentError
from cairn.segments.format import changes_of, record_batches
from cairn.segments.partial import Part, batches_of_part, is_partial, read_part
from cairn.state.view import Changes

if TYPE_CHECKING:
    import pyarrow as pa

    from cairn.handles import SegmentHandle
    from cairn.keygroups import KeyGroupRange
    from cairn.storage.store import Readable

READ_AHEAD = 8
"""Segments that are read at once, while they are small; fewer than the connections of a client."""
READ_AHEAD_BYTES = 128 << 20
"""About how many bytes they have together: four bases."""


def read_segment(
    store: Readable,
    handle: SegmentHandle,
    *,
    job: str,
    key_groups: KeyGroupRange | None = None,
) -> Iterator[Changes]:
    """Returns an iterator of a segment's changes; only those of `key_groups` if given.

    Reads the segment's byte range with one request, or with two those of its blocks that have the
    key groups, and checks what it reads before it returns.

    Raises:
        CorruptSegmentError: the bytes are not those that were recorded, or cannot be decoded; the
            latter may be raised while iterating.
        StorageError: the object is missing or cannot be read.
    """
    data = _read(store, handle, key_groups, job=job)
    return map(changes_of, _decode(data, handle, job, key_groups, use_threads=True))


def read_segments(
    store: Readable,
    handles: Sequence[SegmentHandle],
    *,
    job: str,
    key_groups: KeyGroupRange | None = None,
    use_threads: bool = True,
    ahead_bytes: int | None = None,
) -> Iterator[tuple[SegmentHandle, Changes]]:
    """Yields the changes of segments in the order given, as `read_segment` does, batch by batch.

    Every segment has at least one batch, which is empty if it has no changes. While one batch is
    worked on, the next is decompressed, and the segments after it are read and checked, in threads
    that do not hold the interpreter's lock, up to `ahead_bytes` (None: `READ_AHEAD_BYTES`). So a
    restore waits for the store once and not for each segment. These threads end with the call;
    `use_threads` lets those of Arrow's pool decompress.
    """
    # One decoder: it is always one batch ahead, and batches stay in order.
    with ThreadPoolExecutor(READ_AHEAD) as readers, ThreadPoolExecutor(1) as decoder:
        batches = _batches(
            readers,
            store,
            handles,
            job,
            key_groups,
            use_threads=use_threads,
            ahead_bytes=READ_AHEAD_BYTES if ahead_bytes is None else ahead_bytes,
        )
        upcoming = decoder.submit(next, batches, None)
        while (found := upcoming.result()) is not None:
            upcoming = decoder.submit(next, batches, None)
            handle, batch = found
            yield handle, Changes([], [], []) if batch is None else changes_of(batch)


def _batches(
    readers: ThreadPoolExecutor,
    store: Readable,
    handles: Sequence[SegmentHandle],
    job: str,
    key_groups: KeyGroupRange | None,
    *,
    use_threads: bool,
    ahead_bytes: int,
) -> Iterator[tuple[SegmentHandle, pa.RecordBatch | None]]:
    """Yields None for a segment without changes."""
    waiting = deque(handles)
    ahead: deque[tuple[SegmentHandle, Future[bytes | Part]]] = deque()
    waiting_bytes = 0
    while waiting or ahead:
        while waiting and len(ahead) < READ_AHEAD:
            # One at least, however large it is.
            if ahead and waiting_bytes + expected_bytes(waiting[0], key_groups) > ahead_bytes:
                break
            handle = waiting.popleft()
            waiting_bytes += expected_bytes(handle, key_groups)
            ahead.append((handle, readers.submit(_read, store, handle, key_groups, job=job)))
        handle, reading = ahead.popleft()
        batch = None
        for batch in _decode(reading.result(), handle, job, key_groups, use_threads=use_threads):
            yield handle, batch
        # A base without entries still clears its key groups.
        if batch is None:
            yield handle, None
        waiting_bytes -= expected_bytes(handle, key_groups)


def expected_bytes(handle: SegmentHandle, key_groups: KeyGroupRange | None) -> int:
    """Returns about how many bytes are read of a segment for some key groups: all where None."""
    if key_groups is None or not is_partial(handle, key_groups):
        return handle.size_bytes
    share = len(handle.key_groups.intersect(key_groups)) / len(handle.key_groups)
    return round(handle.size_bytes * share)


def _read(
    store: Readable, handle: SegmentHandle, key_groups: KeyGroupRange | None, *, job: str
) -> bytes | Part:
    if key_groups is None or not is_partial(handle, key_groups):
        return read_bytes(store, handle, job=job)
    try:
        return read_part(store, handle, key_groups)
    except CorruptSegmentError as error:
        raise corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error


def read_bytes(store: Readable, handle: SegmentHandle, *, job: str) -> bytes:
    """Returns a segment's bytes, read with one request and checked.

    Raises:
        CorruptSegmentError: they are not those that were recorded.
        StorageError: the object is missing or cannot be read.
    """
    data: bytes = store.get(handle.path, offset=handle.offset, size_bytes=handle.size_bytes)
    check_bytes(handle, len(data), hashlib.sha256(data).hexdigest(), job=job)
    return data


def check_bytes(handle: SegmentHandle, size_bytes: int, sha256: str, *, job: str) -> None:
    """Compares what was read of a segment, its size and checksum, with what was recorded.

    Raises:
        CorruptSegmentError: they differ.
    """
    if sha256 != handle.sha256:
        raise corrupt(
            job,
            handle,
            f"segment {handle.segment_id} is not what was written: expected "
            f"{handle.size_bytes} bytes with SHA-256 {handle.sha256}, found {size_bytes} bytes "
            f"with {sha256}",
        )


def _decode(
    data: bytes | Part,
    handle: SegmentHandle,
    job: str,
    key_groups: KeyGroupRange | None,
    *,
    use_threads: bool,
) -> Iterator[pa.RecordBatch]:
    try:
        if isinstance(data, Part):
            yield from batches_of_part(
                data, key_groups or handle.key_groups, use_threads=use_threads
            )
            return
        yield from record_batches(data, key_groups, use_threads=use_threads, entries=handle.entries)
    except CorruptSegmentError as error:
        raise corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error


def corrupt(job: str, handle: SegmentHandle, what: str) -> CorruptSegmentError:
    """Returns the error that names the defect of a segment, its place, and the remedy."""
    return CorruptSegmentError(
        f"{what}. Put back the file's original bytes from a copy or an object version, or restore "
        "a checkpoint that does not need it",
        job=job,
        checkpoint=handle.first_checkpoint,
        file=handle.path,
        offset=handle.offset,
    )
