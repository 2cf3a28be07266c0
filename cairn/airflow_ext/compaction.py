"""The bodies of the tasks that compact jobs. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from cairn.airflow_ext.errors import airflow_errors
from cairn.errors import BadInputError, FencedError, RefusedError

log = logging.getLogger(__name__)


def plan_job(job: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Plans the compaction of one job, and stores the plan unless it is empty or a dry run.

    Returns the job, the plan's id (None: there is nothing to apply) and its sums.

    Raises:
        AirflowFailException: it was refused, or the input is wrong; never retried.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.compaction import plan_job as plan  # noqa: PLC0415
    from cairn.maintenance.compaction_plan import CompactionOptions  # noqa: PLC0415

    with airflow_errors():
        options = CompactionOptions(
            start_amplification=params["start_amplification"],
            stop_amplification=params["stop_amplification"],
            input_bytes=params["input_mb"] << 20,
            drain_parallelism=params["drain_parallelism"],
        )
        planned = plan(find_catalog(), job, options, dry_run=params["dry_run"])
    summary = {
        "job": job,
        "plan_id": None if planned.plan_id is None else str(planned.plan_id),
        "files": len(planned.plan.files),
        "copied_bytes": planned.plan.copied_bytes,
        "freed_bytes": planned.plan.freed_bytes,
        "held_files": {reason.value: held.files for reason, held in planned.plan.held.items()},
        "is_capped": planned.plan.is_capped,
        "pointless_because": planned.plan.pointless_because,
    }
    log.info("%s", summary)
    return summary


def apply_job(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Applies a stored plan and returns what was done; an empty one changes nothing.

    Raises:
        AirflowFailException: it was refused; never retried.
        FencedError, StoreFailedError: another process applies the plan, or a store failed; the
            retry continues.
    """
    from uuid import UUID  # noqa: PLC0415

    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.compaction import apply_compaction  # noqa: PLC0415
    from cairn.maintenance.plans import read  # noqa: PLC0415

    if planned["plan_id"] is None:
        return {"job": planned["job"], "rewritten_files": 0}
    catalog = find_catalog()
    try:
        done = apply_compaction(catalog, read(catalog, UUID(planned["plan_id"])))
    except FencedError:
        raise  # retried: who holds the lease may have been killed, and then it ends
    except (BadInputError, RefusedError) as error:
        raise AirflowFailException(str(error)) from error
    log.info("%s", done)
    return {"job": planned["job"], **done}
