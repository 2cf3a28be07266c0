"""Copying bases and increments into new files, and putting the copies in their place."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from uuid import UUID, uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.group_commits import StoredSegment
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.moves import swap_in
from cairn.handles import SegmentHandle
from cairn.maintenance.leased_files import copy_leased_file
from cairn.storage import ObjectStore
from cairn.storage.ranges import ByteRange

FILE_BYTES = 64 << 20
"""About how large a new file gets: a small one is seldom replaced in part while it is copied."""
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class NewFile:
    """Segments of one subtask that are to share a new file, in order of their key groups."""

    segments: tuple[StoredSegment, ...]

    @property
    def size_bytes(self) -> int:
        """How many bytes it gets."""
        return sum(one.handle.size_bytes for one in self.segments)

    @property
    def sources(self) -> set[UUID]:
        """The files that its segments are in now."""
        return {UUID(one.file_id) for one in self.segments}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """How copying a new file ended. `passed_bytes` of it were read and written by this process.

    It `is_swapped_in` unless the job, or another maintenance run, has replaced a segment meanwhile.
    Then its file is never sealed, and the cleanup deletes it.
    """

    file: NewFile
    passed_bytes: int
    is_swapped_in: bool


def new_files(segments: Iterable[StoredSegment]) -> list[NewFile]:
    """Returns the files to write: each of one subtask, as a materialization of it makes them.

    What one materialization replaces together is together, so a file is not held by a part of it.
    """
    files = []
    ordered = sorted(segments, key=_place)
    for _, of_subtask in groupby(ordered, key=lambda one: one.subtask):
        inside: list[StoredSegment] = []
        size_bytes = 0
        for one in of_subtask:
            inside.append(one)
            size_bytes += one.handle.size_bytes
            if size_bytes >= FILE_BYTES:
                files.append(NewFile(tuple(inside)))
                inside, size_bytes = [], 0
        if inside:
            files.append(NewFile(tuple(inside)))
    return files


def _place(one: StoredSegment) -> tuple[int | str, ...]:
    handle = one.handle
    # Neighbours in one file stay neighbours: the store copies them in one request.
    return (one.subtask, handle.as_of_checkpoint, handle.path, handle.offset)


def copy_all(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    files: Iterable[NewFile],
) -> list[Copied]:
    """Copies files, several at once, and swaps each in as soon as it is whole.

    Raises:
        FencedError: the lease was lost.
        StoreFailedError, CorruptSegmentError: a copy failed. The others were made all the same.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        under_way = [threads.submit(copy_one, catalog, job, store, lease, file) for file in files]
    return [one.result() for one in under_way]


def copy_one(
    catalog: Catalog, job: JobFacts, store: ObjectStore, lease: LeaseRef, file: NewFile
) -> Copied:
    """Copies one file and swaps it in: an intent, the bytes, and one transaction.

    Raises:
        FencedError: the lease was lost.
        StoreFailedError, CorruptSegmentError: the copy failed; the file is left to the cleanup.
    """
    ranges = [_range_of(one.handle) for one in file.segments]
    written, passed_bytes = copy_leased_file(catalog, job, store, lease, ranges)
    copies = _copies(file, written.path)
    is_swapped_in = catalog.run(
        f"putting copies in the place of segments of job {job.name}",
        lambda c: swap_in(c, lease, written.file, copies),
    )
    return Copied(file=file, passed_bytes=passed_bytes, is_swapped_in=is_swapped_in)


def _range_of(handle: SegmentHandle) -> ByteRange:
    return ByteRange(
        path=handle.path,
        offset=handle.offset,
        size_bytes=handle.size_bytes,
        sha256=handle.sha256,
    )


def _copies(file: NewFile, path: str) -> list[tuple[StoredSegment, SegmentHandle]]:
    """Returns each original with its copy, whose first checkpoint the swap sets."""
    copies, offset = [], 0
    for one in file.segments:
        copy = replace(one.handle, segment_id=str(uuid4()), path=path, offset=offset)
        copies.append((one, copy))
        offset += copy.size_bytes
    return copies
