"""Making damaged bases and increments again, from other segments of the same state.

A fold of what an older checkpoint and the changelog since come to takes the place of what is
damaged, in all checkpoints to come. Killed anywhere, it has changed nothing but what it has
installed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.damage import Damage
from cairn.catalog.maintenance.folds import FoldInput, Share
from cairn.catalog.maintenance.heals import HealFacts, read_heal_facts, read_heal_inputs
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import finish
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import (
    CairnError,
    CorruptSegmentError,
    FencedError,
    RefusedError,
    StorageError,
)
from cairn.maintenance.breakers import PlannedDeletes
from cairn.maintenance.fold import FoldReport, fold_inputs
from cairn.maintenance.heal_plan import Heals, heals_of, of_json, to_json
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.materialization import job_of, open_owned
from cairn.maintenance.plans import Plan, store
from cairn.maintenance.progress import Progress, silent
from cairn.maintenance.scrub import scrub_files
from cairn.storage import ObjectStore
from metastore.enums import MaintenanceAction, MaintenanceStatus

_log = logging.getLogger(__name__)

_SHOWN = 5
"""Lost segments that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealReport:
    """What healing a job has done; a dry run: what it would do, and nothing done.

    `damaged` segments were needed by checkpoints to come, in `shares` that can be made again.
    `healed` of these were, `unchanged` needed it no more, and `refused` were materialized by
    somebody else meanwhile. `lost` says of each segment that is left what it is; empty: none is.
    """

    job: str
    dry_run: bool
    damaged: int
    shares: int
    healed: int = 0
    unchanged: int = 0
    refused: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    entries: int = 0
    lost: tuple[str, ...] = ()
    way_out: str = ""


def heal_job(
    catalog: Catalog, job_name: str, *, dry_run: bool = False, progress: Progress = silent
) -> HealReport:
    """Plans what can be made again of a job's damaged segments, stores the plan, and applies it.

    A dry run changes nothing, and stores no plan. What is lost is in the report.

    Raises:
        BadInputError: there is no such job, or `CAIRN_STORAGES` is not set.
        RefusedError: the job was dropped, its storage is not one that this process may write to,
            or its root is another metastore's.
        FencedError, CorruptSegmentError, StoreFailedError: see `apply_heals`.
    """
    facts = _facts(catalog, job_name)
    heals = heals_of(facts)
    report = HealReport(
        job=job_name,
        dry_run=dry_run,
        damaged=sum(len(one.segments) for one in heals.shares) + len(heals.lost),
        shares=len(heals.shares),
    )
    if heals.shares and not dry_run:
        open_owned(catalog, facts.job)
        done = apply_heals(catalog, store(catalog, _plan(facts, heals)), progress)
        report = replace(report, **done)
        facts = _facts(catalog, job_name)
        heals = heals_of(facts)
    if not heals.lost:
        return report
    return replace(
        report,
        lost=tuple(map(_about, heals.lost)),
        way_out=_way_out(facts),
    )


def plan_heals(catalog: Catalog, job_name: str) -> Plan:
    """Plans what can be made again of a job's damaged segments. It is empty where nothing is to be.

    Raises:
        BadInputError: there is no such job, or `CAIRN_STORAGES` is not set.
        RefusedError: nothing of what is damaged can be made again, and checkpoints to come need it;
            or see `heal_job`.
        StoreFailedError: the metastore or the storage failed.
    """
    facts = _facts(catalog, job_name)
    heals = heals_of(facts)
    if heals.lost and not heals.shares:
        shown = "; ".join(map(_about, heals.lost[:_SHOWN]))
        raise RefusedError(
            f"{len(heals.lost)} damaged segments cannot be made again, as no retained checkpoint "
            f"has their state by other segments: {shown}. {_way_out(facts)}",
            job=job_name,
        )
    if heals.shares:
        open_owned(catalog, facts.job)
    return _plan(facts, heals)


def apply_heals(catalog: Catalog, plan: StoredPlan, progress: Progress) -> Mapping[str, Any]:
    """Makes again what a stored plan says, under its lease; returns what was done as JSON values.

    What it is made from is found anew. A source that turns out to be damaged is recorded, and
    another one is used, where there is one. Each share is tried, whichever fails.

    Raises:
        FencedError: another process applies the plan.
        RefusedError: the plan is too old or over, the job was dropped, or see `fold_shares`.
        CorruptSegmentError, StoreFailedError: see `fold_shares`; what was healed stays.
    """
    if plan.status is MaintenanceStatus.APPLIED:
        return plan.result or {}
    job = job_of(catalog, plan)
    objects = open_owned(catalog, job)
    with held_lease(catalog, plan.job_id, plan.run_id) as lease:
        total, failures = FoldReport(), list[CairnError]()
        for share in of_json(plan.plan):
            try:
                total += _heal(catalog, job, objects, lease, share)
                progress("shares healed", 1)
            except FencedError:
                raise
            except (CorruptSegmentError, StorageError, RefusedError) as failed:
                facts = {"job": job.name, "subtask": share.subtask, "error": str(failed)}
                _log.warning("a share cannot be healed; going on with the others", extra=facts)
                failures.append(failed)
        if failures:
            raise failures[0]
        done = asdict(total)
        result = {"healed": done.pop("folded"), **done}
        catalog.run(
            f"finishing to heal job {job.name}",
            lambda c: finish(c, lease.run_id, lease.holder, MaintenanceStatus.APPLIED, result),
        )
    return result


def _heal(
    catalog: Catalog, job: JobFacts, objects: ObjectStore, lease: LeaseRef, share: Share
) -> FoldReport:
    known: set[str] = set()
    while True:
        inputs = catalog.run(
            f"reading what to make again of job {job.name}",
            lambda c: read_heal_inputs(c, job.job_id, [share]),
        )
        if not inputs:
            return FoldReport(unchanged=1)
        try:
            return fold_inputs(catalog, job, objects, lease, inputs)
        except (CorruptSegmentError, StorageError) as failed:
            paths = {handle.path for one in inputs for handle in one.handles}
            # A store that takes no new file says nothing of these.
            if isinstance(failed, StorageError) and failed.file not in paths:
                raise
            found = _damaged_sources(catalog, job, objects, inputs, sorted(paths))
            # Ends: each time more is known as damaged.
            if not found - known:
                raise
            known |= found
            facts = {"job": job.name, "subtask": share.subtask, "error": str(failed)}
            _log.warning("what is damaged cannot be made from this; looking for more", extra=facts)


def _damaged_sources(
    catalog: Catalog,
    job: JobFacts,
    objects: ObjectStore,
    inputs: Sequence[FoldInput],
    paths: Sequence[str],
) -> set[str]:
    """Reads the sources' files and records damage; returns which sources are damaged."""
    read = {handle.segment_id for one in inputs for handle in one.handles}
    scrub_files(catalog, job, objects, paths)
    return read & {one.segment_id for one in _facts(catalog, job.name).damage}


def _facts(catalog: Catalog, job_name: str) -> HealFacts:
    return catalog.run(
        f"reading what is damaged of job {job_name}", lambda c: read_heal_facts(c, job_name)
    )


def _plan(facts: HealFacts, heals: Heals) -> Plan:
    return Plan(
        job=facts.job,
        action=MaintenanceAction.HEAL,
        content=to_json(heals),
        deletes=PlannedDeletes(files=0, size_bytes=0),
        is_empty=not heals.shares,
    )


def _about(one: Damage) -> str:
    groups = f"{one.key_groups.start} to {one.key_groups.end - 1}"
    return (
        f"{one.kind} of subtask {one.subtask} as of checkpoint {one.as_of_checkpoint}, key groups "
        f"{groups}, in {one.path}"
    )


def _way_out(facts: HealFacts) -> str:
    job = facts.job.name
    put_back = (
        "Put the objects back, for example older versions of the bucket's, and run "
        f"`cairn scrub {job}`"
    )
    if facts.newest_whole is None:
        return f"No confirmed checkpoint is whole. {put_back}"
    return (
        f"{put_back}; or run `cairn pin {job} {facts.newest_whole}`, the newest whole checkpoint, "
        "and start a new job from the manifest that it prints, with `restore_from`"
    )
