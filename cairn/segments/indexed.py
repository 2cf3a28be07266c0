"""Writing a segment so that some of its key groups can be read alone: its blocks and its index.

A segment gets an index from `INDEXED_FROM_BYTES` on. Its blocks are cut where key groups begin, at
multiples of a power of two: other parallelisms mostly cut there, too.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from mmap import mmap

from cairn.segment_index import Block, SegmentIndex, encode
from cairn.segments.ipc import places_of

INDEXED_FROM_BYTES = 256 << 10
"""Keys and values of the least segment with an index. A smaller one is a request as it is."""
BLOCK_BYTES = 128 << 10
"""Keys and values of a block, about: setting up zstd for less costs more than its work."""
MOST_BLOCKS = 32
"""About, or twice as many: each costs some 500 bytes."""


def cuts_of(keys: Sequence[bytes], total_bytes: int) -> list[int]:
    """Returns the places, but for the first, where rows in order of key group begin a block."""
    blocks = max(1, min(total_bytes // BLOCK_BYTES, MOST_BLOCKS))
    first, end = group_of(keys[0]), group_of(keys[-1]) + 1
    # A power of two, as numbers of key groups are, and parallelisms often.
    step = 1 << (-(-(end - first) // blocks)).bit_length() - 1
    # Where some key groups have much more than others, fewer of them make a block.
    most_rows = 2 * -(-len(keys) // blocks)
    cuts: list[int] = []
    start, group = 0, first
    while group < end:
        until = min(group - group % step + step, end)
        stop = _first_from(keys, until, start)
        cuts += [*_halves(keys, (group, until), (start, stop), most_rows), stop]
        start, group = stop, until
    return sorted({cut for cut in cuts if 0 < cut < len(keys)})


def _halves(
    keys: Sequence[bytes], groups: tuple[int, int], rows: tuple[int, int], most_rows: int
) -> list[int]:
    """Returns the places that cut the rows of some key groups into parts of few rows."""
    middle = sum(groups) // 2
    if rows[1] - rows[0] <= most_rows or middle == groups[0]:
        return []
    cut = _first_from(keys, middle, *rows)
    before = _halves(keys, (groups[0], middle), (rows[0], cut), most_rows)
    return [*before, cut, *_halves(keys, (middle, groups[1]), (cut, rows[1]), most_rows)]


def _first_from(keys: Sequence[bytes], group: int, *bounds: int) -> int:
    return bisect_left(keys, group.to_bytes(2, "big"), *bounds)


def ending(
    file: memoryview | mmap,
    *,
    keys: Sequence[bytes],
    places: Sequence[slice],
    has_long_offsets: bool,
) -> bytes:
    """Returns the index that follows an Arrow file; `places` has the rows of each record batch."""
    batches = [
        (group_of(keys[rows.start]), group_of(keys[rows.stop - 1]), rows.stop - rows.start)
        for rows in places
    ]
    return index_of(file, batches, has_long_offsets=has_long_offsets)


def index_of(
    file: memoryview | mmap, batches: Sequence[tuple[int, int, int]], *, has_long_offsets: bool
) -> bytes:
    """Returns the index of a file, by each record batch's first and last key group and its rows.

    Nothing for a file without rows.
    """
    view = memoryview(file)
    blocks = [
        Block(
            first=first,
            last=last,
            rows=rows,
            offset=offset,
            size_bytes=size_bytes,
            sha256=hashlib.sha256(view[offset : offset + size_bytes]).digest(),
        )
        for (first, last, rows), (offset, size_bytes) in zip(batches, places_of(file), strict=True)
    ]
    # By key group, and without gaps: else a range of key groups is not a range of bytes.
    if not blocks or any(
        one.last > other.first or one.end != other.offset for one, other in pairwise(blocks)
    ):
        return b""
    return encode(SegmentIndex(blocks, has_long_offsets))


def group_of(key: bytes) -> int:
    """Returns the key group of an entry's key, or of a prefix of one."""
    return int.from_bytes(key[:2], "big")
