"""The actions of the maintenance: who plans and applies each. A new one is a line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import RefusedError
from cairn.maintenance import cleanup, compaction, heal, materialization, recorded_work, sweep
from cairn.maintenance.plans import Action, read, refuse_spoken, store_unless_empty
from cairn.maintenance.progress import Progress, silent
from metastore.enums import MaintenanceAction, MaintenanceStatus

ACTIONS: Mapping[MaintenanceAction, Action] = {
    MaintenanceAction.SUBSUMPTION: Action(cleanup.plan_cleanup, cleanup.apply_cleanup),
    MaintenanceAction.ORPHAN_SWEEP: Action(sweep.plan_sweep, sweep.apply_sweep),
    MaintenanceAction.MATERIALIZATION: Action(
        materialization.plan_folds, materialization.apply_folds
    ),
    MaintenanceAction.COMPACTION: Action(compaction.plan_action, compaction.apply_compaction),
    MaintenanceAction.SCRUB: Action(recorded_work.plan_scrub, recorded_work.apply_scrub),
    MaintenanceAction.HEAL: Action(heal.plan_heals, heal.apply_heals),
    MaintenanceAction.HOUSEKEEPING: Action(
        recorded_work.plan_housekeeping, recorded_work.apply_housekeeping
    ),
}


def plan_action(catalog: Catalog, action: MaintenanceAction, job: str) -> StoredPlan | None:
    """Plans an action for a job and stores the plan; returns None where there is nothing to do.

    Raises:
        BadInputError, RefusedError, StoreFailedError: the planner's.
    """
    return store_unless_empty(catalog, ACTIONS[action].plan(catalog, job))


def apply_plan(catalog: Catalog, run_id: UUID, *, progress: Progress = silent) -> Mapping[str, Any]:
    """Applies a stored plan, of whichever process, and returns what that has changed.

    One that was applied already changes nothing more; what it has left to delete is deleted.

    Raises:
        BadInputError: there is no such plan.
        RefusedError: a circuit breaker spoke and nobody has passed it; the plan has failed or is
            older than an hour; or the applier refuses.
        StoreFailedError: a store failed; call again to continue.
    """
    plan = read(catalog, run_id)
    refuse_spoken(plan)
    if plan.status is MaintenanceStatus.FAILED:
        raise RefusedError(
            f"plan {run_id} has failed: {dict(plan.result or {})}. Make a new one with `cairn plan "
            f"{plan.action} {plan.job}`",
            job=plan.job,
        )
    return ACTIONS[plan.action].apply(catalog, plan, progress)
