"""The command that folds the changelogs of a job into bases."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import progress_bars
from cairn.maintenance.materialization import materialize_job

_TIMEOUT_MS = 60_000

_COLUMNS = {
    "job": "job",
    "due": "subtasks due",
    "due_bytes": "to read",
    "folded": "folded",
    "unchanged": "unchanged",
    "refused": "refused",
    "read_bytes": "read",
    "written_bytes": "written",
    "entries": "entries",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of materialize."""
    command: argparse.ArgumentParser = commands.add_parser(
        "materialize",
        parents=[common],
        help="fold the changelogs of a job that are due into bases, beside its query",
        epilog="Due are subtasks with changelog whose newest base is older than "
        "cairn.changelog.periodic-materialize.interval, and those on top of whose bases a restore "
        "would read more than 64 MB and a quarter of the bases. Refused are those that the query "
        "has materialized meanwhile.",
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.add_argument("--dry-run", action="store_true", help="report what is due, change none")
    command.set_defaults(run=materialize)


def materialize(catalog: Catalog, arguments: Namespace) -> int:
    """Materializes a job and prints what that has done."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    with progress_bars() as bars:
        task = bars.add_task("folding", total=None)
        report = materialize_job(
            catalog,
            arguments.job,
            dry_run=arguments.dry_run,
            progress=lambda what, count: bars.update(task, description=what, advance=count),
        )
    return print_rows([asdict(report)], _COLUMNS, arguments)
