"""The index of a segment by key group: which of its bytes hold which key groups, with checksums.

It follows the segment's Arrow file, and is the last part of the segment:

    block*  |  place of the first block (8)  |  are offsets of 64 bits (1)  |  blocks (4)
            |  version (1)  |  magic (4)

A block is one record batch: first and last key group (2, 2), rows (4), size (8), SHA-256 (32).
Numbers are big-endian. Blocks follow each other without gaps, by key group; a large key group has
several. The handle of the segment has the size and the SHA-256 of the index. So two requests read
some key groups, and what they return is checked to the bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap

from cairn.errors import CorruptSegmentError
from cairn.keygroups import KeyGroupRange

MAGIC = b"CKGI"
VERSION = 1

_BLOCK = struct.Struct(">HHIQ32s")
_END = struct.Struct(">Q?IB4s")


@dataclass(frozen=True, slots=True)
class IndexRef:
    """What a handle says of its segment's index: size, and SHA-256 in hex. It is the last part."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring bytes of a segment with the rows of the key groups `first` to `last`.

    `offset` is the place in the segment, `sha256` the digest of the bytes.
    """

    first: int
    last: int
    rows: int
    offset: int
    size_bytes: int
    sha256: bytes

    @property
    def end(self) -> int:
        """The place after the last byte."""
        return self.offset + self.size_bytes

    def check(self, data: bytes | memoryview) -> None:
        """Compares bytes with the checksum.

        Raises:
            CorruptSegmentError: they are others.
        """
        found = hashlib.sha256(data).digest()
        if found != self.sha256:
            raise CorruptSegmentError(
                f"the {self.size_bytes} bytes of key groups {self.first} to {self.last} are not "
                f"what was written: expected SHA-256 {self.sha256.hex()}, found {found.hex()}"
            )


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The blocks of a segment, by key group; `has_long_offsets` tells which of two schemas it has.

    At least one block.
    """

    blocks: Sequence[Block]
    has_long_offsets: bool

    @property
    def rows(self) -> int:
        """The rows of the whole segment."""
        return sum(block.rows for block in self.blocks)

    def within(self, key_groups: KeyGroupRange) -> list[Block]:
        """Returns the blocks that have some of the key groups; they follow each other."""
        return [
            block
            for block in self.blocks
            if block.first < key_groups.end and key_groups.start <= block.last
        ]


def encode(index: SegmentIndex) -> bytes:
    """Returns the bytes of an index."""
    rows = b"".join(
        _BLOCK.pack(block.first, block.last, block.rows, block.size_bytes, block.sha256)
        for block in index.blocks
    )
    start = index.blocks[0].offset
    return rows + _END.pack(start, index.has_long_offsets, len(index.blocks), VERSION, MAGIC)


def decode(data: bytes) -> SegmentIndex:
    """Returns the index in its bytes.

    Raises:
        CorruptSegmentError: they are no index, or one of another version.
    """
    end_bytes, (offset, has_long_offsets, _) = _end_of(data)
    blocks: list[Block] = []
    for first, last, rows, size_bytes, sha256 in _BLOCK.iter_unpack(data[:-end_bytes]):
        block = Block(
            first=first, last=last, rows=rows, offset=offset, size_bytes=size_bytes, sha256=sha256
        )
        blocks.append(block)
        offset = block.end
    in_order = all(one.last <= other.first for one, other in pairwise(blocks))
    if not in_order or not all(one.first <= one.last and one.rows for one in blocks):
        raise CorruptSegmentError("the segment's index by key group has blocks out of order")
    return SegmentIndex(blocks, has_long_offsets)


def index_ref(segment: bytes | mmap) -> IndexRef | None:
    """Returns what a handle says of the index of a whole segment; None if it has none."""
    size_bytes = index_bytes(segment)
    if not size_bytes:
        return None
    return IndexRef(size_bytes, hashlib.sha256(memoryview(segment)[-size_bytes:]).hexdigest())


def index_bytes(segment: bytes | mmap) -> int:
    """Returns the size of the index at the end of a segment; 0 if it has none.

    Raises:
        CorruptSegmentError: it has one that does not fit, or is of another version.
    """
    if segment[-len(MAGIC) :] != MAGIC:
        return 0
    end_bytes, (_, _, count) = _end_of(segment, is_whole=True)
    return end_bytes + _BLOCK.size * count


def _end_of(data: bytes | mmap, *, is_whole: bool = False) -> tuple[int, tuple[int, bool, int]]:
    """Returns the size of the last part of an index, and what it says."""
    if len(data) < _END.size:
        raise CorruptSegmentError("the segment's index by key group is cut off")
    offset, has_long_offsets, count, version, magic = _END.unpack(data[-_END.size :])
    if magic != MAGIC:
        raise CorruptSegmentError("the segment has no index by key group where one is recorded")
    if version != VERSION:
        raise CorruptSegmentError(
            f"the segment's index by key group has version {version}, this version of Cairn reads "
            f"version {VERSION}: use the version of Cairn that wrote it"
        )
    size_bytes = _END.size + _BLOCK.size * count
    if not count or (size_bytes > len(data) if is_whole else size_bytes != len(data)):
        raise CorruptSegmentError(
            f"the segment's index by key group has {count} blocks in {len(data)} bytes"
        )
    return _END.size, (offset, has_long_offsets, count)
