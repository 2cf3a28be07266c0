"""The command that reads what a job's checkpoints need, and says which bytes are damaged."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.filesize import decimal

from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import find_job
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import progress_bars
from cairn.maintenance.recorded_work import scrub_and_record
from cairn.maintenance.scrub import DEFAULT_SAMPLE_PERCENT, ScrubReport, find_damage
from cairn.units import parse_size_bytes

_TIMEOUT_MS = 60_000
_DAMAGED = 5

_COLUMNS = {
    "damage": "damage",
    "path": "object",
    "offset_bytes": "from byte",
    "size_bytes": "size",
    "kind": "kind",
    "subtask": "subtask",
    "checkpoints": "needed by checkpoints",
    "is_needed_by_next": "by the next",
    "heals_from": "can be made from",
    "manifests": "manifests",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of scrub."""
    command = commands.add_parser(
        "scrub",
        parents=[common],
        help="read what a job's checkpoints need, and record what is damaged",
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--whole", action="store_true", help="read all of it")
    what.add_argument(
        "--sample",
        type=_percent,
        default=DEFAULT_SAMPLE_PERCENT,
        metavar="PERCENT",
        help="read this share of the bytes, those first that were read longest ago; "
        f"else {DEFAULT_SAMPLE_PERCENT:g}",
    )
    command.add_argument(
        "--max-rate", type=_rate, metavar="SIZE", help="bytes a second at most, such as 50mb"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="say how much would be read, read nothing"
    )
    command.epilog = (
        "It may run beside the job and its cleanup. It prints all damage that is known of the job "
        "and that a checkpoint needs. The exit code is 5 if there is any."
    )
    command.set_defaults(run=scrub)


def scrub(catalog: Catalog, arguments: Namespace) -> int:
    """Reads a share of a job's segments, prints what is damaged; returns 5 if anything is."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    with progress_bars() as bars:
        task = bars.add_task("reading segments", total=None)
        report = scrub_and_record(
            catalog,
            arguments.job,
            sample_percent=None if arguments.whole else arguments.sample,
            max_bytes_per_s=arguments.max_rate,
            dry_run=arguments.dry_run,
            progress=lambda _, count: bars.advance(task, count),
        )
    job_id = catalog.run("finding the job", lambda c: find_job(c, arguments.job)).job_id
    damage = find_damage(catalog, job_id)
    _print(damage, arguments)
    return _conclude(report)


def _print(damage: Sequence[Mapping[str, Any]], arguments: Namespace) -> None:
    rows = [
        {**row, "key_groups": f"{row['key_groups'].lower}-{row['key_groups'].upper}"}
        for row in damage
    ]
    if arguments.json:
        print_rows(rows, _COLUMNS, arguments)
    elif rows:
        shown = ("checkpoints", "manifests")
        print_rows(
            [row | {name: " ".join(map(str, row[name])) for name in shown} for row in rows],
            _COLUMNS,
            arguments,
        )


def _conclude(report: ScrubReport) -> int:
    """Prints on stderr what was read and what to do; returns the exit code."""
    verb = "would be read" if report.dry_run else "read"
    print(
        f"{verb}: {report.segments} segments in {report.files} of {report.needed_files} files, "
        f"{decimal(report.read_bytes)} of {decimal(report.needed_bytes)}",
        file=sys.stderr,
    )
    if report.resolved_segments:
        print(f"{report.resolved_segments} segments are whole again", file=sys.stderr)
    if not report.damaged_segments:
        print(f"of job {report.job} no damage is known", file=sys.stderr)
        return 0
    whole = report.newest_whole_checkpoint
    way_back = (
        "no confirmed checkpoint is whole"
        if whole is None
        else f"the newest whole checkpoint is {whole}, which stays until the damage is over"
    )
    print(
        f"error: {report.damaged_segments} segments that checkpoints need are damaged; "
        f"{way_back}. Run `cairn heal {report.job}` to make again what checkpoints to come need; "
        "or put the objects back, for example older versions of the bucket's, and scrub again; or "
        "start a new job from a manifest of a checkpoint that is whole",
        file=sys.stderr,
    )
    return _DAMAGED


def _percent(given: str) -> float:
    try:
        percent = float(given.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:  # NaN, too
        raise argparse.ArgumentTypeError(f"{given!r} is no share above 0 and up to 100 percent")
    return percent


def _rate(given: str) -> int:
    try:
        bytes_per_s = parse_size_bytes(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no size such as 50mb") from error
    if bytes_per_s < 1:
        raise argparse.ArgumentTypeError("a rate is at least a byte a second")
    return bytes_per_s
