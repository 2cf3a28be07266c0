"""The subsumption cleanup of one job: plan, store, apply, delete. Safe to run at any time."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.apply import Applied, apply_plan
from cairn.catalog.cleanup.deletions import FileTotal, OpenDeletes, total_open
from cairn.catalog.cleanup.history import forecast_history
from cairn.catalog.cleanup.snapshot import (
    PLAN_ROWS,
    CleanupSnapshot,
    JobFacts,
    read_job,
    read_snapshot,
)
from cairn.catalog.maintenance.facts import job_now
from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN, StoredPlan, note_good_run
from cairn.errors import RefusedError
from cairn.maintenance.breakers import PlannedDeletes, counted_files, limits_of
from cairn.maintenance.deleter import delete_condemned, delete_directories
from cairn.maintenance.forget import forget_job, has_left
from cairn.maintenance.housekeeping import trim_job
from cairn.maintenance.plans import Plan, digest_of, refuse_spoken, store
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from cairn.ownership.check import check_before_cleanup
from cairn.storage import ObjectStore
from metastore.enums import MaintenanceAction

_log = logging.getLogger(__name__)

_TRIM_STEPS = 10
"""Most transactions of a cleanup that trim: with a cleanup each ten minutes, 16 batches a second.
Where there is more, such as after the policy was changed, housekeeping does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What a cleanup changed; of a dry run, what one would change now.

    `failed_deletes` objects could not be deleted and are tried again by the next cleanup.
    `waiting_files` are condemned and wait until that is `cairn.file-retention` ago, the first of
    them until `next_delete_at` (None: there are none). The rows of `trimmed_checkpoints` and
    `trimmed_files` have left the metastore.
    """

    job: str
    dry_run: bool
    subsumed_checkpoints: int
    dead_segments: int
    condemned_files: int
    deleted_files: int
    freed_bytes: int
    failed_deletes: int
    waiting_files: int
    waiting_bytes: int
    next_delete_at: datetime | None
    trimmed_checkpoints: int
    trimmed_files: int


def cleanup_job(
    catalog: Catalog, job_name: str, *, dry_run: bool = False, progress: Progress = silent
) -> CleanupReport:
    """Subsumes a job's old checkpoints, deletes the files that nothing needs, trims the history.

    Files are deleted once they have been condemned for `cairn.file-retention`, by the next cleanup
    after that. Deletes what an earlier cleanup left behind, too. Any number may run at once, also
    beside the job itself. A dry run changes nothing, in the metastore and in storage; where there
    is more to do than fits one plan (`cairn.catalog.cleanup.snapshot.PLAN_ROWS`), it reports the
    first plan. Of a job that was dropped it deletes all, its rows last.

    Raises:
        BadInputError: there is no such job, or `CAIRN_STORAGES` is not set.
        RefusedError: a rule that keeps state safe would be broken, the job's storage is not one
            that this process may clean, its root is another metastore's, or a circuit breaker
            spoke; nothing more was changed.
        StoreFailedError: the metastore or the storage failed; call again to continue.
    """
    snapshot = _read(catalog, job_name)
    objects = _open_checked(catalog, snapshot.job)
    plan = plan_subsumption(snapshot)
    if dry_run:
        return _forecast(catalog, snapshot, plan)
    applied = _apply_plans(catalog, snapshot, plan, progress)
    report = _finish(catalog, snapshot.job, objects, applied, progress)
    catalog.run(
        f"noting that job {job_name} is clean",
        lambda c: note_good_run(c, snapshot.job.job_id, MaintenanceAction.SUBSUMPTION),
    )
    return report


def plan_cleanup(catalog: Catalog, job_name: str) -> Plan:
    """Plans the subsumption of one job: as much as one transaction applies.

    Raises:
        see `cleanup_job`.
    """
    snapshot = _read(catalog, job_name)
    _open_checked(catalog, snapshot.job)
    return _to_store(catalog, snapshot.job, plan_subsumption(snapshot))


def apply_cleanup(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Applies a stored plan of a subsumption, then deletes and trims what is due.

    Raises:
        RefusedError: the plan is older than `PLAN_LIFE_MIN`, or see `cleanup_job`.
        StoreFailedError: see `cleanup_job`.
    """
    job = catalog.run(f"reading job {plan.job}", lambda c: read_job(c, plan.job_id))
    if job is None:
        raise RefusedError("the job was dropped, and is deleted", job=plan.job)
    objects = _open_checked(catalog, job)
    report = _finish(catalog, job, objects, apply_stored(catalog, job, plan), progress)
    next_at = report.next_delete_at
    return {**asdict(report), "next_delete_at": next_at and next_at.isoformat()}


def _read(catalog: Catalog, job_name: str) -> CleanupSnapshot:
    return catalog.run(f"reading what job {job_name} keeps", lambda c: read_snapshot(c, job_name))


def _open_checked(catalog: Catalog, job: JobFacts) -> ObjectStore:
    # First: a job that somebody else has made up is not even planned.
    objects = open_allowed(job)
    # Of a dropped job without files only the root is left, which may have no owner any more.
    if not job.is_dropped or has_left(catalog, job):
        check_before_cleanup(catalog, objects, job.job_id)
    return objects


def _to_store(catalog: Catalog, job: JobFacts, plan: SubsumptionPlan) -> Plan:
    limits = limits_of(os.environ, MaintenanceAction.SUBSUMPTION)
    files = [file.file_id for file in plan.condemned_files]
    most = counted_files(len(files), limits)
    now = catalog.run(
        f"reading what is left of job {job.name}",
        lambda c: job_now(c, job.job_id, files, most=most),
    )
    deletes = PlannedDeletes(
        files=len(files),
        size_bytes=plan.freed_bytes,
        recent_bytes=now.recent_bytes,
        left_files=now.left_files,
        # Who only removes what was never sealed takes nothing from any state.
        must_leave=now.must_leave and plan.freed_bytes > 0,
        clock_behind_ms=now.clock_behind_ms,
    )
    return Plan(
        job=job,
        action=MaintenanceAction.SUBSUMPTION,
        content=plan.to_json(),
        deletes=deletes,
        is_empty=plan.is_empty,
    )


def _apply_plans(
    catalog: Catalog, snapshot: CleanupSnapshot, plan: SubsumptionPlan, progress: Progress
) -> Applied:
    """Applies a plan and those after it, until there is nothing to do; returns the changes."""
    job, subsumed, dead, condemned = snapshot.job, 0, 0, 0
    # Plan by plan, each bounded: one transaction for all of it would hold the job's lock for long.
    while not plan.is_empty:
        stored = record_plan(catalog, job, plan)
        refuse_spoken(stored)
        applied = apply_stored(catalog, job, stored)
        subsumed += applied.subsumed_checkpoints
        dead += applied.dead_segments
        condemned += applied.condemned_files
        progress("files condemned", applied.condemned_files)
        if applied == Applied(0, 0, 0):
            break  # another cleanup was faster
        plan = plan_subsumption(_read(catalog, job.name))
    return Applied(subsumed, dead, condemned)


def record_plan(catalog: Catalog, job: JobFacts, plan: SubsumptionPlan) -> StoredPlan:
    """Stores a plan, with what circuit breakers say about it."""
    return store(catalog, _to_store(catalog, job, plan))


def apply_stored(catalog: Catalog, job: JobFacts, stored: StoredPlan) -> Applied:
    """Executes those steps of a stored plan that still hold and returns the changes.

    Raises:
        RefusedError: the plan is not the stored one, is older than `PLAN_LIFE_MIN`, or a circuit
            breaker spoke about it.
    """
    steps = stored.plan
    applied = catalog.run(
        f"applying a plan for job {job.name}",
        lambda connection: apply_plan(
            connection,
            job,
            stored.run_id,
            plan_sha256=digest_of(steps),
            checkpoints=steps["subsumed_checkpoints"],
            segments=[UUID(one) for one in steps["dead_segments"]],
            commits=[UUID(one) for one in steps["dead_commits"]],
            files=[UUID(one["file_id"]) for one in steps["condemned_files"]],
        ),
    )
    if applied is None:
        raise RefusedError(
            f"plan {stored.run_id} is older than {PLAN_LIFE_MIN} min, so it was not applied. Run "
            "the cleanup again: it makes a new plan",
            job=job.name,
        )
    facts = {"job": job.name, "plan": str(stored.run_id), "planned_bytes": stored.size_bytes}
    _log.info("cleanup plan applied", extra=facts | asdict(applied))
    return applied


def _finish(
    catalog: Catalog, job: JobFacts, objects: ObjectStore, applied: Applied, progress: Progress
) -> CleanupReport:
    """Deletes what is due and trims the history; returns the report of all."""
    # Deleted last, from the intents and not from the plans: earlier cleanups may have left some.
    deleted = delete_condemned(catalog, job, objects, progress=progress)
    # After the files: a directory is removed only once all files in it are deleted.
    delete_directories(catalog, job, objects)
    trimmed = trim_job(catalog, job, most_steps=_TRIM_STEPS)
    left = _left(catalog, job)
    if job.is_dropped:
        forget_job(catalog, job, objects, progress=progress)
    return CleanupReport(
        job=job.name,
        dry_run=False,
        subsumed_checkpoints=applied.subsumed_checkpoints,
        dead_segments=applied.dead_segments,
        condemned_files=applied.condemned_files,
        deleted_files=deleted.files,
        freed_bytes=deleted.size_bytes,
        failed_deletes=deleted.failed,
        waiting_files=left.waiting.files,
        waiting_bytes=left.waiting.size_bytes,
        next_delete_at=left.next_at,
        trimmed_checkpoints=trimmed.checkpoints,
        trimmed_files=trimmed.files,
    )


def _left(catalog: Catalog, job: JobFacts) -> OpenDeletes:
    return catalog.run("counting delete intents", lambda c: total_open(c, job.job_id))


def _forecast(catalog: Catalog, snapshot: CleanupSnapshot, plan: SubsumptionPlan) -> CleanupReport:
    job_id = snapshot.job.job_id
    left = _left(catalog, snapshot.job)
    trimmed = catalog.run(
        "counting the history to trim", lambda c: forecast_history(c, job_id, most=PLAN_ROWS)
    )
    condemned = FileTotal(len(plan.condemned_files), plan.freed_bytes)
    due, waiting = left.due, left.waiting
    # What a cleanup condemns, it deletes itself where nothing has to wait.
    if snapshot.job.file_retention_ms:
        waiting += condemned
    else:
        due += condemned
    return CleanupReport(
        job=snapshot.job.name,
        dry_run=True,
        subsumed_checkpoints=len(plan.subsumed_checkpoints),
        dead_segments=len(plan.dead_segments) + plan.segments_in_commits,
        condemned_files=len(plan.condemned_files),
        deleted_files=due.files,
        freed_bytes=due.size_bytes,
        failed_deletes=0,
        waiting_files=waiting.files,
        waiting_bytes=waiting.size_bytes,
        next_delete_at=left.next_at or (left.condemned_now_at if waiting.files else None),
        trimmed_checkpoints=trimmed.checkpoints,
        trimmed_files=trimmed.files,
    )
