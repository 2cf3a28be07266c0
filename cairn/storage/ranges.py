"""Ranges of objects that are copied into a new one, and the parts that S3 takes for it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cairn.errors import CorruptSegmentError

LEAST_PART_BYTES = 5 << 20
"""S3 takes no smaller part of an upload, but for its last one."""
MOST_PART_BYTES = 1 << 30
"""S3 copies up to 5 GiB in a request; less ends in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Bytes of an object that is there.

    Where they pass through this process they are compared with `sha256`, in hex, if it is given.
    """

    path: str
    offset: int
    size_bytes: int
    sha256: str | None = None

    @property
    def end(self) -> int:
        """The place after the last byte."""
        return self.offset + self.size_bytes

    def check(self, data: bytes) -> None:
        """Compares bytes with the checksum, if there is one.

        Raises:
            CorruptSegmentError: they are others.
        """
        if self.sha256 is not None and hashlib.sha256(data).hexdigest() != self.sha256:
            raise CorruptSegmentError(
                f"the SHA-256 of {self.size_bytes} bytes to copy is not the recorded one; nothing "
                "was written. `cairn verify --checksums` says what needs them",
                file=self.path,
                offset=self.offset,
            )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload: neighbours in one object, copied by the server, or any ranges, read."""

    ranges: tuple[ByteRange, ...]
    is_copied: bool

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return sum(one.size_bytes for one in self.ranges)


def plan_parts(ranges: Sequence[ByteRange]) -> list[Part]:
    """Returns the parts that make up the ranges, in their order.

    The server copies wherever neighbours in one object have `LEAST_PART_BYTES`. What is smaller is
    read, and filled up with the bytes after it to that size.
    """
    parts: list[Part] = []
    read: list[ByteRange] = []
    for run in _runs(ranges):
        rest = list(run)
        if read:
            read, rest = _fill(read, rest)
            if _size(read) >= LEAST_PART_BYTES:
                parts.append(Part(tuple(read), is_copied=False))
                read = []
        if _size(rest) >= LEAST_PART_BYTES:
            parts += _copied(rest)
        else:
            read += rest
    if read:
        parts.append(Part(tuple(read), is_copied=False))
    return parts


def _runs(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yields the ranges, those together that follow each other in one object."""
    wanted = [one for one in ranges if one.size_bytes]
    run = wanted[:1]
    for before, one in pairwise(wanted):
        if (before.path, before.end) == (one.path, one.offset):
            run.append(one)
        else:
            yield run
            run = [one]
    if run:
        yield run


def _fill(read: list[ByteRange], run: list[ByteRange]) -> tuple[list[ByteRange], list[ByteRange]]:
    """Returns what is to be read with the run's beginning, and what the server can copy of it."""
    taken, rest = list(read), list(run)
    while rest and _size(taken) < LEAST_PART_BYTES:
        missing_bytes = LEAST_PART_BYTES - _size(taken)
        first = rest[0]
        # Cut only where enough is left for the server; whole ranges have a checksum.
        if first.size_bytes > missing_bytes and _size(rest) - missing_bytes >= LEAST_PART_BYTES:
            taken.append(_cut(first, 0, missing_bytes))
            rest[0] = _cut(first, missing_bytes, first.size_bytes - missing_bytes)
        else:
            taken.append(rest.pop(0))
    if rest and _size(rest) < LEAST_PART_BYTES:
        return [*taken, *rest], []
    return taken, rest


def _copied(run: Sequence[ByteRange]) -> Iterator[Part]:
    """Yields neighbours as few parts of about one size."""
    first, size_bytes = run[0], _size(run)
    count = -(-size_bytes // MOST_PART_BYTES)
    whole = ByteRange(path=first.path, offset=first.offset, size_bytes=size_bytes)
    places = [size_bytes * number // count for number in range(count + 1)]
    for start, end in pairwise(places):
        yield Part((_cut(whole, start, end - start),), is_copied=True)


def _cut(one: ByteRange, start: int, size_bytes: int) -> ByteRange:
    return ByteRange(path=one.path, offset=one.offset + start, size_bytes=size_bytes)


def _size(ranges: Sequence[ByteRange]) -> int:
    return sum(one.size_bytes for one in ranges)
