"""Dropping a job: its files by the ordinary cleanup, then its rows. Safe to kill and to repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import JobToDrop, Size, job_to_drop, mark_dropped, size_of
from cairn.catalog.cleanup.snapshot import JobFacts, read_job
from cairn.errors import CairnError, RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.forget import holds_unknown
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.ownership.check import check_before_cleanup

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """What there was of a job before a call, and what the call has left.

    A dry run leaves all. Of the `left_files`, `waiting_files` wait until they have been condemned
    for `cairn.file-retention`, the first of them until `next_delete_at`; others may still be
    written, for 20 minutes after their intent. `unknown_objects` are below `root`, and no row has
    ever named them: they keep the job. `local_state` is below `cairn.local-dir` of executors.
    """

    job: str
    job_id: str
    dry_run: bool
    files: int
    size_bytes: int
    rows: int
    is_gone: bool
    left_files: int
    waiting_files: int
    next_delete_at: datetime | None
    failed_deletes: int
    unknown_objects: int
    root: str
    local_state: str


def find_job_to_drop(catalog: Catalog, name: str) -> JobToDrop:
    """Returns the job of a name; if there is none, the one that had it and is being deleted.

    Raises:
        BadInputError: there is neither.
    """
    return catalog.run(f"finding job {name}", lambda c: job_to_drop(c, name))


def drop_job(
    catalog: Catalog,
    job: JobToDrop,
    *,
    dry_run: bool = False,
    told: Callable[[Size], None] = lambda _: None,
    progress: Progress = silent,
) -> DropReport:
    """Deletes a job: objects that have been condemned for `cairn.file-retention`, then its rows.

    From the first call on its runs are fenced, and another job may have its name. What has to wait
    is deleted by another call, or by any cleanup. Killed anywhere, those continue. `told` hears
    how much there is.

    Raises:
        RefusedError: a run is alive or a checkpoint is pinned; nothing was changed.
        BadInputError, StoreFailedError: see `cleanup_job`.
    """
    gone = _report(job, None, Size(files=0, size_bytes=0, rows=0), dry_run=dry_run)
    facts = _read(catalog, job)
    # By an earlier call that was killed in its last step, or by a cleanup.
    if facts is None:
        return gone
    try:
        return _drop(catalog, job, facts, dry_run=dry_run, told=told, progress=progress)
    except CairnError:
        # Another call, or a cleanup, may have ended it meanwhile, which each step would find.
        if _read(catalog, job) is None:
            return gone
        raise


def _read(catalog: Catalog, job: JobToDrop) -> JobFacts | None:
    return catalog.run(f"reading job {job.name}", lambda c: read_job(c, job.job_id))


def _drop(
    catalog: Catalog,
    job: JobToDrop,
    facts: JobFacts,
    *,
    dry_run: bool,
    told: Callable[[Size], None],
    progress: Progress,
) -> DropReport:
    store = open_allowed(facts)
    # Before the mark, which cannot be taken back.
    if not facts.is_dropped:
        check_before_cleanup(catalog, store, job.job_id)
    catalog.run(f"dropping job {job.name}", lambda c: mark_dropped(c, job.job_id, dry_run=dry_run))
    size = _size(catalog, job)
    if dry_run:
        return _report(job, facts, size, left=size, dry_run=True)
    told(size)
    # By its id, which is its name now.
    cleaned = cleanup_job(catalog, job.job_id, progress=progress)
    left = _size(catalog, job)
    report = _report(
        job,
        facts,
        size,
        left=left,
        waiting_files=cleaned.waiting_files,
        next_delete_at=cleaned.next_delete_at,
        failed_deletes=cleaned.failed_deletes,
        unknown_objects=0 if left.files else holds_unknown(store, job.job_id),
    )
    _log.info("job dropped", extra=asdict(report))
    return report


def refuse_unknown(report: DropReport) -> None:
    """Raises if objects keep a job that the metastore does not know.

    Raises:
        RefusedError: there are some; somebody has to look whose they are.
    """
    if report.unknown_objects and not report.is_gone:
        raise RefusedError(
            f"{report.root}/ has {report.unknown_objects} objects that the metastore does not "
            "know, so the job stays. Look whose they are, delete them, and drop it again",
            job=report.job,
        )


def _size(catalog: Catalog, job: JobToDrop) -> Size:
    return catalog.run(f"measuring job {job.name}", lambda c: size_of(c, job.job_id))


def _report(
    job: JobToDrop,
    facts: JobFacts | None,
    size: Size,
    *,
    left: Size | None = None,
    dry_run: bool = False,
    waiting_files: int = 0,
    next_delete_at: datetime | None = None,
    failed_deletes: int = 0,
    unknown_objects: int = 0,
) -> DropReport:
    return DropReport(
        job=job.name,
        job_id=job.job_id,
        dry_run=dry_run,
        files=size.files,
        size_bytes=size.size_bytes,
        rows=size.rows,
        is_gone=left is None or not left.rows,
        left_files=0 if left is None else left.files,
        waiting_files=waiting_files,
        next_delete_at=next_delete_at,
        failed_deletes=failed_deletes,
        unknown_objects=unknown_objects,
        root=job.job_id if facts is None else f"{facts.storage}/{job.job_id}",
        local_state=job.job_id,
    )
