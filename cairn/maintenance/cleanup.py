"""The subsumption cleanup of one job: plan, store, apply, delete. Safe to run at any time."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID, uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.apply import Applied, apply_plan
from cairn.catalog.cleanup.deletions import FileTotal, OpenDeletes, total_open
from cairn.catalog.cleanup.history import Trimmed, forecast_history, trim_history
from cairn.catalog.cleanup.snapshot import PLAN_ROWS, CleanupSnapshot, JobFacts, read_snapshot
from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN, store_plan
from cairn.errors import RefusedError
from cairn.maintenance.deleter import delete_condemned, delete_directories
from cairn.maintenance.forget import forget_job, has_left
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from cairn.ownership.check import check_before_cleanup
from metastore.enums import MaintenanceAction

_log = logging.getLogger(__name__)


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
            that this process may clean, or its root is another metastore's; nothing was changed.
        StoreFailedError: the metastore or the storage failed; call again to continue.
    """
    snapshot = _read(catalog, job_name)
    # First: a job that somebody else has made up is not even planned.
    store = open_allowed(snapshot.job)
    # Of a dropped job without files only the root is left, which may have no owner any more.
    if not snapshot.job.is_dropped or has_left(catalog, snapshot.job):
        check_before_cleanup(catalog, store, snapshot.job.job_id)
    plan = plan_subsumption(snapshot)
    if dry_run:
        return _forecast(catalog, snapshot, plan)
    applied = _apply_plans(catalog, snapshot, plan, progress)
    # Deleted last, from the intents and not from the plans: earlier cleanups may have left some.
    deleted = delete_condemned(catalog, snapshot.job, store, progress=progress)
    # After the files: a directory is removed only once all files in it are deleted.
    delete_directories(catalog, snapshot.job, store)
    trimmed = trim_job(catalog, snapshot.job)
    left = _left(catalog, snapshot.job)
    if snapshot.job.is_dropped:
        forget_job(catalog, snapshot.job, store, progress=progress)
    return CleanupReport(
        job=job_name,
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


def _read(catalog: Catalog, job_name: str) -> CleanupSnapshot:
    return catalog.run(f"reading what job {job_name} keeps", lambda c: read_snapshot(c, job_name))


def _apply_plans(
    catalog: Catalog, snapshot: CleanupSnapshot, plan: SubsumptionPlan, progress: Progress
) -> Applied:
    """Applies a plan and those after it, until there is nothing to do; returns the changes."""
    job, subsumed, dead, condemned = snapshot.job, 0, 0, 0
    # Plan by plan, each bounded: one transaction for all of it would hold the job's lock for long.
    while not plan.is_empty:
        applied = apply_stored(catalog, job, record_plan(catalog, job, plan), plan)
        subsumed += applied.subsumed_checkpoints
        dead += applied.dead_segments
        condemned += applied.condemned_files
        progress("files condemned", applied.condemned_files)
        if applied == Applied(0, 0, 0):
            break  # another cleanup was faster
        plan = plan_subsumption(_read(catalog, job.name))
    return Applied(subsumed, dead, condemned)


def record_plan(catalog: Catalog, job: JobFacts, plan: SubsumptionPlan) -> UUID:
    """Stores a plan and returns the id of its maintenance run."""
    # Before the transaction, which may run twice and must store one plan.
    run_id = uuid4()
    catalog.run(
        f"storing a plan for job {job.name}",
        lambda c: store_plan(
            c, run_id, job.job_id, MaintenanceAction.SUBSUMPTION, plan.to_json(), plan.sha256
        ),
    )
    return run_id


def apply_stored(catalog: Catalog, job: JobFacts, run_id: UUID, plan: SubsumptionPlan) -> Applied:
    """Executes those steps of a stored plan that still hold and returns the changes.

    Raises:
        RefusedError: the plan is not the stored one, or is older than `PLAN_LIFE_MIN`.
    """
    applied = catalog.run(
        f"applying a plan for job {job.name}",
        lambda connection: apply_plan(
            connection,
            job,
            run_id,
            plan_sha256=plan.sha256,
            checkpoints=plan.subsumed_checkpoints,
            segments=plan.dead_segments,
            commits=plan.dead_commits,
            files=[file.file_id for file in plan.condemned_files],
        ),
    )
    if applied is None:
        raise RefusedError(
            f"plan {run_id} is older than {PLAN_LIFE_MIN} min, so it was not applied. Run the "
            "cleanup again: it makes a new plan",
            job=job.name,
        )
    facts = {"job": job.name, "plan": str(run_id), "planned_bytes": plan.freed_bytes}
    _log.info("cleanup plan applied", extra=facts | asdict(applied))
    return applied


def trim_job(catalog: Catalog, job: JobFacts) -> Trimmed:
    """Deletes the rows of a job's history that its policy does not keep; returns how many."""
    checkpoints = files = rows = 0
    # Step by step, each a short transaction; killed in between, the next cleanup continues.
    while True:
        step = catalog.run(
            f"trimming the history of job {job.name}", lambda c: trim_history(c, job.job_id)
        )
        checkpoints += step.checkpoints
        files += step.files
        rows += step.rows
        if not step.rows:
            break
    trimmed = Trimmed(checkpoints, files, rows)
    if rows:
        _log.info("history trimmed", extra={"job": job.name} | asdict(trimmed))
    return trimmed


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
