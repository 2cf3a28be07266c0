"""Chunks of bytes as one file to read from, without a copy of all of them."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ChunkReader(io.RawIOBase):
    """Reads the concatenation of chunks, from any place on."""

    def __init__(self, chunks: Sequence[bytes | memoryview]) -> None:
        self._chunks = [memoryview(chunk).cast("B") for chunk in chunks if len(chunk)]
        self._ends = list(accumulate(len(chunk) for chunk in self._chunks))
        self._place = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True: a request that failed is sent again from the start."""
        return True

    def tell(self) -> int:
        """Returns the place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a place from the start, from here, or from the end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self)}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fills the buffer as far as there are bytes."""
        target = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(target) and self._place < len(self):
            index = bisect_right(self._ends, self._place)
            start = self._place - (self._ends[index] - len(self._chunks[index]))
            some = self._chunks[index][start : start + len(target) - filled]
            target[filled : filled + len(some)] = some
            filled += len(some)
            self._place += len(some)
        return filled
