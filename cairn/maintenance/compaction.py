"""Space-amplification compaction of one job: plan, store, copy, swap. Safe to run at any time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts, read_job
from cairn.catalog.maintenance.leases import finish
from cairn.catalog.maintenance.moves import movable_segments
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.catalog.maintenance.wasteful_files import (
    files_of_parallelism,
    read_compacted_job,
    wasteful_files,
)
from cairn.errors import RefusedError
from cairn.maintenance.breakers import PlannedDeletes
from cairn.maintenance.compaction_plan import CompactionOptions, CompactionPlan, plan_compaction
from cairn.maintenance.copies import Copied, copy_all, new_files
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.plans import Plan, read, refuse_spoken, store_unless_empty
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.ownership.check import check_before_cleanup
from metastore.enums import MaintenanceAction, MaintenanceStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did.

    `rewritten_files` were emptied for checkpoints to come, and hold nothing but what older ones
    need: `freed_bytes` more are free once those are subsumed. Of `copied_bytes`, `passed_bytes`
    were read and written by this process; the store copied the others itself. `outpaced_files` of
    the new ones were given up, because the job replaced a segment in them meanwhile.
    """

    rewritten_files: int = 0
    moved_segments: int = 0
    copied_bytes: int = 0
    passed_bytes: int = 0
    freed_bytes: int = 0
    outpaced_files: int = 0

    def to_json(self) -> dict[str, int]:
        """Returns it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """A plan, under its id if it was stored, and what applying it did; None: it was not applied."""

    plan: CompactionPlan
    plan_id: UUID | None
    done: Compacted | None

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            **self.plan.to_json(),
            "plan_id": None if self.plan_id is None else str(self.plan_id),
            "done": None if self.done is None else self.done.to_json(),
        }


def compact_job(
    catalog: Catalog, job_name: str, options: CompactionOptions, *, dry_run: bool = False
) -> CompactionReport:
    """Rewrites what is live of a job's files that are mostly dead. A dry run changes nothing.

    Deletes nothing: the cleanup does, once the checkpoints that there are now have been subsumed.

    Raises:
        BadInputError: there is no such job, or `CAIRN_STORAGES` is not set.
        RefusedError: the job's storage is not one that this process may write to, or its root is
            another metastore's; nothing was changed.
        FencedError: the lease was lost; what had been swapped in by then counts.
        StoreFailedError, CorruptSegmentError: some copies failed; the others count.
    """
    planned = plan_job(catalog, job_name, options, dry_run=dry_run)
    if planned.plan_id is None:
        return planned
    done = apply_compaction(catalog, read(catalog, planned.plan_id))
    return CompactionReport(plan=planned.plan, plan_id=planned.plan_id, done=Compacted(**done))


def plan_job(
    catalog: Catalog, job_name: str, options: CompactionOptions, *, dry_run: bool = False
) -> CompactionReport:
    """Plans a compaction, and stores the plan unless it is empty or a dry run.

    Raises:
        BadInputError, RefusedError: see `compact_job`.
    """
    facts, plan = _plan(catalog, job_name, options)
    stored = None if dry_run else store_unless_empty(catalog, _stored_form(facts, plan))
    plan_id = None if stored is None else stored.run_id
    return CompactionReport(plan=plan, plan_id=plan_id, done=None)


def plan_action(catalog: Catalog, job_name: str, options: CompactionOptions | None = None) -> Plan:
    """Returns the plan of a job, as `cairn plan` stores it; without options with the defaults.

    Raises:
        BadInputError, RefusedError: see `compact_job`.
    """
    return _stored_form(*_plan(catalog, job_name, options or CompactionOptions()))


def apply_compaction(
    catalog: Catalog, stored: StoredPlan, progress: Progress = silent
) -> dict[str, int]:
    """Copies what is still as it was planned, and returns `Compacted` as JSON values.

    A retry by another process continues with what is left; what it returns is its own share. Of a
    plan that was applied already, it returns what that did.

    Raises:
        RefusedError: the plan is too old or over, or see `compact_job`.
        FencedError: another process applies the plan, or the lease was lost.
        StoreFailedError, CorruptSegmentError: some copies failed; the others count.
    """
    refuse_spoken(stored)
    if stored.status is MaintenanceStatus.APPLIED:
        return dict(stored.result or {})
    facts = catalog.run("reading the job", lambda c: read_job(c, stored.job_id))
    if facts is None:
        raise RefusedError("the job was dropped, and its rows are deleted", job=stored.job)
    objects = open_allowed(facts)
    check_before_cleanup(catalog, objects, facts.job_id)
    planned = {UUID(file["file_id"]): int(file["freed_bytes"]) for file in stored.plan["files"]}
    with held_lease(catalog, facts.job_id, stored.run_id) as lease:
        segments = catalog.run(
            "reading the segments to move",
            lambda c: movable_segments(c, facts.job_id, list(planned)),
        )
        copied = copy_all(catalog, facts, objects, lease, new_files(segments))
        done = _sum_up(copied, planned)
        progress("files rewritten", done.rewritten_files)
        catalog.run(
            "ending a compaction",
            lambda c: finish(
                c, lease.run_id, lease.holder, MaintenanceStatus.APPLIED, done.to_json()
            ),
        )
    _log.info("job compacted", extra={"job": facts.name, "plan": str(stored.run_id)} | asdict(done))
    return done.to_json()


def _plan(
    catalog: Catalog, job_name: str, options: CompactionOptions
) -> tuple[JobFacts, CompactionPlan]:
    job = catalog.run("reading the job", lambda c: read_compacted_job(c, job_name))
    facts = catalog.run("reading the job", lambda c: read_job(c, job.job_id))
    if facts is None:
        raise RefusedError("the job was dropped, and its rows are deleted", job=job_name)
    # First: a job that somebody else has made up is not even planned.
    objects = open_allowed(facts)
    check_before_cleanup(catalog, objects, job.job_id)
    if options.drain_parallelism is not None:
        worst = files_of_parallelism(catalog, job.job_id, options.drain_parallelism)
        return facts, plan_compaction(job, worst, (), options)
    worst = wasteful_files(catalog, job.job_id, options.start_amplification)
    others = wasteful_files(catalog, job.job_id, options.stop_amplification)
    return facts, plan_compaction(job, worst, others, options)


def _stored_form(facts: JobFacts, plan: CompactionPlan) -> Plan:
    return Plan(
        job=facts,
        action=MaintenanceAction.COMPACTION,
        content=plan.to_json(),
        # It deletes nothing, so there is nothing that a circuit breaker could keep.
        deletes=PlannedDeletes(files=0, size_bytes=0),
        is_empty=plan.is_empty,
    )


def _sum_up(copied: list[Copied], planned: Mapping[UUID, int]) -> Compacted:
    swapped = [one for one in copied if one.is_swapped_in]
    kept = {source for one in copied if not one.is_swapped_in for source in one.file.sources}
    emptied = {source for one in swapped for source in one.file.sources} - kept
    return Compacted(
        rewritten_files=len(emptied),
        moved_segments=sum(len(one.file.segments) for one in swapped),
        copied_bytes=sum(one.file.size_bytes for one in copied),
        passed_bytes=sum(one.passed_bytes for one in copied),
        freed_bytes=sum(planned.get(source, 0) for source in emptied),
        outpaced_files=len(copied) - len(swapped),
    )
