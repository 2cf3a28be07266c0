"""The orphan sweep of one job's root: find, set aside, and delete what was set aside long enough.

Nothing is moved and nothing is deleted at once: an orphan becomes a row of `quarantined_objects`,
and is deleted by a later sweep, if it still is what it was and nobody took it out. Any number may
run at once; killed anywhere, the next one continues.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.quarantine import (
    RootFacts,
    condemn_due,
    finish_sweep,
    release_kept,
    root_facts,
    set_aside,
    total_due,
    trim_quarantine,
)
from cairn.catalog.cleanup.snapshot import JobFacts, facts_of_job
from cairn.catalog.maintenance.plans import NewPlan, store_plan
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.deleter import BATCH_OBJECTS, delete_empty_directories, delete_quarantined
from cairn.maintenance.find_orphans import Finder, Tally
from cairn.maintenance.orphan_spill import OrphanSpill
from cairn.maintenance.orphans import Clocks, clocks_of
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.storages import open_allowed
from cairn.ownership.check import check_before_cleanup, require_owner
from cairn.storage import Inventory, ObjectStore, inventory_of
from metastore.enums import MaintenanceAction

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
    catalog: Catalog
    job: JobFacts
    store: ObjectStore
    inventory: Inventory
    root: RootFacts
    clocks: Clocks
    progress: Progress


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
            storage is not one that this process may clean; the clocks differ. Nothing was changed.
        StoreFailedError: the metastore or the storage failed; call again to continue.
    """
    if quarantine_ms < SHORTEST_QUARANTINE_MS:
        raise BadInputError(
            f"a quarantine of {quarantine_ms} ms leaves no time to notice a loss: at least 1 d"
        )
    job = catalog.run(f"reading job {job_name}", lambda c: facts_of_job(c, job_name))
    # First: a job that somebody else has made up is not even listed.
    store = open_allowed(job)
    check_before_cleanup(catalog, store, job.job_id)
    require_owner(catalog, store, job.job_id)
    sweep = _begin(catalog, job, store, unsafe_min_age, progress)
    with OrphanSpill() as spill:
        tally = _find(sweep, spill)
        report = _reported(sweep, tally, spill, dry_run=dry_run)
        if dry_run:
            return _forecast(sweep, report)
        report = _set_aside(sweep, spill, report, quarantine_ms)
    report = _delete_due(sweep, report)
    removed = delete_empty_directories(catalog, job, store, sweep.inventory, sweep.clocks.is_old)
    catalog.run("trimming the quarantine", lambda c: trim_quarantine(c, job.job_id))
    report = replace(report, removed_directories=removed)
    _log.info("root swept", extra=asdict(report))
    return report


def _begin(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    unsafe_min_age: timedelta | None,
    progress: Progress,
) -> _Sweep:
    root = catalog.run("reading who owns a root", lambda c: root_facts(c, job.job_id))
    if root is None:
        raise RefusedError(f"no metastore owns {job.job_id}/ yet", job=job.name)
    inventory = inventory_of(store)
    return _Sweep(
        catalog=catalog,
        job=job,
        store=store,
        inventory=inventory,
        root=root,
        clocks=clocks_of(inventory.now(), root.now, unsafe_min_age=unsafe_min_age),
        progress=progress,
    )


def _find(sweep: _Sweep, spill: OrphanSpill) -> Tally:
    tally = Tally()
    finder = Finder(
        catalog=sweep.catalog,
        inventory=sweep.inventory,
        job_id=sweep.job.job_id,
        root=sweep.root,
        clocks=sweep.clocks,
    )
    for orphan in finder.orphans(tally):
        spill.add(orphan)
        sweep.progress("orphans found", 1)
    return tally


def _reported(sweep: _Sweep, tally: Tally, spill: OrphanSpill, *, dry_run: bool) -> SweepReport:
    return SweepReport(
        job=sweep.job.name,
        dry_run=dry_run,
        listed=tally.listed,
        listed_bytes=tally.listed_bytes,
        orphans=spill.objects,
        orphan_bytes=spill.size_bytes,
        kept={why.value: n for why, n in tally.objects.items() if not why.is_orphan},
        unknown=[ascii(path)[1:-1] for path in tally.unknown],
    )


def _set_aside(
    sweep: _Sweep, spill: OrphanSpill, report: SweepReport, quarantine_ms: int
) -> SweepReport:
    """Sets the orphans aside that were found, some in each transaction."""
    released = sweep.catalog.run(
        "releasing what is kept", lambda c: release_kept(c, sweep.job.job_id)
    )
    objects = size_bytes = 0
    if spill.objects:
        run_id = _store_plan(sweep, spill, report)
        for orphans in spill.batches():
            some, some_bytes = sweep.catalog.run(
                f"setting aside orphans of {sweep.job.name}",
                partial(
                    set_aside,
                    job_id=sweep.job.job_id,
                    run_id=run_id,
                    orphans=orphans,
                    quarantine_ms=quarantine_ms,
                ),
            )
            objects += some
            size_bytes += some_bytes
            sweep.progress("orphans set aside", some)
        result = {"quarantined": objects, "quarantined_bytes": size_bytes}
        sweep.catalog.run("ending a sweep", lambda c: finish_sweep(c, run_id, result))
    return replace(report, released=released, quarantined=objects, quarantined_bytes=size_bytes)


def _store_plan(sweep: _Sweep, spill: OrphanSpill, report: SweepReport) -> UUID:
    # Before the transaction, which may run twice and must store one plan.
    run_id = uuid4()
    plan = {
        "orphans": report.orphans,
        "orphan_bytes": report.orphan_bytes,
        "listed": report.listed,
        "listed_bytes": report.listed_bytes,
        "kept": report.kept,
        "sample": spill.sample,
    }
    new = NewPlan(
        job_id=sweep.job.job_id,
        action=MaintenanceAction.ORPHAN_SWEEP,
        plan=plan,
        sha256=spill.sha256,
        files=report.orphans,
        size_bytes=report.orphan_bytes,
    )
    sweep.catalog.run(
        f"storing a plan for job {sweep.job.name}",
        lambda c: store_plan(c, run_id, new),
    )
    return run_id


def _delete_due(sweep: _Sweep, report: SweepReport) -> SweepReport:
    job = sweep.job
    condemn = partial(condemn_due, job_id=job.job_id, most=BATCH_OBJECTS)
    # Each batch a short transaction: batches of the job wait for its lock.
    while sweep.catalog.run(f"condemning orphans of {job.name}", condemn):
        pass
    # By the intents: an earlier sweep that was killed may have left some.
    deleted = delete_quarantined(
        sweep.catalog, job, sweep.store, sweep.inventory, progress=sweep.progress
    )
    return replace(
        report,
        deleted=deleted.files,
        freed_bytes=deleted.size_bytes,
        failed_deletes=deleted.failed,
    )


def _forecast(sweep: _Sweep, report: SweepReport) -> SweepReport:
    objects, size_bytes = sweep.catalog.run(
        "counting the quarantine", lambda c: total_due(c, sweep.job.job_id)
    )
    return replace(
        report,
        quarantined=report.orphans,
        quarantined_bytes=report.orphan_bytes,
        deleted=objects,
        freed_bytes=size_bytes,
    )
