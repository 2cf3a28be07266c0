"""The materialization of one job by the platform: which subtasks are due, and folding them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts, read_job
from cairn.catalog.maintenance.fold_facts import FoldFacts, read_fold_facts
from cairn.catalog.maintenance.leases import finish
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import RefusedError
from cairn.maintenance.breakers import PlannedDeletes
from cairn.maintenance.fold import FoldReport, fold_shares
from cairn.maintenance.fold_plan import due_shares, of_json, to_json, together
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.plans import Plan, store_unless_empty
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.ownership.check import require_owner
from cairn.storage import ObjectStore
from metastore.enums import MaintenanceAction, MaintenanceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializationReport:
    """What a materialization of a job has done; a dry run: what is due, and nothing done.

    `due` subtasks, which a restore would read `due_bytes` of. The others are as in `FoldReport`.
    """

    job: str
    dry_run: bool
    due: int
    due_bytes: int
    folded: int = 0
    unchanged: int = 0
    refused: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    entries: int = 0


def materialize_job(
    catalog: Catalog, job_name: str, *, dry_run: bool = False, progress: Progress = silent
) -> MaterializationReport:
    """Plans the folds of a job that are due, stores the plan, and applies it.

    A dry run changes nothing, and stores no plan.

    Raises:
        BadInputError, RefusedError, StoreFailedError, CorruptSegmentError: see `plan_folds` and
            `apply_folds`. A retry makes a new plan, and folds what is not folded yet.
    """
    plan = plan_folds(catalog, job_name)
    due = of_json(plan.content)
    planned = MaterializationReport(
        job=job_name,
        dry_run=dry_run,
        due=len(due),
        due_bytes=sum(one.size_bytes for one in due),
    )
    if dry_run or (stored := store_unless_empty(catalog, plan)) is None:
        return planned
    return replace(planned, **apply_folds(catalog, stored, progress))


def plan_folds(catalog: Catalog, job_name: str) -> Plan:
    """Plans the folds of the subtasks of a job that are due, whoever is to materialize it.

    Raises:
        BadInputError: there is no such job, or `CAIRN_STORAGES` is not set.
        RefusedError: the job was dropped, its storage is not one that this process may write to,
            or its root is another metastore's.
        StoreFailedError: the metastore or the storage failed.
    """
    facts = fold_facts(catalog, job_name)
    open_owned(catalog, facts.job)
    due = due_shares(facts)
    return Plan(
        job=facts.job,
        action=MaintenanceAction.MATERIALIZATION,
        content=to_json(due),
        deletes=PlannedDeletes(files=0, size_bytes=0),
        is_empty=not due,
    )


def fold_facts(catalog: Catalog, job_name: str) -> FoldFacts:
    """Returns what there is to fold of a job.

    Raises:
        BadInputError: there is no such job.
    """
    return catalog.run(
        f"reading what to materialize of job {job_name}", lambda c: read_fold_facts(c, job_name)
    )


def apply_folds(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Folds the subtasks of a stored plan under its lease; returns a `FoldReport` as JSON values.

    Subtasks that were folded since the plan was made are left as they are: so what was killed is
    continued, by a process that takes the lease once that of the killed one has ended.

    Raises:
        FencedError: another process applies the plan.
        RefusedError: the plan is too old or over, the job was dropped, or see `fold_shares`.
        CorruptSegmentError, StoreFailedError: see `fold_shares`; what was folded before stays.
    """
    if plan.status is MaintenanceStatus.APPLIED:
        return plan.result or {}
    job = job_of(catalog, plan)
    objects = open_owned(catalog, job)
    with held_lease(catalog, plan.job_id, plan.run_id) as lease:
        total = FoldReport()
        for some in together(of_json(plan.plan)):
            total += fold_shares(catalog, job, objects, lease, [one.share for one in some])
            progress("subtasks folded", len(some))
        result = asdict(total)
        catalog.run(
            "finishing a materialization",
            lambda c: finish(c, lease.run_id, lease.holder, MaintenanceStatus.APPLIED, result),
        )
    return result


def job_of(catalog: Catalog, plan: StoredPlan) -> JobFacts:
    """Returns the job of a stored plan.

    Raises:
        RefusedError: it was dropped.
    """
    job = catalog.run(f"reading job {plan.job}", lambda c: read_job(c, plan.job_id))
    if job is None or job.is_dropped:
        raise RefusedError("the job was dropped: nothing of it is materialized", job=plan.job)
    return job


def open_owned(catalog: Catalog, job: JobFacts) -> ObjectStore:
    """Returns the store of a job that this process may write to, and whose root it owns.

    Raises:
        BadInputError, RefusedError, StoreFailedError: see `open_allowed` and `require_owner`.
    """
    objects = open_allowed(job)
    require_owner(catalog, objects, job.job_id)
    return objects
