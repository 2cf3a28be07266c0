"""The body of the scrub's task: reads, and heals. Heavy imports wait until it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from cairn.airflow_ext.errors import airflow_errors

log = logging.getLogger(__name__)


def scrub_one(job: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Scrubs one job as the Dag's params say, and returns its `ScrubReport` as a dict.

    What is damaged is made again for the checkpoints to come, where that can be.

    Raises:
        AirflowFailException: something that a checkpoint needs is damaged, which is recorded, and
            healed or not; or the scrub was refused, or the input is wrong. Never retried.
        StorageError, MetastoreError: a store failed; the retry reads another share.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.heal import heal_job  # noqa: PLC0415
    from cairn.maintenance.recorded_work import scrub_and_record  # noqa: PLC0415

    with airflow_errors():
        report = scrub_and_record(
            find_catalog(),
            job,
            sample_percent=None if params["whole"] else params["sample_percent"],
            max_bytes_per_s=params["max_bytes_per_s"],
            dry_run=params["dry_run"],
        )
        log.info("%s", report)
        if not report.damaged_segments:
            return asdict(report)
        healed = heal_job(find_catalog(), job, dry_run=params["dry_run"])
    log.info("%s", healed)
    left = (
        f"{len(healed.lost)} of them checkpoints to come need, and they cannot be made again. "
        f"{healed.way_out}"
        if healed.lost
        else f"of {healed.shares} parts that checkpoints to come need, {healed.healed} were healed"
    )
    raise AirflowFailException(
        f"{report.damaged_segments} segments that checkpoints of job {job} need are damaged; "
        f"{left}. `cairn scrub {job} --dry-run` lists them, with the checkpoints and manifests "
        "that need them"
    )
