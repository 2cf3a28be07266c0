"""What the view of metrics says of a job."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from cairn.catalog.catalog import Catalog

SINGLE = ("counter", "gauge")


def metric_rows(url: str, job: str) -> list[Any]:
    """Returns the job's rows in `v_metrics`."""
    query = text("SELECT * FROM cairn.v_metrics WHERE job_name = :job").bindparams(job=job)
    return Catalog(url).run("reading the metrics", lambda c: list(c.execute(query).mappings()))


def metric(url: str, job: str, name: str) -> dict[Any, float]:
    """Returns a metric's values by task manager or subtask, or by None."""
    return {
        row["subtask"] if row["tm_id"] is None else row["tm_id"]: row["value"]
        for row in metric_rows(url, job)
        if row["metric"] == name and row["kind"] in SINGLE
    }


def histogram(url: str, job: str, name: str) -> dict[str, dict[Any, float]]:
    """Returns by task manager a histogram's sum and count, and its quantiles as numbers."""
    found: dict[str, dict[Any, float]] = {}
    for row in metric_rows(url, job):
        if row["metric"] == name and row["kind"] not in SINGLE:
            part = row["kind"] if row["quantile"] is None else row["quantile"]
            found.setdefault(row["tm_id"], {})[part] = row["value"]
    return found
