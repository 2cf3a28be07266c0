"""The bodies of the tasks that plan and apply maintenance. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from cairn.airflow_ext.errors import airflow_errors
from cairn.airflow_ext.work import WORK, Params, in_numbers
from cairn.errors import StorageError

log = logging.getLogger(__name__)


def plan_one(action: str, job: str, params: Params) -> dict[str, Any]:
    """Stores the plan of an action for a job; of a dry run it only reports what would be done.

    Returns JSON values: action, job, plan (its id; None: there is nothing to do), files and
    size_bytes (of what it deletes), breakers (the circuit breakers that spoke), found (what the
    plan has, in numbers) and report (of a dry run; else None).

    Raises:
        AirflowFailException: it was refused, or the input is wrong; never retried.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.plans import store_unless_empty  # noqa: PLC0415

    work, report, found, stored = WORK[action], None, None, None
    with airflow_errors():
        catalog = find_catalog()
        if params["dry_run"]:
            report = work.whole(catalog, job, params)
        else:
            plan = work.plan(catalog, job, params)
            found = in_numbers(plan.content)
            stored = store_unless_empty(catalog, plan)
    planned = {
        "action": action,
        "job": job,
        "plan": stored and str(stored.run_id),
        "files": stored.files if stored else 0,
        "size_bytes": stored.size_bytes if stored else 0,
        "breakers": [dict(one) for one in stored.breakers] if stored else [],
        "found": found,
        "report": report,
    }
    log.info("%s", planned)
    return planned


def apply_one(
    planned: Mapping[str, Any], answer: Mapping[str, Any], params: Params
) -> dict[str, Any]:
    """Applies what `plan_one` has stored, and what one plan does not hold; returns the report.

    `answer` is the value of `cairn.airflow_ext.approval.PassBreakers`. Where there was no plan, or
    it has become too old in a queue, what is to be done now is planned and done here.

    Raises:
        AirflowSkipException: a circuit breaker spoke, and nobody has approved the plan.
        AirflowFailException: it was refused, or there is damage; never retried.
        FencedError, StoreFailedError: another process applies the plan, or a store failed, such as
            in some of the deletes; the retry continues.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.approval import Answer, Outcome, apply_answered  # noqa: PLC0415

    if planned["report"] is not None:
        _look_at(planned["job"], planned["report"], dry_run=True)
        return dict(planned["report"])
    job, work = planned["job"], WORK[planned["action"]]
    is_applied, report = False, {}
    with airflow_errors():
        catalog = find_catalog()
        if planned["plan"] is not None:
            said = Answer(answer["approved"] is True, answer["by"])
            answered = apply_answered(catalog, UUID(planned["plan"]), said)
            log.info("%s: %s", answered.told, dict(answered.changed))
            if answered.outcome is Outcome.NOT_APPROVED:
                raise AirflowSkipException(answered.told)
            is_applied, report = answered.outcome is Outcome.APPLIED, dict(answered.changed)
        if work.goes_on or not is_applied:
            report = _with_changes(work.whole(catalog, job, params), report)
    report = {"job": job, **report}
    log.info("%s", report)
    _look_at(job, report, dry_run=False)
    return report


def _with_changes(whole: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report with what was changed before added to it."""
    return whole | {name: whole[name] + first.get(name, 0) for name in _CHANGES if name in whole}


_CHANGES = (
    "subsumed_checkpoints",
    "dead_segments",
    "condemned_files",
    "deleted_files",
    "freed_bytes",
    "trimmed_checkpoints",
    "trimmed_files",
)


def _look_at(job: str, report: Mapping[str, Any], *, dry_run: bool) -> None:
    """Fails the task where a report has damage, which is healed before, or deletes that failed."""
    if report.get("damaged_segments"):
        raise AirflowFailException(
            f"{report['damaged_segments']} segments that checkpoints of job {job} need are "
            f"damaged; {_heal(job, dry_run=dry_run)}. `cairn scrub {job} --dry-run` lists them, "
            "with the checkpoints and manifests that need them"
        )
    # Not the applier's error: the rest is deleted, and Airflow's retry tries these again.
    if report.get("failed_deletes"):
        done = report.get("deleted_files", report.get("deleted", 0))
        raise StorageError(
            f"{report['failed_deletes']} objects could not be deleted ({done} were). `cairn files "
            f"{job}` has their errors, and those of orphans `cairn quarantine list {job}`",
            job=job,
        )


def _heal(job: str, *, dry_run: bool) -> str:
    """Makes again what is damaged, for the checkpoints to come; returns what came of it."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.heal import heal_job  # noqa: PLC0415

    with airflow_errors():
        healed = heal_job(find_catalog(), job, dry_run=dry_run)
    log.info("%s", healed)
    if healed.lost:
        return (
            f"{len(healed.lost)} of them checkpoints to come need, and they cannot be made again. "
            f"{healed.way_out}"
        )
    return f"of {healed.shares} parts that checkpoints to come need, {healed.healed} were healed"
