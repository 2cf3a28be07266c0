"""Plans of maintenance actions: stored with what circuit breakers say, passed by a person, applied.

`cairn.maintenance.actions` is the table of the actions that there are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.maintenance import plans as rows
from cairn.catalog.maintenance.plans import NewPlan, StoredPlan
from cairn.errors import RefusedError
from cairn.maintenance.breakers import PlannedDeletes, limits_of, spoken
from cairn.maintenance.progress import Progress
from metastore.enums import MaintenanceAction, MaintenanceStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a planner has found to do for a job: JSON values, which alone an applier gets.

    `deletes` is what circuit breakers look at. A plan that `is_empty` is not stored.
    """

    job: JobFacts
    action: MaintenanceAction
    content: Mapping[str, Any]
    deletes: PlannedDeletes
    is_empty: bool


Planner = Callable[[Catalog, str], Plan]
"""Makes a plan for the job of a name. Changes nothing."""

Applier = Callable[[Catalog, StoredPlan, Progress], Mapping[str, Any]]
"""Applies a stored plan and returns what it has changed, as JSON values. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class Action:
    """How an action is planned and applied."""

    plan: Planner
    apply: Applier


def digest_of(content: Mapping[str, Any]) -> str:
    """Returns the hex SHA-256 of a plan's canonical JSON: equal plans have equal digests."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def store_unless_empty(catalog: Catalog, plan: Plan) -> StoredPlan | None:
    """Stores a plan and returns its row; of an empty one it notes that there was nothing to do.

    Raises:
        BadInputError: see `store`.
    """
    if not plan.is_empty:
        return store(catalog, plan)
    catalog.run(
        f"noting that job {plan.job.name} needs no {plan.action}",
        lambda c: rows.note_good_run(c, plan.job.job_id, plan.action),
    )
    return None


def store(catalog: Catalog, plan: Plan) -> StoredPlan:
    """Stores a plan, REFUSED if a circuit breaker speaks about it; returns its row.

    Raises:
        BadInputError: a limit of a circuit breaker is set to what is none.
    """
    said = spoken(plan.deletes, limits_of(os.environ, plan.action))
    new = NewPlan(
        job_id=plan.job.job_id,
        action=plan.action,
        plan=plan.content,
        sha256=digest_of(plan.content),
        files=plan.deletes.files,
        size_bytes=plan.deletes.size_bytes,
        breakers=[one.to_json() for one in said],
    )
    # Before the transaction, which may run twice and must store one plan.
    run_id = uuid4()
    catalog.run(
        f"storing a plan for job {plan.job.name}", lambda c: rows.store_plan(c, run_id, new)
    )
    if said:
        facts = {"job": plan.job.name, "plan": str(run_id), "breakers": new.breakers}
        _log.warning("circuit breaker spoke", extra=facts)
    return read(catalog, run_id)


def read(catalog: Catalog, run_id: UUID) -> StoredPlan:
    """Returns a stored plan.

    Raises:
        BadInputError: there is none of this id.
    """
    return catalog.run("reading a plan", lambda c: rows.read_plan(c, run_id))


def pass_breakers(catalog: Catalog, run_id: UUID, names: Sequence[str], by: str) -> StoredPlan:
    """Lets a plan be applied that circuit breakers have refused, in the name of a person.

    Raises:
        BadInputError, RefusedError: see `cairn.catalog.maintenance.plans.pass_breakers`.
    """
    catalog.run(
        "passing circuit breakers", lambda c: rows.pass_breakers(c, run_id, tuple(names), by)
    )
    plan = read(catalog, run_id)
    facts = {"job": plan.job, "plan": str(run_id), "by": by, "breakers": list(plan.breakers)}
    _log.warning("circuit breaker passed", extra=facts)
    return plan


def refuse_spoken(plan: StoredPlan) -> None:
    """Raises if a circuit breaker spoke about a plan and nobody has passed it.

    Raises:
        RefusedError: it says what was found, and the command to run.
    """
    if plan.status is not MaintenanceStatus.REFUSED:
        return
    found = "; ".join(f"{one['found']} ({one['limit']})" for one in plan.breakers)
    names = " ".join(f"--pass {name}" for name in plan.spoken)
    raise RefusedError(
        f"a circuit breaker spoke about the {plan.action} of {plan.files} files "
        f"({plan.size_bytes} bytes): {found}. Nothing was changed. Find out why; if it is right, "
        f"run `cairn apply {plan.run_id} {names} --by NAME` within an hour",
        job=plan.job,
    )
