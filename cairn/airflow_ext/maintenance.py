"""What the maintenance Dags share: params, jobs, the sum. Heavy imports wait until a task runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from cairn.airflow_ext.errors import airflow_errors

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


def jobs_to_maintain(job: str | None) -> list[str]:
    """Returns the names of the jobs to maintain: the one given, else all of the metastore."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.jobs import job_names  # noqa: PLC0415

    with airflow_errors():
        return [job] if job else find_catalog().run("listing the jobs", job_names)


def jobs_to_materialize(job: str | None) -> list[str]:
    """Returns the job that is given, else all that leave their materialization to the Dag."""
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
    from cairn.catalog.maintenance.fold_facts import jobs_left_to_maintenance  # noqa: PLC0415

    with airflow_errors():
        if job:
            return [job]
        return find_catalog().run("listing the jobs", jobs_left_to_maintenance)


def total(reports: Iterable[Mapping[str, Any]] | Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the number of jobs and the sum of each count of their cleanup reports.

    Of a task group that was mapped over one job, Airflow 3.3 gives its report without a list.
    """
    sums = {"jobs": 0}
    for report in [reports] if isinstance(reports, Mapping) else reports or []:
        sums["jobs"] += 1
        for name, value in report.items():
            if isinstance(value, int) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    log.info("%s", sums)
    return sums
