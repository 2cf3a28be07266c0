"""The command that rewrites files which are mostly dead."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.cli.output import print_json, print_table
from cairn.maintenance.compaction import CompactionReport, compact_job
from cairn.maintenance.compaction_plan import CompactionOptions, Held
from cairn.units import parse_size_bytes
from metastore.enums import HeldBy

_TIMEOUT_MS = 60_000
_DEFAULTS = CompactionOptions()

_FILE_COLUMNS = {
    "path": "file",
    "scope": "scope",
    "size_bytes": "size",
    "live_bytes": "live",
    "amplification": "amplification",
    "movable_segments": "segments",
    "movable_bytes": "copied",
    "freed_bytes": "freed",
}
_HELD_COLUMNS = {
    "held_by": "kept by",
    "files": "files",
    "size_bytes": "size",
    "dead_bytes": "dead",
    "meaning": "which means",
}
_MEANINGS = {
    HeldBy.OPEN: "the running query may append to them",
    HeldBy.DAMAGED: "a scrub found damage in them; `cairn scrub` says what needs them",
    HeldBy.PIN: "pinned checkpoints need them; `cairn pins` lists the pins",
    HeldBy.CHANGELOG: "their changelog is to be folded; it is never moved",
    HeldBy.RETAINED: "they go with checkpoints that are retained now",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of compact."""
    command = commands.add_parser(
        "compact", parents=[common], help="rewrite what is live of files that are mostly dead"
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.add_argument("--dry-run", action="store_true", help="report the plan, change nothing")
    command.add_argument(
        "--start",
        type=float,
        default=_DEFAULTS.start_amplification,
        metavar="RATIO",
        help="only if a file has more bytes than this times its live ones "
        f"(default {_DEFAULTS.start_amplification:g})",
    )
    command.add_argument(
        "--stop",
        type=float,
        default=_DEFAULTS.stop_amplification,
        metavar="RATIO",
        help=f"then all files above this (default {_DEFAULTS.stop_amplification:g})",
    )
    command.add_argument(
        "--input-size",
        type=_size_bytes,
        default=_DEFAULTS.input_bytes,
        metavar="SIZE",
        help="copy at most so many bytes, such as 512mb (default 1gb)",
    )
    command.add_argument(
        "--drain-parallelism",
        type=int,
        metavar="P",
        help="empty the directories of the subtasks of a parallelism that is no longer used",
    )
    command.set_defaults(run=compact)


def compact(catalog: Catalog, arguments: Namespace) -> int:
    """Compacts a job, or says what that would do."""
    require_current(catalog)
    options = CompactionOptions(
        start_amplification=arguments.start,
        stop_amplification=arguments.stop,
        input_bytes=arguments.input_size,
        drain_parallelism=arguments.drain_parallelism,
    )
    report = compact_job(
        replace(catalog, timeout_ms=_TIMEOUT_MS), arguments.job, options, dry_run=arguments.dry_run
    )
    if arguments.json:
        print_json([report.to_json()])
    else:
        _print(report)
    return 0


def _print(report: CompactionReport) -> None:
    plan = report.plan
    if plan.files:
        rows = ({**asdict(file), "amplification": file.amplification} for file in plan.files)
        print_table(rows, _FILE_COLUMNS)
    if plan.held:
        print_table(
            [_held_row(reason, held) for reason, held in sorted(plan.held.items())], _HELD_COLUMNS
        )
    print(_summary(report), file=sys.stderr)


def _held_row(reason: HeldBy, held: Held) -> dict[str, object]:
    return {**asdict(held), "held_by": reason.value, "meaning": _MEANINGS[reason]}


def _summary(report: CompactionReport) -> str:
    plan = report.plan
    if plan.pointless_because:
        return f"nothing was rewritten: {plan.pointless_because}"
    if not plan.files:
        return "nothing to rewrite"
    if report.done is None:
        done = f"would copy {plan.copied_bytes} bytes of {len(plan.files)} files"
        freed = plan.freed_bytes
    else:
        done = (
            f"copied {report.done.copied_bytes} bytes of {report.done.rewritten_files} files; "
            f"{report.done.outpaced_files} new ones were outpaced by the job itself"
        )
        freed = report.done.freed_bytes
    more = "; there are more, for the next compaction" if plan.is_capped else ""
    return (
        f"{done}. {freed} more bytes are free once the checkpoints that there are now are "
        f"subsumed and a cleanup has run{more}"
    )


def _size_bytes(given: str) -> int:
    try:
        return parse_size_bytes(given)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no size such as 512mb") from error
