"""Reading what checkpoints need before they need it: damage is found while there is a way back.

A scrub changes rows only: when a file was read last, and which segments are damaged. It takes no
lock that a batch waits for, and may be killed at any time and run twice at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.scrubbing import (
    FileTotal,
    FoundDamage,
    damaged_segments,
    files_at,
    known_damage,
    needed_files,
    needed_files_after,
    newest_whole_checkpoint,
    record_scrubbed,
    sample_of_files,
)
from cairn.catalog.cleanup.snapshot import JobFacts, facts_of_job
from cairn.catalog.cleanup.verification import LiveSegment, live_segments_of
from cairn.errors import BadInputError
from cairn.maintenance.checked_segments import check_segments
from cairn.maintenance.merge_rows import PAGE_FILES
from cairn.maintenance.pace import Pace
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.maintenance.verify import FILES_READ
from cairn.ownership.check import require_owner
from cairn.storage import ObjectStore
from metastore.enums import Damage

_log = logging.getLogger(__name__)

DEFAULT_SAMPLE_PERCENT = 4.0
"""Of the live bytes: with a scrub a day each byte is read in 25 days."""

MOST_DAMAGED = 10_000
"""A scrub that has found more damaged segments stops: the storage is lost, and each cleanup, scrape
and list of checkpoints looks at these rows."""

_FIRST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What a scrub has read, and what a job's damage is after it; of a dry run, what it would read.

    `needed_files` hold all `needed_bytes` that a whole scrub reads. `found_segments` were found
    damaged by this call, `resolved_segments` were known as damaged and are whole again.
    `damaged_segments` is the number of all that checkpoints need. `newest_whole_checkpoint` is the
    newest confirmed one that needs none of them; None where there is none or nothing is damaged.
    """

    job: str
    dry_run: bool
    files: int
    segments: int
    read_bytes: int
    needed_files: int
    needed_bytes: int
    found_segments: int
    resolved_segments: int
    damaged_segments: int
    newest_whole_checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Sums over what was read."""

    files: int = 0
    segments: int = 0
    size_bytes: int = 0
    found: int = 0
    resolved: int = 0


def scrub_job(
    catalog: Catalog,
    job_name: str,
    *,
    sample_percent: float | None = DEFAULT_SAMPLE_PERCENT,
    max_bytes_per_s: int | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> ScrubReport:
    """Reads a share of the segments that a job's checkpoints need, and records what is damaged.

    Those that were read longest ago come first, and before them what is known as damaged.
    `sample_percent` is a share of the live bytes, None: all of them. A dry run reads no object.

    Raises:
        BadInputError: there is no such job, the share is none, or `CAIRN_STORAGES` is not set.
        RefusedError: the job's storage is not one that this process may read, or its root is
            another metastore's, so what is missing there may be right.
        StoreFailedError: the metastore or the storage failed; call again.
    """
    if sample_percent is not None and not 0 < sample_percent <= 100:
        raise BadInputError(f"a sample is more than 0 % and at most 100 %; found {sample_percent}")
    job = catalog.run(f"finding job {job_name}", lambda c: facts_of_job(c, job_name))
    store = open_allowed(job)
    needed = catalog.run("counting what a scrub reads", lambda c: needed_files(c, job.job_id))
    read = _Read()
    # Of a dropped job no checkpoint is needed, and one without files may have no root yet.
    if needed.files and not job.is_dropped:
        require_owner(catalog, store, job.job_id)
        scrub = _Scrub(
            catalog=catalog,
            job=job,
            store=store,
            bytes_pace=None if max_bytes_per_s is None else Pace(max_bytes_per_s),
            progress=progress,
        )
        read = scrub.forecast(sample_percent) if dry_run else scrub.run(sample_percent)
    return _report(catalog, job, needed, read, dry_run=dry_run)


def _report(
    catalog: Catalog, job: JobFacts, needed: FileTotal, read: _Read, *, dry_run: bool
) -> ScrubReport:
    damaged = [] if job.is_dropped else find_damage(catalog, job.job_id)
    report = ScrubReport(
        job=job.name,
        dry_run=dry_run,
        files=read.files,
        segments=read.segments,
        read_bytes=read.size_bytes,
        needed_files=needed.files,
        needed_bytes=needed.live_bytes,
        found_segments=read.found,
        resolved_segments=read.resolved,
        damaged_segments=len(damaged),
        newest_whole_checkpoint=catalog.run(
            "finding a whole checkpoint", lambda c: newest_whole_checkpoint(c, job.job_id)
        ),
    )
    _log.info("job scrubbed", extra=asdict(report))
    return report


def scrub_files(catalog: Catalog, job: JobFacts, store: ObjectStore, paths: Sequence[str]) -> None:
    """Reads what is live in some files of a job, by path, and records what is damaged.

    Raises:
        RefusedError: the job's root is another metastore's.
        StoreFailedError: the metastore or the storage failed; call again.
    """
    scrub = _Scrub(catalog=catalog, job=job, store=store, bytes_pace=None, progress=silent)
    scrub.read_all(
        catalog.run("finding what a scrub reads", lambda c: files_at(c, job.job_id, paths))
    )


def find_damage(catalog: Catalog, job_id: str) -> list[Mapping[str, Any]]:
    """Returns the damaged segments of a job with all that needs them (`v_damaged_segments`)."""
    return catalog.run("reading what is damaged", lambda c: damaged_segments(c, job_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scrub:
    catalog: Catalog
    job: JobFacts
    store: ObjectStore
    bytes_pace: Pace | None
    progress: Progress

    def run(self, sample_percent: float | None) -> _Read:
        return self.read_all(self._chosen(sample_percent))

    def read_all(self, file_ids: Iterable[UUID]) -> _Read:
        read, files = _Read(), iter(file_ids)
        while some := list(islice(files, FILES_READ)):
            read = self._scrub(some, read)
            if read.found > MOST_DAMAGED:
                _log.error("so much is damaged that the scrub stops", extra={"job": self.job.name})
                break
        return read

    def forecast(self, sample_percent: float | None) -> _Read:
        read = _Read()
        files = self._chosen(sample_percent)
        while some := list(islice(files, FILES_READ)):
            segments = self.catalog.run(
                "reading what a scrub reads", partial(live_segments_of, file_ids=some)
            )
            read = replace(
                read,
                files=read.files + len(some),
                segments=read.segments + len(segments),
                size_bytes=read.size_bytes + sum(one.size_bytes for one in segments),
            )
        return read

    def _chosen(self, sample_percent: float | None) -> Iterator[UUID]:
        """Yields files, each once: those that are known as damaged, then the sample or all."""
        job_id = self.job.job_id
        known = self.catalog.run("reading what is damaged", lambda c: known_damage(c, job_id))
        yield from known
        done = set(known)
        others = self._all() if sample_percent is None else self._sample(sample_percent)
        yield from (file_id for file_id in others if file_id not in done)

    def _sample(self, percent: float) -> Iterator[UUID]:
        job_id = self.job.job_id
        yield from self.catalog.run(
            "choosing what a scrub reads", lambda c: sample_of_files(c, job_id, percent=percent)
        )

    def _all(self) -> Iterator[UUID]:
        after = _FIRST_ID
        while page := self.catalog.run(
            "choosing what a scrub reads",
            partial(needed_files_after, job_id=self.job.job_id, after=after, limit=PAGE_FILES),
        ):
            yield from page
            after = page[-1]

    def _scrub(self, file_ids: list[UUID], read: _Read) -> _Read:
        segments = self.catalog.run(
            "reading what a scrub reads", partial(live_segments_of, file_ids=file_ids)
        )
        damaged: list[tuple[LiveSegment, Damage]] = []
        whole: list[UUID] = []
        for checked in check_segments(self.store, segments, self.bytes_pace):
            if checked.damage is None:
                whole.append(checked.segment.segment_id)
            else:
                damaged.append((checked.segment, checked.damage))
            self.progress("segments read", 1)
        if damaged:
            # Once more: a storage that has just gone, or was taken over, is not damaged.
            require_owner(self.catalog, self.store, self.job.job_id)
        found = self._still_needed(damaged)
        recorded = self.catalog.run(
            "recording what a scrub has found",
            lambda c: record_scrubbed(
                c,
                self.job.job_id,
                file_ids=file_ids,
                damage=found,
                whole_segments=whole,
            ),
        )
        return _Read(
            files=read.files + len(file_ids),
            segments=read.segments + len(segments),
            size_bytes=read.size_bytes + sum(one.size_bytes for one in segments),
            found=read.found + recorded.damaged,
            resolved=read.resolved + recorded.resolved,
        )

    def _still_needed(self, damaged: list[tuple[LiveSegment, Damage]]) -> list[FoundDamage]:
        """Returns those that are live: others may be missing because a cleanup deleted them."""
        if not damaged:
            return []
        file_ids = sorted({segment.file_id for segment, _ in damaged})
        live = self.catalog.run(
            "looking at damage again", partial(live_segments_of, file_ids=file_ids)
        )
        live_ids = {one.segment_id for one in live}
        found = []
        for segment, damage in damaged:
            if segment.segment_id not in live_ids:
                continue
            facts = {
                "job": self.job.name,
                "file": segment.path,
                "offset": segment.offset_bytes,
                "size_bytes": segment.size_bytes,
            }
            _log.warning("a segment that checkpoints need is %s", damage, extra=facts)
            found.append(
                FoundDamage(segment_id=segment.segment_id, file_id=segment.file_id, damage=damage)
            )
        return found
