"""The bodies of the maintenance DAGs' tasks. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from cairn.errors import BadInputError, RefusedError, StorageError

log = logging.getLogger(__name__)


def jobs_to_clean(job: str | None) -> list[str]:
    """Returns the names of the jobs to clean: the one given, else all that the metastore has."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.jobs import job_names  # noqa: PLC0415

    with _airflow_errors():
        return [job] if job else find_catalog().run("listing the jobs", job_names)


def clean_job(job: str, *, dry_run: bool) -> dict[str, Any]:
    """Cleans one job and returns its `CleanupReport` as a dict.

    Raises:
        AirflowFailException: the cleanup was refused, or the input is wrong; never retried.
        StorageError: some objects could not be deleted; the retry tries them again.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.cleanup import cleanup_job  # noqa: PLC0415

    with _airflow_errors():
        report = cleanup_job(find_catalog(), job, dry_run=dry_run)
    log.info("%s", report)
    # Not the cleanup's error: the rest is deleted, and Airflow's retry tries these again.
    if report.failed_deletes:
        raise StorageError(
            f"{report.failed_deletes} objects could not be deleted ({report.deleted_files} were); "
            "their errors are in cairn.deletions.last_error",
            job=job,
        )
    return asdict(report)


def total(reports: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the number of jobs and the sum of each count of their cleanup reports."""
    sums = {"jobs": 0}
    for report in reports:
        sums["jobs"] += 1
        for name, value in report.items():
            if name not in ("job", "dry_run"):
                sums[name] = sums.get(name, 0) + value
    log.info("%s", sums)
    return sums


@contextmanager
def _airflow_errors() -> Iterator[None]:
    """Makes errors that trying again cannot help fail the task at once."""
    try:
        yield
    except (BadInputError, RefusedError) as error:
        raise AirflowFailException(str(error)) from error
