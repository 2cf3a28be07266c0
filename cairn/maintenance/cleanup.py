"""The subsumption cleanup of one job: plan, store, apply, delete. Safe to run at any time."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.catalog.cleanup import snapshot as upkeep
from cairn.catalog.cleanup.apply import Applied, apply_plan, store_plan
from cairn.catalog.cleanup.deletions import total_open
from cairn.catalog.cleanup.snapshot import UpkeepSnapshot, read_snapshot
from cairn.maintenance.deleter import delete_condemned, delete_directories
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from cairn.storage import open_store

ACTION = "subsumption"
"""What its maintenance runs are called."""


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What a cleanup changed; of a dry run, what one would change now.

    `failed_deletes` objects could not be deleted and are tried again by the next cleanup.
    """

    job: str
    dry_run: bool
    subsumed_checkpoints: int
    dead_segments: int
    condemned_files: int
    deleted_files: int
    freed_bytes: int
    failed_deletes: int


def job_names(url: str, *, timeout_ms: int = 60_000) -> list[str]:
    """Returns the names of all jobs in the metastore at `url`, in order."""
    return upkeep.job_names(url, timeout_ms=timeout_ms)


def cleanup_job(
    url: str, job_name: str, *, dry_run: bool = False, timeout_ms: int = 60_000
) -> CleanupReport:
    """Subsumes a job's old checkpoints and deletes the files that nothing needs any more.

    Deletes what an earlier cleanup left behind, too. Any number may run at once, also beside the
    job itself. A dry run changes nothing, in the metastore and in storage; where there is more to
    do than fits one plan (`cairn.catalog.cleanup.snapshot.PLAN_ROWS`), it reports the first plan.

    Raises:
        BadInputError: there is no such job.
        RefusedError: a rule that keeps state safe would be broken; nothing was changed by it.
        StoreFailedError: the metastore or the storage failed; the next call goes on from there.
    """
    snapshot = read_snapshot(url, job_name, timeout_ms=timeout_ms)
    plan = plan_subsumption(snapshot)
    if dry_run:
        return _forecast(url, snapshot, plan, timeout_ms)
    subsumed = dead = condemned = 0
    while not plan.is_empty:
        applied = _store_and_apply(url, snapshot, plan, timeout_ms)
        subsumed += applied.subsumed_checkpoints
        dead += applied.dead_segments
        condemned += applied.condemned_files
        if applied == Applied(0, 0, 0):
            break  # another cleanup was faster
        snapshot = read_snapshot(url, job_name, timeout_ms=timeout_ms)
        plan = plan_subsumption(snapshot)
    store = open_store(snapshot.job.storage)
    deleted = delete_condemned(url, snapshot.job, store, timeout_ms=timeout_ms)
    delete_directories(url, snapshot.job, store, timeout_ms=timeout_ms)
    return CleanupReport(
        job=job_name,
        dry_run=False,
        subsumed_checkpoints=subsumed,
        dead_segments=dead,
        condemned_files=condemned,
        deleted_files=deleted.files,
        freed_bytes=deleted.size_bytes,
        failed_deletes=deleted.failed,
    )


def _store_and_apply(
    url: str, snapshot: UpkeepSnapshot, plan: SubsumptionPlan, timeout_ms: int
) -> Applied:
    run_id = store_plan(
        url, snapshot.job, ACTION, plan.to_json(), plan.sha256, timeout_ms=timeout_ms
    )
    return apply_plan(
        url,
        snapshot.job,
        run_id,
        plan_sha256=plan.sha256,
        checkpoints=plan.subsumed_checkpoints,
        segments=plan.dead_segments,
        files=[file.file_id for file in plan.condemned_files],
        timeout_ms=timeout_ms,
    )


def _forecast(
    url: str, snapshot: UpkeepSnapshot, plan: SubsumptionPlan, timeout_ms: int
) -> CleanupReport:
    waiting = total_open(url, snapshot.job.job_id, timeout_ms=timeout_ms)
    return CleanupReport(
        job=snapshot.job.name,
        dry_run=True,
        subsumed_checkpoints=len(plan.subsumed_checkpoints),
        dead_segments=len(plan.dead_segments),
        condemned_files=len(plan.condemned_files),
        deleted_files=len(plan.condemned_files) + waiting.files,
        freed_bytes=plan.freed_bytes + waiting.size_bytes,
        failed_deletes=0,
    )
