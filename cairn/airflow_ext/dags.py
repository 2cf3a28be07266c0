"""What the DAGs share: how their tasks are tried again, and two fields of their trigger forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param

FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
TAGS = ["cairn", "maintenance"]


def task_defaults(
    execution_timeout: timedelta, *, retry_delay: timedelta = timedelta(seconds=30)
) -> dict[str, Any]:
    """Returns a DAG's `default_args`: a task is tried four times, later each time."""
    return {
        "owner": "cairn",
        "retries": 3,
        "retry_delay": retry_delay,
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
        "execution_timeout": execution_timeout,
    }


def job_param(description_md: str) -> Param:
    """Returns the field for the name of one job; empty means all of them."""
    return Param(None, type=["null", "string"], title="Job", description_md=description_md)


def dry_run_param(description_md: str) -> Param:
    """Returns the field that has a run change nothing; off, as scheduled runs take the defaults."""
    told = f"{description_md} Off by default, because scheduled runs take the defaults."
    return Param(False, type="boolean", title="Dry run", description_md=told)
