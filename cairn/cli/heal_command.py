"""The command that makes damaged bases and increments of a job again."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import print_error, progress_bars
from cairn.maintenance.heal import heal_job

_TIMEOUT_MS = 60_000
_DAMAGED = 5

_COLUMNS = {
    "job": "job",
    "damaged": "damaged segments",
    "shares": "can be made again",
    "healed": "healed",
    "unchanged": "not damaged any more",
    "refused": "refused",
    "read_bytes": "read",
    "written_bytes": "written",
    "entries": "entries",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of heal."""
    command: argparse.ArgumentParser = commands.add_parser(
        "heal",
        parents=[common],
        help="make damaged bases of a job again, from older ones and the changelog since",
        epilog="What is damaged `cairn scrub` has found. Checkpoints to come need it no more then; "
        "those that there are still do, until they are subsumed. The exit code is 5 if something "
        "is lost that checkpoints to come need.",
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.add_argument("--dry-run", action="store_true", help="say what can be, change nothing")
    command.set_defaults(run=heal)


def heal(catalog: Catalog, arguments: Namespace) -> int:
    """Heals a job and prints what that has done; returns 5 if something is lost."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    with progress_bars() as bars:
        task = bars.add_task("healing", total=None)
        report = heal_job(
            catalog,
            arguments.job,
            dry_run=arguments.dry_run,
            progress=lambda what, count: bars.update(task, description=what, advance=count),
        )
    print_rows([asdict(report)], _COLUMNS, arguments)
    if not report.damaged:
        print(
            f"no damage is known of job {report.job} that checkpoints to come need", file=sys.stderr
        )
    for one in report.lost:
        print(f"lost: {one}", file=sys.stderr)
    if report.lost:
        print_error(
            f"{len(report.lost)} damaged segments cannot be made again, as no retained checkpoint "
            f"has their state by other segments. {report.way_out}"
        )
        return _DAMAGED
    if report.refused:
        print_error(
            f"{report.refused} were materialized by the query meanwhile; run `cairn scrub "
            f"{report.job}` to see what is damaged still"
        )
    return 0
