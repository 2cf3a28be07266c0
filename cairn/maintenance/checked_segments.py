"""Reading live segments and comparing their bytes with the SHA-256 that was recorded for them.

What seems damaged is read a second time alone, so neither one bad answer of the storage nor a file
that is deleted meanwhile is reported for what it is not; whether a segment is still needed, the
caller asks the metastore again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cairn.catalog.cleanup.verification import LiveSegment
from cairn.errors import StorageError
from cairn.maintenance.pace import Pace
from cairn.storage import ObjectStore
from cairn.storage.store import find_object
from metastore.enums import Damage

READERS = 8
"""Requests at once."""

_PIECE_BYTES = 8 << 20
"""Most bytes of one request: with all readers, 64 MB are in memory."""


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """A segment that was read; `damage` is None where its bytes are those that were recorded."""

    segment: LiveSegment
    damage: Damage | None


def check_segments(
    store: ObjectStore, segments: Sequence[LiveSegment], bytes_pace: Pace | None = None
) -> Iterator[CheckedSegment]:
    """Reads segments, given by path and offset, and yields each with what is wrong with it.

    All threads together keep to a pace of bytes, if there is one.

    Raises:
        StorageError, BadInputError: the storage failed; what is not there is damage.
    """
    reader = _Reader(store, bytes_pace)
    with ThreadPoolExecutor(READERS) as readers:
        for checked in readers.map(reader.check, list(_in_pieces(segments))):
            yield from checked


def _in_pieces(segments: Sequence[LiveSegment]) -> Iterator[list[LiveSegment]]:
    """Yields segments that lie side by side in a file together, as one request reads them."""
    piece: list[LiveSegment] = []
    size_bytes = 0
    for segment in segments:
        if piece and not (
            _follows(piece[-1], segment) and size_bytes + segment.size_bytes <= _PIECE_BYTES
        ):
            yield piece
            piece, size_bytes = [], 0
        piece.append(segment)
        size_bytes += segment.size_bytes
    if piece:
        yield piece


def _follows(one: LiveSegment, other: LiveSegment) -> bool:
    return one.path == other.path and one.offset_bytes + one.size_bytes == other.offset_bytes


class _Reader:
    def __init__(self, store: ObjectStore, bytes_pace: Pace | None) -> None:
        self._store = store
        self._bytes_pace = bytes_pace
        self._lock = threading.Lock()

    def check(self, piece: Sequence[LiveSegment]) -> list[CheckedSegment]:
        """Checks segments that lie side by side."""
        start = piece[0].offset_bytes
        end = piece[-1].offset_bytes + piece[-1].size_bytes
        if end - start > _PIECE_BYTES:  # one large segment
            return [CheckedSegment(piece[0], self._check_alone(piece[0]))]
        try:
            data = memoryview(self._get(piece[0].path, start, end - start))
        except StorageError:
            return [CheckedSegment(segment, self._check_alone(segment)) for segment in piece]
        return [
            CheckedSegment(
                segment,
                None
                if _sha256(data[segment.offset_bytes - start :][: segment.size_bytes])
                == segment.sha256
                else self._check_alone(segment),
            )
            for segment in piece
        ]

    def _check_alone(self, segment: LiveSegment) -> Damage | None:
        end = segment.offset_bytes + segment.size_bytes
        digest = hashlib.sha256()
        try:
            for offset in range(segment.offset_bytes, end, _PIECE_BYTES):
                digest.update(self._get(segment.path, offset, min(_PIECE_BYTES, end - offset)))
        except StorageError:
            found = find_object(self._store, segment.path)
            if found is None:
                return Damage.MISSING
            if found.size_bytes < end:
                return Damage.SHORT
            raise  # it is there: the storage failed
        return None if digest.hexdigest() == segment.sha256 else Damage.CORRUPT

    def _get(self, path: str, offset: int, size_bytes: int) -> bytes:
        if self._bytes_pace is not None:
            with self._lock:
                self._bytes_pace.wait(size_bytes)
        return self._store.get(path, offset, size_bytes)


def _sha256(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
