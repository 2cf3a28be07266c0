"""Rows that nothing needs any more: history by policy, pins whose time is over, runs that ended.

It changes no object, so it asks nobody who owns the job's root. Each step is a short transaction;
killed in between, the next call continues.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.history import Trimmed, forecast_history, trim_history
from cairn.catalog.cleanup.snapshot import PLAN_ROWS, JobFacts, facts_of_job
from cairn.catalog.job.run_ends import close_replaced_runs, count_replaced_runs
from cairn.catalog.savepoints.pins import count_expired_pins, remove_expired_pins
from cairn.maintenance.progress import Progress, silent

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingReport:
    """What housekeeping changed; of a dry run, what it would change now.

    `expired_pins` were removed, and `closed_runs` were replaced by newer ones. The rows of
    `trimmed_checkpoints` and `trimmed_files` have left the metastore, with others
    `trimmed_rows`; a dry run counts at most `PLAN_ROWS` of each.
    """

    job: str
    dry_run: bool
    expired_pins: int
    closed_runs: int
    trimmed_checkpoints: int
    trimmed_files: int
    trimmed_rows: int


def housekeep_job(
    catalog: Catalog, job_name: str, *, dry_run: bool = False, progress: Progress = silent
) -> HousekeepingReport:
    """Removes expired pins of a job, closes replaced runs, trims the history; returns how many.

    May run at any time, beside the job and its cleanup, and twice at once. A dry run changes
    nothing.

    Raises:
        BadInputError: there is no such job.
        MetastoreError: the metastore failed; call again to continue.
    """
    job = catalog.run(f"finding job {job_name}", lambda c: facts_of_job(c, job_name))
    if dry_run:
        return catalog.run(f"looking at job {job_name}", lambda c: _forecast(c, job))
    pins = catalog.run("removing expired pins", lambda c: remove_expired_pins(c, job.job_id))
    runs = catalog.run("closing replaced runs", lambda c: close_replaced_runs(c, job.job_id))
    trimmed = trim_job(catalog, job, progress=progress)
    if pins or runs:
        facts = {"job": job.name, "expired_pins": pins, "closed_runs": runs}
        _log.info("pins and runs closed", extra=facts)
    return HousekeepingReport(
        job=job.name,
        dry_run=False,
        expired_pins=pins,
        closed_runs=runs,
        trimmed_checkpoints=trimmed.checkpoints,
        trimmed_files=trimmed.files,
        trimmed_rows=trimmed.rows,
    )


def trim_job(
    catalog: Catalog, job: JobFacts, *, most_steps: int | None = None, progress: Progress = silent
) -> Trimmed:
    """Deletes the rows of a job's history that its policy does not keep; returns how many.

    In at most so many transactions, or in as many as it takes.
    """
    checkpoints = files = rows = steps = 0
    while most_steps is None or steps < most_steps:
        step = catalog.run(
            f"trimming the history of job {job.name}", lambda c: trim_history(c, job.job_id)
        )
        steps += 1
        checkpoints += step.checkpoints
        files += step.files
        rows += step.rows
        progress("rows trimmed", step.rows)
        if not step.rows:
            break
    trimmed = Trimmed(checkpoints, files, rows)
    if rows:
        _log.info("history trimmed", extra={"job": job.name} | asdict(trimmed))
    return trimmed


def _forecast(connection: Connection, job: JobFacts) -> HousekeepingReport:
    trimmed = forecast_history(connection, job.job_id, most=PLAN_ROWS)
    return HousekeepingReport(
        job=job.name,
        dry_run=True,
        expired_pins=count_expired_pins(connection, job.job_id),
        closed_runs=count_replaced_runs(connection, job.job_id),
        trimmed_checkpoints=trimmed.checkpoints,
        trimmed_files=trimmed.files,
        trimmed_rows=trimmed.rows,
    )
