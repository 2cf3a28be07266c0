"""The commands that keep checkpoints, and the one that rebuilds the metastore from them."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.catalog.savepoints.pins import open_pins, remove_pins
from cairn.cli import ownership
from cairn.cli.commands import print_rows, read_view
from cairn.cli.output import progress_bars
from cairn.errors import BadInputError
from cairn.layout import manifest_file
from cairn.printable import printable
from cairn.savepoints.rebuild import RebuildReport, rebuild
from cairn.savepoints.write_manifest import pin as write_pin
from cairn.units import parse_duration_ms
from metastore.enums import PinKind

Run = Callable[[Catalog, Namespace], int]
"""Does what a command says; returns the exit code."""

_CORRUPT = 5
_REBUILD_TIMEOUT_MS = 600_000
_LONGEST_MS = 3650 * 86_400_000

_PIN_COLUMNS = {
    "job_name": "job",
    "checkpoint_id": "checkpoint",
    "batch_id": "batch",
    "kind": "kind",
    "name": "name",
    "created_at": "since (UTC)",
    "expires_at": "until (UTC)",
    "manifest": "manifest",
}
_REBUILD_COLUMNS = {
    "job": "job",
    "checkpoints": "checkpoints",
    "newest_checkpoint": "newest",
    "batch_id": "batch",
    "segments": "segments",
    "files": "files",
    "live_bytes": "live",
    "unknown_files": "unknown files",
    "unknown_bytes": "unknown",
}


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of savepoint, pin, unpin, pins and metastore."""
    changing = argparse.ArgumentParser(add_help=False)
    changing.add_argument("--dry-run", action="store_true", help="report the changes, make none")

    def add(
        name: str, run: Run, help_: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name, parents=[common, *parents], help=help_
        )
        command.add_argument("job", metavar="JOB", help="the job's name")
        command.set_defaults(run=run)
        return command

    keeping = _keeping()
    command = add(
        "savepoint", savepoint, "keep the newest checkpoint, with a manifest", changing, keeping
    )
    command.add_argument("--name", metavar="NAME", help="what to call it")
    command = add("pin", pin, "keep a checkpoint, with a manifest", changing, keeping)
    command.add_argument(
        "checkpoint", type=int, nargs="?", metavar="CHECKPOINT", help="else the newest confirmed"
    )
    command.add_argument("--name", metavar="NAME", help="what to call the pin")
    command = add("unpin", unpin, "give up pins and savepoints", changing)
    command.add_argument(
        "checkpoint", type=int, nargs="?", metavar="CHECKPOINT", help="those of this checkpoint"
    )
    command.add_argument("--name", metavar="NAME", help="those of this name")
    add("pins", pins, "list a job's pins and savepoints")

    database = commands.add_parser("metastore", help="the metastore as a whole")
    actions = database.add_subparsers(required=True, metavar="ACTION")
    again = actions.add_parser(
        "rebuild",
        parents=[common, changing],
        help="fill an empty metastore from the manifests in a storage",
    )
    again.add_argument("storage", metavar="STORAGE", help="s3://bucket/prefix or a directory")
    again.add_argument(
        "--take-over",
        action="store_true",
        help="own the jobs' roots from then on: their last metastore is fenced",
    )
    again.set_defaults(run=rebuild_metastore)
    ownership.add_command(actions, common, changing)


def _keeping() -> argparse.ArgumentParser:
    """Returns a parser of what pins have in common."""
    keeping = argparse.ArgumentParser(add_help=False)
    keeping.add_argument(
        "--expires",
        type=_lasting,
        metavar="DURATION",
        help="give it up by itself after this, such as 30d; else it stays until it is unpinned. "
        "Pinning again changes it",
    )
    return keeping


def savepoint(catalog: Catalog, arguments: Namespace) -> int:
    """Pins the newest confirmed checkpoint, writes its manifest and prints the manifest's URL."""
    return _pin(catalog, arguments, None, PinKind.SAVEPOINT)


def pin(catalog: Catalog, arguments: Namespace) -> int:
    """Pins a checkpoint and writes its manifest."""
    return _pin(catalog, arguments, arguments.checkpoint, PinKind.PIN)


def unpin(catalog: Catalog, arguments: Namespace) -> int:
    """Removes the pins of a checkpoint or of a name."""
    if arguments.checkpoint is None and arguments.name is None:
        raise BadInputError("unpin takes a checkpoint, a --name, or both; `cairn pins` lists them")
    require_current(catalog)
    found = catalog.run(
        f"finding pins of job {arguments.job}",
        lambda c: open_pins(c, arguments.job, arguments.checkpoint, arguments.name),
    )
    if not arguments.dry_run:
        catalog.run(
            f"removing pins of job {arguments.job}",
            lambda c: remove_pins(c, arguments.job, [row["pin_id"] for row in found]),
        )
    return _print_pins([{**row, "dry_run": arguments.dry_run} for row in found], arguments)


def pins(catalog: Catalog, arguments: Namespace) -> int:
    """Lists a job's pins and savepoints, oldest checkpoint first."""
    query = (
        "SELECT * FROM cairn.v_pins WHERE job_id = :job_id AND removed_at IS NULL "
        "ORDER BY checkpoint_id, created_at"
    )
    return print_rows(read_view(catalog, query, arguments.job), _PIN_COLUMNS, arguments)


def rebuild_metastore(catalog: Catalog, arguments: Namespace) -> int:
    """Fills the metastore from manifests, and says what could not be brought back."""
    require_current(catalog)
    report = _rebuild(catalog, arguments)
    for problem in report.problems:
        # On stderr: with --json, stdout is one array.
        print(f"not used: {printable(problem)}", file=sys.stderr)
    if not report.jobs:
        raise BadInputError(f"no manifest that can be used is below {arguments.storage}")
    if not (arguments.take_over or arguments.dry_run):
        ownership.print_others(catalog, [job.job_id for job in report.jobs])
    rows = [{**asdict(job), "dry_run": arguments.dry_run} for job in report.jobs]
    print_rows(rows, _REBUILD_COLUMNS, arguments)
    return _CORRUPT if report.problems else 0


def _rebuild(catalog: Catalog, arguments: Namespace) -> RebuildReport:
    with progress_bars() as progress:
        task = progress.add_task("reading manifests", total=None)
        return rebuild(
            # A transaction fills in a whole job; its last statements may take minutes.
            replace(catalog, timeout_ms=_REBUILD_TIMEOUT_MS),
            arguments.storage,
            takes_over=arguments.take_over,
            dry_run=arguments.dry_run,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _pin(catalog: Catalog, arguments: Namespace, checkpoint_id: int | None, kind: PinKind) -> int:
    require_current(catalog)
    pinned = write_pin(
        catalog,
        arguments.job,
        checkpoint_id,
        kind=kind,
        name=arguments.name,
        lasts_ms=arguments.expires,
        dry_run=arguments.dry_run,
    )
    manifest = f"{pinned.storage}/{manifest_file(pinned.job_id, pinned.checkpoint_id)}"
    row: Mapping[str, Any] = {
        "job_name": arguments.job,
        **asdict(pinned),
        "manifest": manifest,
        "dry_run": arguments.dry_run,
    }
    return _print_pins([row], arguments)


def _lasting(given: str) -> int:
    try:
        lasts_ms = parse_duration_ms(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no duration such as 30d") from error
    if not 0 < lasts_ms <= _LONGEST_MS:
        raise argparse.ArgumentTypeError("a pin lasts longer than 0 ms, and at most 3650 d")
    return lasts_ms


def _print_pins(rows: Sequence[Mapping[str, Any]], arguments: Namespace) -> int:
    columns = {key: heading for key, heading in _PIN_COLUMNS.items() if key in rows[0]}
    return print_rows(rows, columns, arguments)
