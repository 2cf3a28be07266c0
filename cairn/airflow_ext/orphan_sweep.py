"""The body of the orphan sweep's task. Heavy imports wait until it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cairn.airflow_ext.errors import airflow_errors
from cairn.errors import StorageError

log = logging.getLogger(__name__)


def sweep_one(job: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sweeps one job's root as the Dag's params say, and returns its `SweepReport` as a dict.

    Raises:
        AirflowFailException: the sweep was refused, such as by a circuit breaker, whose command is
            in the text; or the input is wrong. Never retried.
        StorageError: some objects could not be deleted; the retry tries them again.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.sweep import sweep_job  # noqa: PLC0415

    with airflow_errors():
        report = sweep_job(
            find_catalog(),
            job,
            dry_run=params["dry_run"],
            quarantine_ms=params["quarantine_days"] * 86_400_000,
        )
    log.info("%s", report)
    # Not the sweep's error: the rest is deleted, and Airflow's retry tries these again.
    if report.failed_deletes:
        raise StorageError(
            f"{report.failed_deletes} orphans could not be deleted ({report.deleted} were); `cairn "
            f"quarantine list {job}` has their errors",
            job=job,
        )
    return asdict(report)
