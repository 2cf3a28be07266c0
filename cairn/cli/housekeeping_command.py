"""The command that trims history, removes expired pins and closes runs."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import job_names
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import fail, progress_bars
from cairn.errors import CairnError
from cairn.maintenance.housekeeping import HousekeepingReport
from cairn.maintenance.recorded_work import housekeep_and_record

_TIMEOUT_MS = 60_000

_COLUMNS = {
    "job": "job",
    "expired_pins": "pins expired",
    "closed_runs": "runs closed",
    "trimmed_checkpoints": "checkpoints trimmed",
    "trimmed_files": "files trimmed",
    "trimmed_rows": "rows trimmed",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of housekeeping."""
    command = commands.add_parser(
        "housekeeping",
        parents=[common],
        help="trim history, remove expired pins, close replaced runs",
    )
    command.add_argument("job", metavar="JOB", nargs="?", help="only this job, else all")
    command.add_argument("--dry-run", action="store_true", help="report the changes, make none")
    command.set_defaults(run=housekeeping)


def housekeeping(catalog: Catalog, arguments: Namespace) -> int:
    """Does the housekeeping of one job or all; continues with the next when one fails."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    chosen = [arguments.job] if arguments.job else catalog.run("listing the jobs", job_names)
    reports: list[HousekeepingReport] = []
    code = 0
    with progress_bars() as bars:
        task = bars.add_task("housekeeping", total=len(chosen))
        for job in chosen:
            bars.update(task, description=job)
            try:
                reports.append(housekeep_and_record(catalog, job, dry_run=arguments.dry_run))
            except CairnError as error:
                code = code or fail(error)
            bars.advance(task)
    print_rows([asdict(report) for report in reports], _COLUMNS, arguments)
    return code
