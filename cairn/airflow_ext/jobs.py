"""The bodies of the tasks that end a job. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cairn.airflow_ext.errors import airflow_errors
from cairn.errors import StorageError

log = logging.getLogger(__name__)


def id_to_drop(name: str) -> dict[str, Any]:
    """Returns the job of a name, as `drop_by_id` takes it.

    Raises:
        AirflowFailException: there is none; never retried.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.drop import find_job_to_drop  # noqa: PLC0415

    with airflow_errors():
        return asdict(find_job_to_drop(find_catalog(), name))


def drop_by_id(job: Mapping[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Drops a job and returns its `DropReport` as a dict, with the time as text.

    Raises:
        AirflowFailException: it was refused, or an object is in the way that no row knows; never
            retried.
        StorageError: some objects could not be deleted; the retry tries them again.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.cleanup.drop import JobToDrop  # noqa: PLC0415
    from cairn.maintenance.drop import drop_job, refuse_unknown  # noqa: PLC0415

    with airflow_errors():
        report = drop_job(find_catalog(), JobToDrop(**job), dry_run=dry_run)
        log.info("%s", report)
        refuse_unknown(report)
    if report.failed_deletes:
        raise StorageError(
            f"{report.failed_deletes} objects could not be deleted; their errors are in "
            "cairn.deletions.last_error",
            job=report.job,
        )
    until = report.next_delete_at
    return asdict(report) | {"next_delete_at": until and until.isoformat()}
