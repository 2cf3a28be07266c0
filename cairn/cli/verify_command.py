"""The command that compares a job's objects with its rows."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.cli.output import print_json, print_table, progress_bars
from cairn.maintenance.verify import Problem, verification_of

_DAMAGED = 5

_COLUMNS = {
    "problem": "problem",
    "path": "object",
    "wanted_bytes": "sealed",
    "found_bytes": "found",
    "offset_bytes": "from byte",
    "modified_at": "modified (UTC)",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of verify."""
    command = commands.add_parser(
        "verify", parents=[common], help="compare a job's objects in storage with its rows"
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.add_argument(
        "--checksums", action="store_true", help="read all live segments and check their bytes"
    )
    command.epilog = (
        "It only reads, and may run beside the job and its cleanup. The exit code is 5 if an "
        "object that a checkpoint needs is missing or damaged. Other findings cost storage only."
    )
    command.set_defaults(run=verify)


def verify(catalog: Catalog, arguments: Namespace) -> int:
    """Prints the objects that do not fit; returns 5 if a needed one is missing or damaged."""
    require_current(catalog)
    counts = Counter[Problem]()
    if arguments.json:
        print_json(_findings(catalog, arguments, counts))
    else:
        rows = _findings(catalog, arguments, counts)
        if (first := next(rows, None)) is not None:
            print_table(chain([first], rows), _COLUMNS)
    return _conclude(arguments.job, counts)


def _findings(
    catalog: Catalog, arguments: Namespace, counts: Counter[Problem]
) -> Iterator[Mapping[str, Any]]:
    with progress_bars() as bars:
        task = bars.add_task("comparing objects", total=None)
        job = verification_of(
            catalog, arguments.job, lambda done: bars.update(task, completed=done)
        )
        steps = [("comparing objects", job.compare)]
        if arguments.checksums:
            steps.append(("reading segments", job.read))
        for description, step in steps:
            bars.update(task, description=description, completed=0)
            for finding in step():
                counts[finding.problem] += 1
                path = finding.path if finding.path.isprintable() else ascii(finding.path)
                yield {**asdict(finding), "path": path}


def _conclude(job: str, counts: Counter[Problem]) -> int:
    """Prints on stderr what the findings mean and what to do; returns the exit code."""
    damaged = sum(n for problem, n in counts.items() if problem.is_damage)
    useless = counts[Problem.UNKNOWN] + counts[Problem.DELETED]
    if useless:
        print(
            f"{useless} objects cost storage only. `cairn sweep {job}` sets aside those that "
            "nothing keeps, and deletes them a week later",
            file=sys.stderr,
        )
    if damaged:
        print(
            f"error: {damaged} findings are of objects that checkpoints need: `cairn files {job}` "
            "says which checkpoints. Put the objects back, for example older versions of the "
            f"bucket's; or start a new job from a savepoint that is whole, see `cairn pins {job}`",
            file=sys.stderr,
        )
        return _DAMAGED
    print(f"job {job} is whole: every object that a checkpoint needs is there", file=sys.stderr)
    return 0
