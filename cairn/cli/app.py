"""Arguments of the command, and what becomes of errors: one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from sqlalchemy.exc import DBAPIError

from cairn.catalog.catalog import METASTORE_VARIABLE, find_catalog, server_message
from cairn.cli import (
    commands,
    compact_command,
    explain_commands,
    heal_command,
    housekeeping_command,
    inspect,
    job_commands,
    maintenance_commands,
    materialize_command,
    metrics_command,
    request_commands,
    savepoints,
    scrub_command,
    sweep_commands,
    verify_command,
)
from cairn.cli.output import fail, print_error
from cairn.errors import BadInputError, CairnError
from metastore.enums import CheckpointStatus

_TIMEOUT_MS = 10_000
"""How long a command waits for the metastore, if it does not say otherwise."""

_STORE_FAILED = 3
_INTERRUPTED = 130
_EVER = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 2**31


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0 ok, 2 bad input, 3 a store failed, 4 refused, 5 corrupt or outcome unknown.
    """
    try:
        arguments = _parser().parse_args(argv)
        catalog = find_catalog(arguments.metastore, timeout_ms=_TIMEOUT_MS)
        code: int = arguments.run(catalog, arguments)
        sys.stdout.flush()
        return code
    except CairnError as error:
        return fail(error)
    except DBAPIError as error:
        print_error(f"the metastore says: {server_message(error)}")
        return _STORE_FAILED
    except BrokenPipeError:
        # The reader of the output has ended; Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{message}. `{self.prog} --help` lists the commands")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="cairn", description="Merged checkpoints of streaming state.")
    common = _Parser(add_help=False)
    common.add_argument(
        "--metastore",
        metavar="M",
        help=f"postgresql://… or embedded:<directory>; else the environment's {METASTORE_VARIABLE}",
    )
    common.add_argument("--json", action="store_true", help="print a JSON array")
    commands_ = parser.add_subparsers(required=True, metavar="COMMAND")

    database = commands_.add_parser("db", help="the metastore's database")
    actions = database.add_subparsers(required=True, metavar="ACTION")
    migrate = actions.add_parser("migrate", parents=[common], help="create or update its schema")
    migrate.set_defaults(run=commands.migrate)

    _add_views(commands_, common)
    cleanup = commands_.add_parser(
        "cleanup",
        parents=[common],
        help="subsume old checkpoints, delete files no longer needed, trim history",
    )
    cleanup.add_argument("--job", metavar="JOB", help="only this job")
    cleanup.add_argument("--dry-run", action="store_true", help="report the changes, make none")
    cleanup.set_defaults(run=commands.cleanup)
    maintenance_commands.add_commands(commands_, common)
    explain_commands.add_commands(commands_, common)
    job_commands.add_commands(commands_, common)
    savepoints.add_commands(commands_, common)
    metrics_command.add_command(commands_, common)
    verify_command.add_command(commands_, common)
    sweep_commands.add_commands(commands_, common)
    scrub_command.add_command(commands_, common)
    heal_command.add_command(commands_, common)
    materialize_command.add_command(commands_, common)
    housekeeping_command.add_command(commands_, common)
    compact_command.add_command(commands_, common)
    request_commands.add_commands(commands_, common)
    return parser


def _add_views(commands_: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    jobs = commands_.add_parser("jobs", parents=[common], help="list the jobs")
    jobs.set_defaults(run=commands.jobs)
    for name, run, help_ in (
        ("checkpoints", commands.checkpoints, "list a job's checkpoints, newest first"),
        ("files", commands.files, "list a job's files and why each is kept"),
        ("directories", commands.directories, "list a job's directories and whose each is"),
        ("state", inspect.state, "print a job's state or timers"),
    ):
        command = commands_.add_parser(name, parents=[common], help=help_)
        command.add_argument("job", metavar="JOB", help="the job's name")
        command.set_defaults(run=run)
        if name == "checkpoints":
            _add_choice_of_checkpoints(command)
    command.epilog = (
        "A value with TTL is printed with the time at which it expires. An expired value is shown "
        "until a batch removes it, though no processor sees it any more."
    )
    command.add_argument("--key", metavar="JSON", help="only this key: an object, array or value")
    command.add_argument(
        "--checkpoint", type=int, metavar="N", help="of this checkpoint, else of the newest"
    )
    what = command.add_mutually_exclusive_group()
    what.add_argument("--name", metavar="STATE", help="only this state variable")
    what.add_argument("--timers", action="store_true", help="the timers instead of the state")


def _add_choice_of_checkpoints(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--limit", type=_count, default=100, metavar="N", help="at most N, else at most 100"
    )
    command.add_argument(
        "--status",
        type=str.upper,
        choices=list(CheckpointStatus),
        metavar="STATUS",
        help=f"only these: {', '.join(CheckpointStatus).lower()}",
    )
    command.add_argument(
        "--since",
        type=_utc,
        default=_EVER,
        metavar="TIME",
        help="only those that began at or after an ISO time, in UTC unless it says otherwise",
    )


def _count(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and 0 < int(given) < _MOST):
        raise argparse.ArgumentTypeError(f"{given!r} is no number from 1 to {_MOST - 1}")
    return int(given)


def _utc(given: str) -> datetime:
    try:
        time = datetime.fromisoformat(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{given!r} is no ISO time such as 2026-11-22T14:30"
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
