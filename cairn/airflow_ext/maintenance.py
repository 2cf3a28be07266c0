"""The bodies of the maintenance DAGs' tasks. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from cairn.airflow_ext.errors import airflow_errors
from cairn.airflow_ext.plans import apply_planned, plan_for
from cairn.errors import StorageError

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


def plan_cleanup(job: str, *, dry_run: bool) -> dict[str, Any]:
    """Stores a plan of a job's subsumption; of a dry run it only reports what a cleanup would do.

    Returns what `cairn.airflow_ext.plans.plan_for` does, with `report` (None: it is no dry run).

    Raises:
        AirflowFailException: it was refused, or the input is wrong; never retried.
    """
    if dry_run:
        nothing = {"action": "subsumption", "plan": None, "files": 0, "size_bytes": 0}
        return {**nothing, "job": job, "breakers": [], "report": clean_job(job, dry_run=True)}
    return {**plan_for("subsumption", job), "report": None}


def apply_cleanup(planned: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Applies what `plan_cleanup` has stored, then cleans up what one plan does not hold.

    Returns the sum of both as a `CleanupReport` in a dict.

    Raises:
        AirflowSkipException: see `apply_planned`.
        AirflowFailException, StorageError: see `clean_job`.
    """
    if planned["report"] is not None:
        return dict(planned["report"])
    first = apply_planned(planned, answer)
    rest = clean_job(planned["job"], dry_run=False)
    return rest | {name: rest[name] + first.get(name, 0) for name in _CHANGES}


_CHANGES = (
    "subsumed_checkpoints",
    "dead_segments",
    "condemned_files",
    "deleted_files",
    "freed_bytes",
    "trimmed_checkpoints",
    "trimmed_files",
)


def total(reports: Iterable[Mapping[str, Any]] | Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the number of jobs and the sum of each count of their cleanup reports.

    Of a task group that was mapped over one job, Airflow 3.3 gives its report without a list.
    """
    sums = {"jobs": 0}
    for report in [reports] if isinstance(reports, Mapping) else reports or []:
        sums["jobs"] += 1
        for name, value in report.items():
            if isinstance(value, int) and name != "dry_run":
                sums[name] = sums.get(name, 0) + value
    log.info("%s", sums)
    return sums
