"""Reading some key groups of a segment that has an index, each byte checked.

Two requests: the index, whose checksum the handle has, and the neighbouring blocks that have the
key groups, whose checksums the index has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import pyarrow as pa

from cairn.errors import CorruptSegmentError
from cairn.segment_index import Block, IndexRef, SegmentIndex, decode
from cairn.segments.format import check_rows, rows_of, schema_of
from cairn.segments.ipc import UNPACKED_PER_BYTE, decoding, open_batches

if TYPE_CHECKING:
    from cairn.handles import SegmentHandle
    from cairn.keygroups import KeyGroupRange
    from cairn.storage.store import Readable

_SCHEMAS = {
    is_long: schema_of({}, pa.large_binary() if is_long else pa.binary())
    for is_long in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring blocks of a segment, checked; `limit_bytes` is the most that they unpack to."""

    blocks: Sequence[Block]
    data: bytes
    has_long_offsets: bool
    limit_bytes: int


def is_partial(handle: SegmentHandle, key_groups: KeyGroupRange) -> bool:
    """Tells whether some key groups of a segment are to be read, and can be read alone."""
    return handle.index is not None and handle.key_groups.intersect(key_groups) != handle.key_groups


def read_part(store: Readable, handle: SegmentHandle, key_groups: KeyGroupRange) -> Part:
    """Returns the blocks that have some key groups, by one request for the index and one for them.

    Raises:
        CorruptSegmentError: what was read is not what was recorded.
        StorageError: the object is missing or cannot be read.
    """
    index = read_index(store, handle)
    blocks = index.within(key_groups)
    data = b""
    if blocks:
        start = blocks[0].offset
        data = store.get(
            handle.path, offset=handle.offset + start, size_bytes=blocks[-1].end - start
        )
        view = memoryview(data)
        for block in blocks:
            block.check(view[block.offset - start : block.end - start])
    return Part(
        blocks=blocks,
        data=data,
        has_long_offsets=index.has_long_offsets,
        limit_bytes=UNPACKED_PER_BYTE * handle.size_bytes,
    )


def read_index(store: Readable, handle: SegmentHandle) -> SegmentIndex:
    """Returns the index of a segment that has one, read with one request and checked.

    Raises:
        CorruptSegmentError: it is not what was recorded, or does not fit the segment.
        StorageError: the object is missing or cannot be read.
    """
    ref = _index_of(handle)
    data = store.get(
        handle.path,
        offset=handle.offset + handle.size_bytes - ref.size_bytes,
        size_bytes=ref.size_bytes,
    )
    found = hashlib.sha256(data).hexdigest()
    if found != ref.sha256:
        raise CorruptSegmentError(
            f"the index by key group is not what was written: expected {ref.size_bytes} bytes with "
            f"SHA-256 {ref.sha256}, found {len(data)} bytes with {found}"
        )
    index = decode(data)
    # Right bytes of something else: the metastore names the wrong index.
    if (
        index.rows != handle.entries
        or index.blocks[-1].end > handle.size_bytes - ref.size_bytes
        or not handle.key_groups.start <= index.blocks[0].first
        or not index.blocks[-1].last < handle.key_groups.end
    ):
        raise CorruptSegmentError("the index by key group is another segment's")
    return index


def batches_of_part(
    part: Part, key_groups: KeyGroupRange, *, use_threads: bool
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of some key groups in a part. No batch is empty.

    Raises:
        CorruptSegmentError: its blocks are no changes of state, or not those that the index says.
    """
    if not part.blocks:
        return
    with decoding("the segment"):
        schema = _SCHEMAS[part.has_long_offsets]
        reader = open_batches(
            part.data,
            schema,
            count=len(part.blocks),
            limit_bytes=part.limit_bytes,
            use_threads=use_threads,
        )
        for block, batch in zip_longest(part.blocks, reader):
            # As many by their heads; but it is Arrow that reads them.
            if block is None or batch is None:
                raise CorruptSegmentError("the segment has other blocks than its index says")
            check_rows(batch)
            found = batch.num_rows, *_ends_of(batch.column("key_group"))
            if found != (block.rows, block.first, block.last):
                raise CorruptSegmentError(
                    f"a block of the segment has other rows or key groups than its index says: "
                    f"{found}, not {(block.rows, block.first, block.last)}"
                )
            wanted = rows_of(batch, key_groups)
            if wanted.num_rows:
                yield wanted


def _ends_of(column: pa.Array) -> tuple[int | None, int | None]:
    """Returns the first and the last number of a column; None, None if it is empty."""
    if not len(column):
        return None, None
    return column[0].as_py(), column[-1].as_py()


def _index_of(handle: SegmentHandle) -> IndexRef:
    if handle.index is None:
        raise ValueError(f"segment {handle.segment_id} has no index")
    return handle.index
