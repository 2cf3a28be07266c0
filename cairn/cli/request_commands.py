"""The commands that ask something of a running query: rescale and stop; and requests."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from cairn.catalog import requests
from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import require_current
from cairn.catalog.requests import Request, Wanted
from cairn.cli.commands import print_rows, read_view
from cairn.cli.output import progress_bars
from cairn.errors import RefusedError
from cairn.names import check_name
from metastore.enums import RequestKind, RequestStatus

_LOOK_S = 0.2
_COLUMNS = {
    "job": "job",
    "kind": "request",
    "was": "parallelism was",
    "parallelism": "parallelism",
    "savepoint": "savepoint",
    "status": "status",
    "checkpoint_id": "checkpoint",
    "message": "why",
}
_LIST_COLUMNS = {
    "job_name": "job",
    "kind": "request",
    "parallelism": "parallelism",
    "savepoint": "savepoint",
    "requested_by": "by",
    "requested_at": "at (UTC)",
    "status": "status",
    "ended_at": "until (UTC)",
    "checkpoint_id": "checkpoint",
    "message": "why",
}


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of rescale, stop and requests."""
    asking = argparse.ArgumentParser(add_help=False)
    asking.add_argument("job", metavar="JOB", help="the job's name")
    asking.add_argument("--dry-run", action="store_true", help="check it, ask nothing")
    asking.add_argument("--no-wait", action="store_true", help="ask only, and do not wait for it")
    command: argparse.ArgumentParser = commands.add_parser(
        "rescale",
        parents=[common, asking],
        help="give a running query another parallelism",
        epilog="The query has to be started by cairn.run. It ends after the batch under way and "
        "starts again in the same application; its state stays where it is.",
    )
    command.add_argument("--parallelism", type=int, required=True, metavar="N", help="the new one")
    command.set_defaults(run=rescale)
    command = commands.add_parser(
        "stop",
        parents=[common, asking],
        help="end a running query after a batch",
        epilog="The query has to be started by cairn.run, which then returns.",
    )
    command.add_argument(
        "--savepoint", metavar="NAME", help="make a savepoint of its last batch, of this name"
    )
    command.set_defaults(run=stop)
    command = commands.add_parser(
        "requests", parents=[common], help="list what was asked of a job's query, newest first"
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.set_defaults(run=list_requests)


def rescale(catalog: Catalog, arguments: Namespace) -> int:
    """Asks for another parallelism, and waits for the first checkpoint at it."""
    wanted = Wanted(
        request_id=uuid.uuid4(), kind=RequestKind.RESCALE, parallelism=arguments.parallelism
    )
    return _ask(catalog, arguments, wanted)


def stop(catalog: Catalog, arguments: Namespace) -> int:
    """Asks the query to end, and waits until it has."""
    if arguments.savepoint is not None:
        check_name("a pin", arguments.savepoint)
    wanted = Wanted(request_id=uuid.uuid4(), kind=RequestKind.STOP, savepoint=arguments.savepoint)
    return _ask(catalog, arguments, wanted)


def list_requests(catalog: Catalog, arguments: Namespace) -> int:
    """Lists what was asked of a job's query."""
    query = "SELECT * FROM cairn.v_run_requests WHERE job_id = :job_id ORDER BY requested_at DESC"
    return print_rows(read_view(catalog, query, arguments.job), _LIST_COLUMNS, arguments)


def _ask(catalog: Catalog, arguments: Namespace, wanted: Wanted) -> int:
    require_current(catalog)
    job = arguments.job
    was = catalog.run(f"checking job {job}", lambda c: requests.check(c, job, wanted))
    if arguments.dry_run:
        row = {"job": job, "kind": wanted.kind.value, "was": was, "dry_run": True}
        asked = {"parallelism": wanted.parallelism, "savepoint": wanted.savepoint}
        return _print({**row, **asked}, arguments)
    asked_for = catalog.run(
        f"asking for a {wanted.kind.value} of job {job}", lambda c: requests.ask(c, job, wanted)
    )
    result = asked_for if arguments.no_wait else _await(catalog, asked_for)
    _print({**_row(result), "was": was, "dry_run": False}, arguments)
    if result.status in (RequestStatus.FAILED, RequestStatus.WITHDRAWN):
        raise RefusedError(f"not done: {result.message}", job=job)
    return 0


def _await(catalog: Catalog, asked: Request) -> Request:
    what, request_id = f"{asked.kind.value} of job {asked.job}", asked.request_id

    def now(connection: Connection) -> tuple[Request, bool]:
        found = requests.request(connection, request_id)
        return found, requests.is_running(connection, found.job_id)

    with progress_bars() as progress:
        progress.add_task(f"{what}: waiting for its driver", total=None)
        try:
            while not asked.is_over:
                time.sleep(_LOOK_S)
                asked, is_running = catalog.run(f"waiting for the {what}", now)
                if not (asked.is_over or is_running):
                    print(
                        f"its query does not run now; `cairn requests {asked.job}` shows what "
                        "comes of the request once it does",
                        file=sys.stderr,
                    )
                    break
        except KeyboardInterrupt:
            print(f"still asked for; `cairn requests {asked.job}` shows it", file=sys.stderr)
            raise
    return asked


def _row(asked: Request) -> Mapping[str, Any]:
    return {
        "job": asked.job,
        "kind": asked.kind.value,
        "parallelism": asked.parallelism,
        "savepoint": asked.savepoint,
        "status": asked.status.value,
        "checkpoint_id": asked.checkpoint_id,
        "message": asked.message,
    }


def _print(row: Mapping[str, Any], arguments: Namespace) -> int:
    columns = {key: heading for key, heading in _COLUMNS.items() if row.get(key) is not None}
    return print_rows([row], columns, arguments)
