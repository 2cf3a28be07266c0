"""The bodies of the materialization's tasks. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from cairn.airflow_ext.errors import airflow_errors

log = logging.getLogger(__name__)


def jobs_to_materialize(job: str | None) -> list[str]:
    """Returns the job that is given, else all that leave it to the maintenance."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.maintenance.fold_facts import jobs_left_to_maintenance  # noqa: PLC0415

    with airflow_errors():
        if job:
            return [job]
        return find_catalog().run("listing the jobs", jobs_left_to_maintenance)


def materialize_one(job: str, *, dry_run: bool) -> dict[str, Any]:
    """Folds what is due of one job, and returns its `MaterializationReport` as a dict.

    Raises:
        AirflowFailException: it was refused, or the input is wrong; never retried.
        CairnError: a retry makes a new plan, and continues with what is not folded yet.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.materialization import materialize_job  # noqa: PLC0415

    with airflow_errors():
        report = materialize_job(find_catalog(), job, dry_run=dry_run)
    log.info("%s", report)
    return asdict(report)
