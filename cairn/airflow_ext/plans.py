"""The bodies of the tasks that plan and apply maintenance. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from airflow.sdk.exceptions import AirflowSkipException

from cairn.airflow_ext.errors import airflow_errors

log = logging.getLogger(__name__)


def plan_for(action: str, job: str) -> dict[str, Any]:
    """Stores a plan for a job and returns what it would delete, as JSON values.

    The keys are action, job, plan (its id; None: there is nothing to do), files, size_bytes and
    breakers (the circuit breakers that spoke).

    Raises:
        AirflowFailException: it was refused, or the input is wrong; never retried.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.actions import plan_action  # noqa: PLC0415
    from metastore.enums import MaintenanceAction  # noqa: PLC0415

    with airflow_errors():
        stored = plan_action(find_catalog(), MaintenanceAction(action), job)
    planned = {
        "action": action,
        "job": job,
        "plan": stored and str(stored.run_id),
        "files": stored.files if stored else 0,
        "size_bytes": stored.size_bytes if stored else 0,
        "breakers": [dict(one) for one in stored.breakers] if stored else [],
    }
    log.info("%s", planned)
    return planned


def apply_planned(planned: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Applies what `plan_for` has stored, and returns what that has changed; {}: nothing.

    `answer` is the value of `cairn.airflow_ext.approval.PassBreakers`. A plan about which no
    circuit breaker spoke, and which has become too old in a queue, is passed over: whoever calls
    continues with a new one.

    Raises:
        AirflowSkipException: a circuit breaker spoke, and nobody has approved the plan.
        AirflowFailException: it was refused; never retried.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.actions import apply_plan  # noqa: PLC0415
    from cairn.maintenance.plans import pass_breakers, read  # noqa: PLC0415

    if planned["plan"] is None:
        return {}
    if planned["breakers"] and answer["approved"] is not True:
        raise AirflowSkipException(
            f"plan {planned['plan']} was not approved, so it stays refused; `cairn runs "
            f"{planned['job']}` says why"
        )
    catalog, run_id = find_catalog(), UUID(planned["plan"])
    names = [one["breaker"] for one in planned["breakers"]]
    with airflow_errors():
        if names:
            pass_breakers(catalog, run_id, names, answer["by"] or "")
        elif read(catalog, run_id).is_expired:
            log.warning("plan %s is too old; a new one is made", run_id)
            return {}
        changed = dict(apply_plan(catalog, run_id))
    log.info("plan %s: %s", run_id, changed)
    return changed
