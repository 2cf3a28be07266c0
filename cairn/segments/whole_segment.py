"""A segment's bytes for reading it batch by batch, in memory that does not grow with its size.

The checksum is that of the whole segment, so none of it is used before all of it was read. A large
one is read in pieces into a file without a name on the local disk, and mapped from there once its
checksum is right. So a killed process leaves nothing, and its bytes count as no memory.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cairn.errors import CorruptSegmentError
from cairn.segments.format import record_batches
from cairn.segments.reader import check_bytes, corrupt, read_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from cairn.handles import SegmentHandle
    from cairn.keygroups import KeyGroupRange
    from cairn.segments.scratch import Scratch
    from cairn.storage.store import ObjectStore

IN_MEMORY_BYTES = 64 << 20
"""Segments up to here are read with one request, and kept in memory while they are read."""
_PIECE_BYTES = 8 << 20


def load(
    store: ObjectStore, handle: SegmentHandle, *, job: str, scratch: Scratch
) -> bytes | mmap.mmap:
    """Returns a segment's checked bytes; those of a large one are in a scratch file.

    Raises:
        CorruptSegmentError: they are not those that were recorded.
        StorageError: the object is missing or cannot be read.
    """
    if handle.size_bytes <= IN_MEMORY_BYTES:
        return read_bytes(store, handle, job=job)
    digest = hashlib.sha256()
    with scratch.file() as file:
        for done in range(0, handle.size_bytes, _PIECE_BYTES):
            size_bytes = min(_PIECE_BYTES, handle.size_bytes - done)
            piece = store.get(handle.path, offset=handle.offset + done, size_bytes=size_bytes)
            digest.update(piece)
            file.write(piece)
        file.flush()
        check_bytes(handle, handle.size_bytes, digest.hexdigest(), job=job)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def batches_of(
    data: bytes | mmap.mmap, handle: SegmentHandle, key_groups: KeyGroupRange, *, job: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of some key groups of a loaded segment. Only the calling thread computes.

    Raises:
        CorruptSegmentError: they are no changes of state.
    """
    try:
        yield from record_batches(data, key_groups, use_threads=False, entries=handle.entries)
    except CorruptSegmentError as error:
        raise corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error
