"""The bodies of the maintenance DAGs' tasks. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from cairn.errors import BadInputError, RefusedError, StorageError

log = logging.getLogger(__name__)


def params_of_run() -> Mapping[str, Any]:
    """Returns the params of the Dag run whose task calls it.

    Raises:
        AirflowFailException: the run was triggered with a param that the Dag does not have, or with
            one that Airflow ignores. Without its value the task would take the default, such as all
            jobs.
    """
    context = get_current_context()
    params, given = context["params"], context["dag_run"].conf or {}
    known = sorted(context["dag"].params)
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            raise AirflowFailException(
                f"the Dag has no param {name!r}; it has {', '.join(known)}."
                + (f" Did you mean {close[0]!r}?" if close else "")
                + " Nothing was changed; trigger it again"
            )
        if params[name] != value:
            raise AirflowFailException(
                f"param {name!r} was given as {value!r}, but this Airflow takes {params[name]!r}. "
                "Nothing was changed; set core.dag_run_conf_overrides_params to True"
            )
    return params


def jobs_to_clean(job: str | None) -> list[str]:
    """Returns the names of the jobs to clean: the one given, else all that the metastore has."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.jobs import job_names  # noqa: PLC0415

    with airflow_errors():
        return [job] if job else find_catalog().run("listing the jobs", job_names)


def clean_job(job: str, *, dry_run: bool) -> dict[str, Any]:
    """Cleans one job and returns its `CleanupReport` as a dict.

    Raises:
        AirflowFailException: the cleanup was refused, or the input is wrong; never retried.
        StorageError: some objects could not be deleted; the retry tries them again.
    """
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.maintenance.cleanup import cleanup_job  # noqa: PLC0415

    with airflow_errors():
        report = cleanup_job(find_catalog(), job, dry_run=dry_run)
    log.info("%s", report)
    # Not the cleanup's error: the rest is deleted, and Airflow's retry tries these again.
    if report.failed_deletes:
        raise StorageError(
            f"{report.failed_deletes} objects could not be deleted ({report.deleted_files} were); "
            "their errors are in cairn.deletions.last_error",
            job=job,
        )
    next_at = report.next_delete_at
    return {**asdict(report), "next_delete_at": next_at and next_at.isoformat()}


def total(reports: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the number of jobs and the sum of each count of their cleanup reports."""
    sums = {"jobs": 0}
    for report in reports:
        sums["jobs"] += 1
        for name, value in report.items():
            if isinstance(value, int) and name != "dry_run":
                sums[name] = sums.get(name, 0) + value
    log.info("%s", sums)
    return sums


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Makes errors that trying again cannot help fail the task at once."""
    try:
        yield
    except (BadInputError, RefusedError) as error:
        raise AirflowFailException(str(error)) from error
