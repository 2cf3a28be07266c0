"""The orphan sweep of one job's root: find, set aside, and delete what was set aside long enough.

Nothing is moved and nothing is deleted at once: an orphan becomes a row of `quarantined_objects`,
and is deleted by a later sweep, if it still is what it was and nobody took it out. Any number may
run at once; killed anywhere, the next one continues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.quarantine import (
    Lease,
    RootFacts,
    condemn_due,
    note_skipped,
    release_kept,
    root_facts,
    set_aside,
    total_due,
)
from cairn.catalog.cleanup.snapshot import JobFacts, facts_of_job
from cairn.catalog.maintenance.facts import job_now
from cairn.catalog.maintenance.leases import finish, take_lease
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.breakers import PlannedDeletes
from cairn.maintenance.deleter import BATCH_OBJECTS, delete_empty_directories, delete_quarantined
from cairn.maintenance.find_orphans import Finder, Tally
from cairn.maintenance.orphan_spill import OrphanSpill
from cairn.maintenance.orphans import Clocks, Reason, clocks_of
from cairn.maintenance.plans import Plan, refuse_spoken, store_unless_empty
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.ownership.check import check_before_cleanup, require_owner
from cairn.storage import Inventory, ObjectStore, inventory_of
from metastore.enums import MaintenanceAction, MaintenanceStatus

_log = logging.getLogger(__name__)

QUARANTINE_MS = 7 * 86_400_000
"""How long an orphan is kept after it was found."""

SHORTEST_QUARANTINE_MS = 86_400_000
"""The least that somebody may ask for: a day in which the loss can be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found and changed; of a dry run, what one would change now.

    `orphans` were found by this sweep and `quarantined` set aside, fewer where something kept them
    by then. `deleted` had been in quarantine until their time was over, `released` are no orphans
    any more. `kept` counts by reason what lies below the root and stays; `unknown` names the first
    of what nothing of Cairn's is called like.
    """

    job: str
    dry_run: bool
    listed: int
    listed_bytes: int
    orphans: int
    orphan_bytes: int
    quarantined: int = 0
    quarantined_bytes: int = 0
    released: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    failed_deletes: int = 0
    removed_directories: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """A root that may be swept, and what was found there. `due` have been aside long enough.

    `as_of` is when that was, and when orphans were old enough, by the database's clock.
    """

    catalog: Catalog
    job: JobFacts
    store: ObjectStore
    inventory: Inventory
    root: RootFacts
    clocks: Clocks
    progress: Progress
    quarantine_ms: int
    tally: Tally
    spill: OrphanSpill
    as_of: datetime
    due: tuple[int, int] = (0, 0)


def sweep_job(
    catalog: Catalog,
    job_name: str,
    *,
    dry_run: bool = False,
    quarantine_ms: int = QUARANTINE_MS,
    progress: Progress = silent,
    unsafe_min_age: timedelta | None = None,
) -> SweepReport:
    """Sets a job's orphans aside for `quarantine_ms`, and deletes those whose time is over.

    Orphans are at least 24 h old; `unsafe_min_age` lowers that, for tests only. A dry run changes
    nothing, in the metastore and in storage.

    Raises:
        BadInputError: there is no such job, `CAIRN_STORAGES` is not set, or `quarantine_ms` is
            below `SHORTEST_QUARANTINE_MS`.
        RefusedError: the root is not this metastore's, or it may have lost transactions; the job's
            storage is not one that this process may clean; the clocks differ; or a circuit breaker
            spoke. Nothing was changed.
        StoreFailedError: the metastore or the storage failed; call again to continue.
    """
    with OrphanSpill() as spill:
        sweep = _find(catalog, job_name, spill, quarantine_ms, progress, unsafe_min_age)
        if dry_run:
            return _forecast(sweep)
        plan = _plan_of(sweep)
        stored = store_unless_empty(catalog, plan)
        if stored is None:
            return _end(sweep, _report(sweep))
        refuse_spoken(stored)
        return _apply(sweep, stored)


def plan_sweep(catalog: Catalog, job_name: str, *, quarantine_ms: int = QUARANTINE_MS) -> Plan:
    """Plans a sweep: how much one would set aside and delete, with some of the paths.

    Raises:
        see `sweep_job`.
    """
    with OrphanSpill() as spill:
        return _plan_of(_find(catalog, job_name, spill, quarantine_ms, silent, None))


def apply_sweep(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Applies a stored plan of a sweep: finds the orphans again, and no more of them.

    What has been listed since is as true as what was planned, and newer. What has become old enough
    since is left to the next sweep.

    Raises:
        RefusedError: there is more to do than was planned; or see `sweep_job`.
    """
    quarantine_ms = int(plan.plan["quarantine_ms"])
    with OrphanSpill() as spill:
        as_of = datetime.fromisoformat(plan.plan["as_of"])
        sweep = _find(catalog, plan.job, spill, quarantine_ms, progress, None, as_of)
        now = _plan_of(sweep).deletes
        if now.files > plan.files or now.size_bytes > plan.size_bytes:
            raise RefusedError(
                f"plan {plan.run_id} was of {plan.files} objects with {plan.size_bytes} bytes, and "
                f"now there are {now.files} with {now.size_bytes}; nothing was changed. Make a new "
                f"plan: `cairn plan {plan.action} {plan.job}`",
                job=plan.job,
            )
        if plan.status is MaintenanceStatus.APPLIED:
            return asdict(_end(sweep, _report(sweep)))
        return asdict(_apply(sweep, plan))


def _find(
    catalog: Catalog,
    job_name: str,
    spill: OrphanSpill,
    quarantine_ms: int,
    progress: Progress,
    unsafe_min_age: timedelta | None,
    as_of: datetime | None = None,
) -> _Sweep:
    """Lists a root that may be swept, and returns it with its orphans in `spill`.

    With `as_of`, they were orphans at that moment already; else now.
    """
    if quarantine_ms < SHORTEST_QUARANTINE_MS:
        raise BadInputError(
            f"a quarantine of {quarantine_ms} ms leaves no time to notice a loss: at least 1 d"
        )
    job = catalog.run(f"reading job {job_name}", lambda c: facts_of_job(c, job_name))
    # First: a job that somebody else has made up is not even listed.
    objects = open_allowed(job)
    check_before_cleanup(catalog, objects, job.job_id)
    require_owner(catalog, objects, job.job_id)
    root = catalog.run("reading who owns a root", lambda c: root_facts(c, job.job_id))
    if root is None:
        raise RefusedError(f"no metastore owns {job.job_id}/ yet", job=job.name)
    inventory = inventory_of(objects)
    clocks = clocks_of(inventory.now(), root.now, unsafe_min_age=unsafe_min_age)
    as_of = as_of or root.now
    clocks = clocks.as_of(as_of)
    finder = Finder(
        catalog=catalog, inventory=inventory, job_id=job.job_id, root=root, clocks=clocks
    )
    tally = Tally()
    for orphan in finder.orphans(tally):
        spill.add(orphan)
        progress("orphans found", 1)
    return _Sweep(
        catalog=catalog,
        job=job,
        store=objects,
        inventory=inventory,
        root=root,
        clocks=clocks,
        progress=progress,
        quarantine_ms=quarantine_ms,
        tally=tally,
        spill=spill,
        as_of=as_of,
        due=catalog.run("counting the quarantine", lambda c: total_due(c, job.job_id, as_of=as_of)),
    )


def _plan_of(sweep: _Sweep) -> Plan:
    """Returns the plan of what was found: circuit breakers look at it before anything changes."""
    job, tally, spill = sweep.job, sweep.tally, sweep.spill
    now = sweep.catalog.run(
        f"reading what is left of job {job.name}",
        lambda c: job_now(c, job.job_id, [], most=1),
    )
    due, due_bytes = sweep.due
    in_quarantine = tally.objects[Reason.QUARANTINED]
    deletes = PlannedDeletes(
        files=spill.objects + due,
        size_bytes=spill.size_bytes + due_bytes,
        recent_bytes=now.recent_bytes,
        # What is in quarantine is not left: part of it is deleted now, the rest is to be.
        left_files=max(0, tally.listed - spill.objects - in_quarantine),
        must_leave=now.must_leave,
        listed_objects=tally.listed,
        matched_objects=tally.matched + in_quarantine,
        clock_behind_ms=now.clock_behind_ms,
    )
    content = {
        "orphans": spill.objects,
        "orphan_bytes": spill.size_bytes,
        "orphans_sha256": spill.sha256,
        "due": due,
        "due_bytes": due_bytes,
        "listed": tally.listed,
        "listed_bytes": tally.listed_bytes,
        "quarantine_ms": sweep.quarantine_ms,
        "as_of": sweep.as_of.isoformat(),
        "kept": _kept(tally),
        "sample": spill.sample,
    }
    return Plan(
        job=job,
        action=MaintenanceAction.ORPHAN_SWEEP,
        content=content,
        deletes=deletes,
        is_empty=not deletes.files,
    )


def _apply(sweep: _Sweep, plan: StoredPlan) -> SweepReport:
    """Sets aside and condemns under a lease, some in each transaction; then deletes."""
    catalog, job = sweep.catalog, sweep.job
    lease = Lease(plan.run_id, uuid4())
    catalog.run(
        f"beginning the sweep of {job.name}", lambda c: take_lease(c, lease.run_id, lease.holder)
    )
    report = _set_aside(sweep, lease)
    condemn = partial(
        condemn_due, job_id=job.job_id, lease=lease, most=BATCH_OBJECTS, as_of=sweep.as_of
    )
    condemned = 0
    # Each batch a short transaction: batches of the job wait for its lock.
    while some := catalog.run(f"condemning orphans of {job.name}", condemn):
        condemned += some
    result = {
        "quarantined": report.quarantined,
        "quarantined_bytes": report.quarantined_bytes,
        "condemned": condemned,
    }
    catalog.run(
        f"ending the sweep of {job.name}",
        lambda c: finish(c, lease.run_id, lease.holder, MaintenanceStatus.APPLIED, result),
    )
    return _end(sweep, report)


def _set_aside(sweep: _Sweep, lease: Lease) -> SweepReport:
    job, objects, size_bytes = sweep.job, 0, 0
    for orphans in sweep.spill.batches():
        work = partial(
            set_aside,
            job_id=job.job_id,
            lease=lease,
            orphans=orphans,
            quarantine_ms=sweep.quarantine_ms,
        )
        some, some_bytes = sweep.catalog.run(f"setting aside orphans of {job.name}", work)
        objects += some
        size_bytes += some_bytes
        sweep.progress("orphans set aside", some)
    skipped = sweep.spill.objects - objects
    if skipped:
        sweep.catalog.run(
            "noting what stays", lambda c: note_skipped(c, job.job_id, lease, skipped)
        )
    return replace(_report(sweep), quarantined=objects, quarantined_bytes=size_bytes)


def _end(sweep: _Sweep, report: SweepReport) -> SweepReport:
    """Releases what is kept and deletes what has an intent; returns the report of all."""
    catalog, job = sweep.catalog, sweep.job
    released = catalog.run("releasing what is kept", lambda c: release_kept(c, job.job_id))
    # By the intents and not by the plan: an earlier sweep that was killed may have left some.
    deleted = delete_quarantined(
        catalog, job, sweep.store, sweep.inventory, progress=sweep.progress
    )
    removed = delete_empty_directories(
        catalog, job, sweep.store, sweep.inventory, sweep.clocks.is_old
    )
    report = replace(
        report,
        released=released,
        deleted=deleted.files,
        freed_bytes=deleted.size_bytes,
        failed_deletes=deleted.failed,
        removed_directories=removed,
    )
    _log.info("root swept", extra=asdict(report))
    return report


def _report(sweep: _Sweep, *, dry_run: bool = False) -> SweepReport:
    tally, spill = sweep.tally, sweep.spill
    return SweepReport(
        job=sweep.job.name,
        dry_run=dry_run,
        listed=tally.listed,
        listed_bytes=tally.listed_bytes,
        orphans=spill.objects,
        orphan_bytes=spill.size_bytes,
        kept=_kept(tally),
        unknown=[ascii(path)[1:-1] for path in tally.unknown],
    )


def _forecast(sweep: _Sweep) -> SweepReport:
    objects, size_bytes = sweep.due
    return replace(
        _report(sweep, dry_run=True),
        quarantined=sweep.spill.objects,
        quarantined_bytes=sweep.spill.size_bytes,
        deleted=objects,
        freed_bytes=size_bytes,
    )


def _kept(tally: Tally) -> dict[str, int]:
    return {why.value: n for why, n in tally.objects.items() if not why.is_orphan}
