"""The body of the housekeeping's task. Heavy imports wait until it runs."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from cairn.airflow_ext.errors import airflow_errors

log = logging.getLogger(__name__)


def housekeep_one(job: str, *, dry_run: bool) -> dict[str, Any]:
    """Does the housekeeping of one job and returns its `HousekeepingReport` as a dict.

    Raises:
        AirflowFailException: the input is wrong; never retried.
        MetastoreError: the metastore failed; the retry continues.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.recorded_work import housekeep_and_record  # noqa: PLC0415

    with airflow_errors():
        report = housekeep_and_record(find_catalog(), job, dry_run=dry_run)
    log.info("%s", report)
    return asdict(report)
