"""Scrubs and housekeeping as maintenance runs: what was to be done, and what was, are rows.

Neither deletes an object, so no circuit breaker looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.scrubbing import needed_files
from cairn.catalog.cleanup.snapshot import facts_of_job
from cairn.catalog.maintenance.leases import finish
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.maintenance.breakers import PlannedDeletes
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.housekeeping import HousekeepingReport, housekeep_job
from cairn.maintenance.plans import Plan, store_unless_empty
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.scrub import DEFAULT_SAMPLE_PERCENT, ScrubReport, scrub_job
from metastore.enums import MaintenanceAction, MaintenanceStatus


def plan_scrub(
    catalog: Catalog,
    job_name: str,
    *,
    sample_percent: float | None = DEFAULT_SAMPLE_PERCENT,
    max_bytes_per_s: int | None = None,
) -> Plan:
    """Plans a scrub of one job: which share, and how fast. It is empty where nothing is live.

    Raises:
        BadInputError: there is no such job.
    """
    job = catalog.run(f"finding job {job_name}", lambda c: facts_of_job(c, job_name))
    needed = catalog.run("counting what a scrub reads", lambda c: needed_files(c, job.job_id))
    return Plan(
        job=job,
        action=MaintenanceAction.SCRUB,
        content={"sample_percent": sample_percent, "max_bytes_per_s": max_bytes_per_s},
        deletes=PlannedDeletes(files=0, size_bytes=0),
        is_empty=job.is_dropped or not needed.files,
    )


def apply_scrub(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Scrubs as a stored plan says, under its lease; returns a `ScrubReport` as JSON values.

    Raises:
        FencedError: another process applies the plan.
        BadInputError, RefusedError, StoreFailedError: see `scrub_job`; apply it again to continue.
    """
    return _under_lease(
        catalog, plan, lambda: asdict(scrub_job(catalog, plan.job, **plan.plan, progress=progress))
    )


def plan_housekeeping(catalog: Catalog, job_name: str) -> Plan:
    """Plans the housekeeping of one job. It is empty where there is nothing to do.

    Raises:
        BadInputError: there is no such job.
    """
    job = catalog.run(f"finding job {job_name}", lambda c: facts_of_job(c, job_name))
    forecast = housekeep_job(catalog, job_name, dry_run=True)
    counts = {name: n for name, n in asdict(forecast).items() if name not in ("job", "dry_run")}
    return Plan(
        job=job,
        action=MaintenanceAction.HOUSEKEEPING,
        content=counts,
        deletes=PlannedDeletes(files=0, size_bytes=0),
        is_empty=not any(counts.values()),
    )


def apply_housekeeping(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Does the housekeeping of a stored plan's job, under its lease; returns its report.

    Raises:
        FencedError: another process applies the plan.
        MetastoreError: see `housekeep_job`; apply it again to continue.
    """
    return _under_lease(
        catalog, plan, lambda: asdict(housekeep_job(catalog, plan.job, progress=progress))
    )


def scrub_and_record(
    catalog: Catalog,
    job_name: str,
    *,
    sample_percent: float | None = DEFAULT_SAMPLE_PERCENT,
    max_bytes_per_s: int | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> ScrubReport:
    """Does the work of `scrub_job` as a maintenance run of its own. A dry run leaves no row.

    Raises:
        see `scrub_job`.
    """
    options = {"sample_percent": sample_percent, "max_bytes_per_s": max_bytes_per_s}
    plan = plan_scrub(catalog, job_name, **options)  # type: ignore[arg-type]
    if dry_run or (stored := store_unless_empty(catalog, plan)) is None:
        return scrub_job(
            catalog,
            job_name,
            sample_percent=sample_percent,
            max_bytes_per_s=max_bytes_per_s,
            dry_run=dry_run,
            progress=progress,
        )
    return ScrubReport(**apply_scrub(catalog, stored, progress))


def housekeep_and_record(
    catalog: Catalog, job_name: str, *, dry_run: bool = False, progress: Progress = silent
) -> HousekeepingReport:
    """Does the work of `housekeep_job` as a maintenance run. A dry run leaves no row.

    Raises:
        see `housekeep_job`.
    """
    stored = None if dry_run else store_unless_empty(catalog, plan_housekeeping(catalog, job_name))
    if stored is None:
        return housekeep_job(catalog, job_name, dry_run=dry_run, progress=progress)
    return HousekeepingReport(**apply_housekeeping(catalog, stored, progress))


def _under_lease(
    catalog: Catalog, plan: StoredPlan, work: Callable[[], dict[str, Any]]
) -> Mapping[str, Any]:
    if plan.status is MaintenanceStatus.APPLIED:
        return plan.result or {}
    with held_lease(catalog, plan.job_id, plan.run_id) as lease:
        result = work()
        catalog.run(
            f"finishing the {plan.action} of job {plan.job}",
            lambda c: finish(c, lease.run_id, lease.holder, MaintenanceStatus.APPLIED, result),
        )
    return result
