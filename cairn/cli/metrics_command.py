"""The command that prints the metrics, or serves them to Prometheus."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.cli.commands import print_rows, read_view
from cairn.cli.endpoint import TOKEN_VARIABLE, Address, MetricsApp, serve, token_of_environment
from cairn.cli.prometheus import to_text
from cairn.errors import BadInputError

_COLUMNS = {
    "job_name": "job",
    "metric": "metric",
    "tm_id": "executor",
    "subtask": "subtask",
    "action": "action",
    "kind": "kind",
    "quantile": "quantile",
    "value": "value",
}


def add_command(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Adds the parser of metrics."""
    command = commands.add_parser(
        "metrics", parents=[common], help="print metrics for Prometheus, or serve them"
    )
    command.add_argument("job", metavar="JOB", nargs="?", help="only this job")
    command.add_argument("--table", action="store_true", help="print a table")
    command.add_argument(
        "--serve",
        metavar="HOST:PORT",
        help="answer Prometheus there until SIGTERM; a port alone is on 127.0.0.1; "
        f"requests need the bearer token in the environment's {TOKEN_VARIABLE}",
    )
    command.set_defaults(run=metrics)


def metrics(catalog: Catalog, arguments: Namespace) -> int:
    """Prints the metrics of one job or all as Prometheus text, JSON or a table; or serves them."""
    if sum((arguments.json, arguments.table, arguments.serve is not None)) > 1:
        raise BadInputError("metrics takes one of --json, --table and --serve")
    if arguments.serve is not None:
        return _serve(catalog, arguments)
    rows = _read(catalog, arguments.job)
    if arguments.json or arguments.table:
        return print_rows([_shown(row, arguments) for row in rows], _COLUMNS, arguments)
    print(to_text(rows), end="")
    return 0


def _serve(catalog: Catalog, arguments: Namespace) -> int:
    address = Address.parse(arguments.serve)
    app = MetricsApp(partial(_read, catalog, arguments.job), token_of_environment())
    _read(catalog, arguments.job)  # an existing error is raised now, not by each request
    serve(address, app, ready=_say_where)
    return 0


def _say_where(url: str) -> None:
    print(f"serving {url}", file=sys.stderr, flush=True)


def _read(catalog: Catalog, job: str | None) -> Sequence[Mapping[str, Any]]:
    of_job = "" if job is None else "WHERE job_id = :job_id "
    query = (
        f"SELECT * FROM cairn.v_metrics {of_job}"  # noqa: S608 - fixed texts
        "ORDER BY job_name, metric, tm_id, subtask, action, quantile, kind"
    )
    return read_view(catalog, query, job)


def _shown(row: Mapping[str, Any], arguments: Namespace) -> Mapping[str, Any]:
    """Returns a row with whole numbers as such; in a table, with every digit of the quantile."""
    value, quantile = row["value"], row["quantile"]
    whole = int(value) if value.is_integer() else value
    if arguments.table and quantile is not None:
        quantile = f"{quantile:g}"
    return {**row, "value": whole, "quantile": quantile}
