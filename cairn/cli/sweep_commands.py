"""The commands of orphans: the sweep, and what it has set aside."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.quarantine import confirm_root, open_rows, restore
from cairn.catalog.jobs import find_job
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows
from cairn.cli.output import print_error, progress_bars
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.orphans import Reason
from cairn.maintenance.survey import survey
from cairn.maintenance.sweep import QUARANTINE_MS, SHORTEST_QUARANTINE_MS, SweepReport, sweep_job
from cairn.units import parse_duration_ms

_TIMEOUT_MS = 60_000
_STORE_FAILED = 3

_SWEEP_COLUMNS = {
    "job": "job",
    "listed": "objects",
    "listed_bytes": "size",
    "orphans": "orphans",
    "orphan_bytes": "of size",
    "quarantined": "set aside",
    "released": "released",
    "deleted": "deleted",
    "freed_bytes": "freed",
    "failed_deletes": "deletes failed",
    "removed_directories": "directories removed",
    "kept": "kept",
}
_SURVEY_COLUMNS = {
    "name": "name",
    "place": "is",
    "job": "job",
    "owner": "metastore",
    "objects": "objects",
    "size_bytes": "size",
    "modified_at": "newest (UTC)",
}
_QUARANTINE_COLUMNS = {
    "path": "object",
    "status": "status",
    "reason": "because",
    "size_bytes": "size",
    "modified_at": "modified (UTC)",
    "quarantined_at": "since (UTC)",
    "quarantined_until": "until (UTC)",
    "last_error": "error",
}


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of sweep and quarantine."""
    command: argparse.ArgumentParser = commands.add_parser(
        "sweep",
        parents=[common],
        help="set objects aside that no row knows, delete those whose time there is over",
        epilog="Only what is older than 24 h and has a name of Cairn's is set aside. Until its "
        "time is over, `cairn quarantine restore` takes it out.",
    )
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("job", metavar="JOB", nargs="?", help="the job's name")
    which.add_argument("--root", metavar="URL", help="a storage: report what lies there, no more")
    command.add_argument("--dry-run", action="store_true", help="report the changes, make none")
    command.add_argument(
        "--quarantine",
        type=_quarantine_ms,
        default=QUARANTINE_MS,
        metavar="TIME",
        help="how long what is found now is kept, such as '30 d'; else 7 d, and at least 1 d",
    )
    command.add_argument(
        "--confirm",
        action="store_true",
        help="what lay there before this metastore took the root over may go, too",
    )
    command.set_defaults(run=sweep)

    quarantine = commands.add_parser("quarantine", help="what a sweep has set aside")
    actions = quarantine.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", parents=[common], help="list what is in quarantine")
    listing.set_defaults(run=list_quarantine)
    restoring = actions.add_parser(
        "restore", parents=[common], help="take objects out of quarantine, for good"
    )
    restoring.set_defaults(run=restore_objects)
    for action in (listing, restoring):
        action.add_argument("job", metavar="JOB", help="the job's name")
    restoring.add_argument("paths", metavar="PATH", nargs="+", help="as `quarantine list` has it")


def sweep(catalog: Catalog, arguments: Namespace) -> int:
    """Sweeps a job's root, or reports what lies in a storage."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    if arguments.root is not None:
        rows = [asdict(one) for one in survey(catalog, arguments.root)]
        return print_rows(rows, _SURVEY_COLUMNS, arguments)
    if arguments.confirm:
        _confirm(catalog, arguments)
    with progress_bars() as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
            bars.advance(tasks[what], count)

        report = sweep_job(
            catalog,
            arguments.job,
            dry_run=arguments.dry_run,
            quarantine_ms=arguments.quarantine,
            progress=progress,
        )
    print_rows([asdict(report)], _SWEEP_COLUMNS, arguments)
    return _say_what_is_left(report)


def list_quarantine(catalog: Catalog, arguments: Namespace) -> int:
    """Lists what of a job is in quarantine or was taken out."""
    require_current(catalog)
    job_id = _job_id(catalog, arguments.job)
    rows = catalog.run("reading the quarantine", lambda c: open_rows(c, job_id))
    return print_rows(rows, _QUARANTINE_COLUMNS, arguments)


def restore_objects(catalog: Catalog, arguments: Namespace) -> int:
    """Takes objects out of quarantine; refuses where one is not there any more."""
    require_current(catalog)
    job_id = _job_id(catalog, arguments.job)
    out = catalog.run("taking objects out", partial(restore, job_id=job_id, paths=arguments.paths))
    rows = [{"path": path, "status": "RESTORED"} for path in out]
    print_rows(rows, {"path": "object", "status": "status"}, arguments)
    missing = sorted(set(arguments.paths) - set(out))
    if missing:
        raise RefusedError(
            f"{len(missing)} of {len(set(arguments.paths))} objects are not in quarantine, such as "
            f"{missing[0]}: it is deleted, or was never set aside. Look at `cairn quarantine list`",
            job=arguments.job,
        )
    return 0


def _confirm(catalog: Catalog, arguments: Namespace) -> None:
    if arguments.dry_run:
        raise BadInputError("--confirm is recorded, so it does not go with --dry-run")
    job_id = _job_id(catalog, arguments.job)
    catalog.run("confirming a root", lambda c: confirm_root(c, job_id))


def _say_what_is_left(report: SweepReport) -> int:
    if kept := report.kept.get(Reason.BEFORE_OWNED.value):
        print(
            f"{kept} objects are from before this metastore had the root, and stay. Compare them "
            f"with what you need (`cairn verify {report.job}`); `cairn sweep {report.job} "
            "--confirm` says that they may go",
            file=sys.stderr,
        )
    if report.unknown:
        print(
            f"{report.kept[Reason.UNKNOWN.value]} objects have a name that nothing of Cairn's has, "
            f"and stay, such as {report.unknown[0]}",
            file=sys.stderr,
        )
    if report.failed_deletes:
        print_error(
            f"{report.failed_deletes} objects of job {report.job} could not be deleted; `cairn "
            "quarantine list` says why, the next sweep tries again"
        )
        return _STORE_FAILED
    return 0


def _job_id(catalog: Catalog, name: str) -> str:
    return str(catalog.run(f"finding job {name}", lambda c: find_job(c, name)).job_id)


def _quarantine_ms(given: str) -> int:
    try:
        duration_ms = parse_duration_ms(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no time such as '7 d'") from error
    if duration_ms < SHORTEST_QUARANTINE_MS:
        raise argparse.ArgumentTypeError(f"{given!r} is less than 1 d")
    return duration_ms
