"""The commands that end a job or give it another name."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import Size, rename_job
from cairn.catalog.jobs import find_job
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import progress_bars
from cairn.maintenance.drop import DropReport, drop_job, find_job_to_drop, refuse_unknown
from cairn.maintenance.progress import Progress

_TIMEOUT_MS = 60_000
_STORE_FAILED = 3

_DROP_COLUMNS = {
    "job": "job",
    "job_id": "id",
    "files": "files",
    "size_bytes": "size",
    "rows": "rows",
    "left_files": "files left",
    "waiting_files": "waiting",
    "next_delete_at": "until (UTC)",
    "is_gone": "gone",
}
_RENAME_COLUMNS = {"job": "job", "job_id": "id", "was": "was"}


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of drop and rename."""
    command: argparse.ArgumentParser = commands.add_parser(
        "drop",
        parents=[common],
        help="delete a job whose query is over: its objects, then its rows",
        epilog="Objects are deleted once they have been condemned for cairn.file-retention: "
        "another call, or any cleanup, continues. The job's name is free at once.",
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.add_argument("--dry-run", action="store_true", help="report what there is, change none")
    command.set_defaults(run=drop)
    command = commands.add_parser(
        "rename", parents=[common], help="give a job whose query is over another name"
    )
    command.add_argument("job", metavar="OLD", help="the job's name")
    command.add_argument("new", metavar="NEW", help="what the next start of its query calls it")
    command.set_defaults(run=rename)


def drop(catalog: Catalog, arguments: Namespace) -> int:
    """Deletes a job, or as much of it as may be deleted now; says what is left to do."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    job = find_job_to_drop(catalog, arguments.job)
    with _bars() as (told, progress):
        report = drop_job(catalog, job, dry_run=arguments.dry_run, told=told, progress=progress)
    print_rows([asdict(report)], _DROP_COLUMNS, arguments)
    return _say_what_is_left(report)


def _say_what_is_left(report: DropReport) -> int:
    if report.dry_run:
        return 0
    if report.failed_deletes:
        print(
            f"error: {report.failed_deletes} files could not be deleted; `cairn files "
            f"{report.job_id}` says why. Drop the job again",
            file=sys.stderr,
        )
        return _STORE_FAILED
    refuse_unknown(report)
    if not report.is_gone:
        print(
            f"{report.left_files} files wait until they have been condemned for "
            "cairn.file-retention, or may still be written; drop the job again after that, or let "
            "the next cleanups do it",
            file=sys.stderr,
        )
    print(
        f"local state on executors is not touched: remove {report.local_state}/ below their "
        "cairn.local-dir",
        file=sys.stderr,
    )
    return 0


@contextmanager
def _bars() -> Iterator[tuple[Any, Progress]]:
    with progress_bars() as bars:
        tasks: dict[str, Any] = {}

        def told(size: Size) -> None:
            for what, total in (
                ("files condemned", size.files),
                ("files deleted", size.files),
                ("rows deleted", size.rows),
            ):
                tasks[what] = bars.add_task(what, total=total)

        yield told, lambda what, count: bars.advance(tasks[what], count)


def rename(catalog: Catalog, arguments: Namespace) -> int:
    """Gives a job another name."""
    require_current(catalog)
    # Its id first, in a transaction of its own: by it, the second may run twice.
    job_id = catalog.run("finding the job", lambda c: find_job(c, arguments.job)).job_id
    catalog.run(
        f"renaming job {arguments.job}", lambda c: rename_job(c, str(job_id), arguments.new)
    )
    row = {"job": arguments.new, "job_id": job_id, "was": arguments.job}
    return print_rows([row], _RENAME_COLUMNS, arguments)
