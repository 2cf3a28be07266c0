"""Reading a segment back from storage, checked against what the metastore recorded."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from cairn.errors import CorruptSegmentError
from cairn.segments.format import decode

if TYPE_CHECKING:
    from cairn.handles import SegmentHandle
    from cairn.keygroups import KeyGroupRange
    from cairn.state.view import Changes
    from cairn.storage.store import ObjectStore

READ_AHEAD = 4
"""Segments that are read at once; a base is about 32 MB."""


def read_segment(
    store: ObjectStore,
    handle: SegmentHandle,
    *,
    job: str,
    key_groups: KeyGroupRange | None = None,
) -> Iterator[Changes]:
    """Returns an iterator of a segment's changes; only those of `key_groups` if given.

    Reads the segment's byte range with one request and checks it before it returns.

    Raises:
        CorruptSegmentError: the bytes are not those that were recorded, or cannot be decoded; the
            latter may come while iterating.
        StorageError: the object is missing or cannot be read.
    """
    data = store.get(handle.path, offset=handle.offset, size_bytes=handle.size_bytes)
    found = hashlib.sha256(data).hexdigest()
    if found != handle.sha256:
        raise _corrupt(
            job,
            handle,
            f"segment {handle.segment_id} is not what was written: expected "
            f"{handle.size_bytes} bytes with SHA-256 {handle.sha256}, found {len(data)} bytes "
            f"with {found}",
        )
    return _decode(data, handle, job, key_groups)


def read_segments(
    store: ObjectStore,
    handles: Sequence[SegmentHandle],
    *,
    job: str,
    key_groups: KeyGroupRange | None = None,
) -> Iterator[tuple[SegmentHandle, Iterator[Changes]]]:
    """Yields segments in the order given, each with its changes, as `read_segment` does.

    While one is worked on, the next `READ_AHEAD` are read and checked, so a restore waits for the
    store once and not for each segment.
    """
    with ThreadPoolExecutor(READ_AHEAD) as pool:
        ahead: deque[tuple[SegmentHandle, Future[Iterator[Changes]]]] = deque()
        for handle in handles:
            reading = pool.submit(read_segment, store, handle, job=job, key_groups=key_groups)
            ahead.append((handle, reading))
            if len(ahead) > READ_AHEAD:
                first, found = ahead.popleft()
                yield first, found.result()
        while ahead:
            first, found = ahead.popleft()
            yield first, found.result()


def _decode(
    data: bytes, handle: SegmentHandle, job: str, key_groups: KeyGroupRange | None
) -> Iterator[Changes]:
    try:
        yield from decode(data, key_groups)
    except CorruptSegmentError as error:
        raise _corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error


def _corrupt(job: str, handle: SegmentHandle, what: str) -> CorruptSegmentError:
    return CorruptSegmentError(
        f"{what}. Put back the file's original bytes from a copy or an object version, or restore "
        "a checkpoint that does not need it",
        job=job,
        checkpoint=handle.first_checkpoint,
        file=handle.path,
        offset=handle.offset,
    )
