"""What becomes of a stored plan once it is known whether a person lets it be applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.maintenance.actions import apply_plan
from cairn.maintenance.plans import pass_breakers, read
from cairn.maintenance.progress import Progress, silent
from metastore.enums import MaintenanceStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person has said about a plan; `by` is None where nobody was asked, or answered."""

    is_approved: bool
    by: str | None


class Outcome(StrEnum):
    """What became of a plan."""

    APPLIED = "applied"
    NOT_APPROVED = "not approved"
    TOO_OLD = "too old"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a plan, in a sentence, and what applying it has changed."""

    outcome: Outcome
    told: str
    changed: Mapping[str, Any]


def apply_answered(
    catalog: Catalog, run_id: UUID, answer: Answer, *, progress: Progress = silent
) -> Answered:
    """Applies a stored plan if no circuit breaker spoke about it, or a person has let it pass.

    Who was faster counts: a plan that was applied from a shell while an answer was waited for is
    not applied again, and what it has left to delete is deleted. One that somebody has passed there
    needs no second name. A plan about which no breaker spoke, and which has become too old in a
    queue or while its process was dead, is left: make a new one. Safe to repeat.

    Raises:
        BadInputError: there is no such plan: its job was dropped, or its row was trimmed.
        FencedError: another process applies it; try again.
        RefusedError: it was approved after its time was over, or see `apply_plan`.
        StoreFailedError: a store failed; call again to continue.
    """
    plan = read(catalog, run_id)
    if plan.status is not MaintenanceStatus.APPLIED:
        if plan.spoken and not (answer.is_approved and answer.by):
            return _not_approved(plan)
        if plan.status is MaintenanceStatus.REFUSED:
            pass_breakers(catalog, run_id, plan.spoken, answer.by or "")
        elif plan.is_expired and not plan.spoken:
            told = f"plan {run_id} is too old, or has failed; a new one is to be made"
            return Answered(outcome=Outcome.TOO_OLD, told=told, changed={})
    changed = dict(apply_plan(catalog, run_id, progress=progress))
    passed_by = read(catalog, run_id).passed_by
    by = f", and {passed_by} has passed its circuit breakers" if passed_by else ""
    return Answered(outcome=Outcome.APPLIED, told=f"plan {run_id} is applied{by}", changed=changed)


def _not_approved(plan: StoredPlan) -> Answered:
    told = f"plan {plan.run_id} was not approved, so it stays REFUSED, and nothing of it was done"
    if plan.passed_by:
        told = (
            f"plan {plan.run_id} was not approved here, but {plan.passed_by} has passed it from a "
            "shell, so it is left to them"
        )
    told += f"; `cairn runs {plan.job}` says why it was to be approved"
    return Answered(outcome=Outcome.NOT_APPROVED, told=told, changed={})
