"""Comparing a job's objects with its rows: one listing, and the bytes themselves if asked to.

Nothing is locked, and writers and cleanups continue. So what does not fit is only suspected, and is
looked at again: the row, then the object, then the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

from sqlalchemy import Connection

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.verification import (
    KnownFile,
    LiveSegment,
    files_at,
    live_segments_of,
)
from cairn.catalog.jobs import find_job
from cairn.layout import generation_of
from cairn.maintenance.checked_segments import check_segments
from cairn.maintenance.merge_rows import PAGE_FILES, beside, file_rows
from cairn.storage import ObjectStore, StoredObject, open_store
from metastore.enums import Damage, FileStatus

T = TypeVar("T")

FILES_READ = 50
"""Files whose segments are in memory at once: a file may have thousands."""


class Problem(StrEnum):
    """What is wrong with an object."""

    MISSING = "missing"
    SHORT = "shorter than sealed"
    CORRUPT = "other bytes than sealed"
    DELETED = "deleted, but still there"
    UNKNOWN = "no row knows it"

    @property
    def is_damage(self) -> bool:
        """Whether a checkpoint may need what is gone."""
        return self in (Problem.MISSING, Problem.SHORT, Problem.CORRUPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An object that is not as its row says, or has none.

    `wanted_bytes` are those that were sealed, None where no row says so; of a corrupt segment its
    size, and `offset_bytes` where it begins. `found_bytes` and `modified_at` are the storage's.
    """

    problem: Problem
    path: str
    wanted_bytes: int | None = None
    offset_bytes: int | None = None
    found_bytes: int | None = None
    modified_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A job to verify, with its metastore and storage.

    `progress` is called with the number of objects that were compared, or segments that were read.
    """

    catalog: Catalog
    store: ObjectStore
    job: str
    job_id: str
    progress: Callable[[int], None]

    def compare(self) -> Iterator[Finding]:
        """Yields what is missing, shorter than sealed, left over, or known to no row.

        A file that is longer than sealed is whole: its writer may be adding to it.

        Raises:
            StoreFailedError: the metastore or the storage failed, or the storage is not there.
        """
        suspects = _suspects(self._files(), self._objects())
        while batch := dict(islice(suspects, PAGE_FILES)):
            yield from self._look_again(batch)

    def read(self) -> Iterator[Finding]:
        """Yields the live segments whose bytes are not those that were sealed.

        What is missing or too short is left to `compare`.

        Raises:
            StoreFailedError: the metastore or the storage failed.
        """
        done = 0
        for segments in self._live_segments():
            for checked in check_segments(self.store, segments):
                done += 1
                self.progress(done)
                segment = checked.segment
                if checked.damage is Damage.CORRUPT and self._is_live(segment):
                    yield Finding(
                        problem=Problem.CORRUPT,
                        path=segment.path,
                        wanted_bytes=segment.size_bytes,
                        offset_bytes=segment.offset_bytes,
                    )

    def _live_segments(self) -> Iterator[list[LiveSegment]]:
        """Yields the live segments of a few files at a time."""
        needed = (file.file_id for file in self._files() if file.needs_bytes)
        while file_ids := list(islice(needed, FILES_READ)):
            yield self._run(partial(live_segments_of, file_ids=file_ids))

    def _files(self) -> Iterator[KnownFile]:
        return file_rows(self._run, self.job_id)

    def _objects(self) -> Iterator[StoredObject]:
        for number, found in enumerate(self.store.list(f"{self.job_id}/"), start=1):
            self.progress(number)
            # Who owns the root is no file of it, and has no row.
            if generation_of(found.path) is None:
                yield found

    def _look_again(self, suspects: Mapping[str, StoredObject | None]) -> Iterator[Finding]:
        """Yields what is wrong with suspects, which are given with what the listing showed.

        What is needed before and after its object was looked for was needed then. An object whose
        row is not found after it was listed has none, because the row is first.
        """
        # No row has a path of another form, nor can it be asked for.
        paths = [path for path in suspects if path.isprintable()]
        before = self._at(paths)
        present = self._present(paths)
        after = self._at(paths)
        for path, listed in suspects.items():
            found = present.get(path) if path.isprintable() else listed
            file = before.get(path)
            problem = _problem(file, after.get(path), found)
            if problem is not None:
                yield Finding(
                    problem=problem,
                    path=path,
                    wanted_bytes=file.size_bytes if file else None,
                    found_bytes=found.size_bytes if found else None,
                    modified_at=found.modified_at if found else None,
                )

    def _at(self, paths: Sequence[str]) -> dict[str, KnownFile]:
        return self._run(partial(files_at, job_id=self.job_id, paths=paths))

    def _run(self, read: Callable[[Connection], T]) -> T:
        return self.catalog.run(f"reading the files of job {self.job}", read)

    def _present(self, paths: Sequence[str]) -> dict[str, StoredObject]:
        """Returns those objects that are there, with one listing for each of their directories."""
        found: dict[str, StoredObject] = {}
        for directory, group in groupby(sorted(paths), key=lambda path: path.rpartition("/")[0]):
            wanted = set(group)
            last = max(wanted)
            for stored in self.store.list(f"{directory}/"):
                if stored.path > last:
                    break
                if stored.path in wanted:
                    found[stored.path] = stored
        return found

    def _is_live(self, segment: LiveSegment) -> bool:
        live = self._run(partial(live_segments_of, file_ids=[segment.file_id]))
        return segment.segment_id in {one.segment_id for one in live}


def verification_of(
    catalog: Catalog, job_name: str, progress: Callable[[int], None] = lambda done: None
) -> Verification:
    """Returns what verifies a job.

    Raises:
        BadInputError: there is no such job.
        MetastoreError: the metastore cannot be read.
    """
    job = catalog.run(f"finding job {job_name}", lambda c: find_job(c, job_name))
    return Verification(
        catalog=catalog,
        store=open_store(job.storage),
        job=job_name,
        job_id=job.job_id,
        progress=progress,
    )


def _suspects(
    files: Iterator[KnownFile], objects: Iterator[StoredObject]
) -> Iterator[tuple[str, StoredObject | None]]:
    """Yields paths where a row and an object, both in order of paths, do not fit as they were read.

    With them the object, or None where the listing had none.
    """
    for path, file, found in beside(files, objects):
        needs_bytes = file.needs_bytes if file else 0
        if file is None or (needs_bytes and (found is None or found.size_bytes < needs_bytes)):
            yield path, found


def _problem(
    before: KnownFile | None, after: KnownFile | None, found: StoredObject | None
) -> Problem | None:
    """Returns what is wrong with an object that was looked for between two readings of its row."""
    if before is None:
        return Problem.UNKNOWN if found else None
    if before.status is FileStatus.DELETED:
        return Problem.DELETED if found else None
    if after is None or not after.needs_bytes or not before.needs_bytes:
        return None
    if found is None:
        return Problem.MISSING
    # As it was sealed before: it may have been continued since.
    return Problem.SHORT if found.size_bytes < before.needs_bytes else None
