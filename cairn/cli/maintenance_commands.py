"""The commands that plan a maintenance action, apply a stored plan, and list the runs."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from dataclasses import replace
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN, StoredPlan
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows, read_view
from cairn.cli.output import print_error, progress_bars
from cairn.maintenance.actions import ACTIONS, apply_plan, plan_action
from cairn.maintenance.breakers import Breaker
from cairn.maintenance.plans import pass_breakers, read
from metastore.enums import MaintenanceAction, MaintenanceStatus

_TIMEOUT_MS = 60_000
_STORE_FAILED = 3
_REFUSED = 4

_PLAN_COLUMNS = {
    "plan": "plan",
    "job": "job",
    "action": "action",
    "status": "status",
    "files": "files",
    "size_bytes": "size",
    "breakers": "circuit breakers",
}
_RUN_COLUMNS = {
    "maintenance_run_id": "plan",
    "job_name": "job",
    "action": "action",
    "state": "is",
    "planned_files": "files",
    "planned_bytes": "size",
    "skipped_objects": "skipped",
    "planned_at": "planned (UTC)",
    "finished_at": "finished (UTC)",
    "breakers": "circuit breakers",
    "passed_by": "passed by",
}


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of plan, apply and runs."""
    command: argparse.ArgumentParser = commands.add_parser(
        "plan",
        parents=[common],
        help="plan a maintenance action and store the plan; changes nothing else",
        epilog=f"A plan can be applied for {PLAN_LIFE_MIN} minutes, by any process.",
    )
    command.add_argument("action", metavar="ACTION", choices=list(ACTIONS), help=", ".join(ACTIONS))
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.set_defaults(run=plan)
    command = commands.add_parser(
        "apply", parents=[common], help="apply a stored plan, as `cairn plan` has printed it"
    )
    command.add_argument("plan", metavar="PLAN", type=_uuid, help="the plan's id")
    command.add_argument(
        "--pass",
        dest="passed",
        metavar="BREAKER",
        action="append",
        default=[],
        choices=list(Breaker),
        help="a circuit breaker that spoke and is not to stop it; again for each",
    )
    command.add_argument("--by", metavar="NAME", help="who passes them; it is recorded")
    command.set_defaults(run=apply)
    command = commands.add_parser(
        "runs", parents=[common], help="list maintenance runs, newest first: plans and outcomes"
    )
    command.add_argument("job", metavar="JOB", nargs="?", help="only of this job")
    command.add_argument("--limit", type=int, default=100, metavar="N", help="at most N, else 100")
    command.set_defaults(run=runs)


def plan(catalog: Catalog, arguments: Namespace) -> int:
    """Stores a plan and prints it; returns 4 if a circuit breaker spoke."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    stored = plan_action(catalog, MaintenanceAction(arguments.action), arguments.job)
    if stored is None:
        print_rows([], _PLAN_COLUMNS, arguments)
        print(f"nothing to do for job {arguments.job}", file=sys.stderr)
        return 0
    content = {"content": stored.plan} if arguments.json else {}
    print_rows([_row(stored) | content], _PLAN_COLUMNS, arguments)
    if stored.status is MaintenanceStatus.REFUSED:
        names = " ".join(f"--pass {name}" for name in stored.spoken)
        print_error(
            "a circuit breaker spoke, so the plan is not applied. Find out why; if it is right, "
            f"run `cairn apply {stored.run_id} {names} --by NAME`"
        )
        return _REFUSED
    return 0


def apply(catalog: Catalog, arguments: Namespace) -> int:
    """Applies a stored plan and prints what that has changed."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    if arguments.passed:
        pass_breakers(catalog, arguments.plan, arguments.passed, arguments.by or "")
    with progress_bars() as bars:
        task = bars.add_task("applying", total=None)
        result = apply_plan(
            catalog,
            arguments.plan,
            progress=lambda what, count: bars.update(task, description=what, advance=count),
        )
    row = _row(read(catalog, arguments.plan)) | dict(result)
    print_rows([row], {**_PLAN_COLUMNS, **{name: name for name in result}}, arguments)
    if failed := result.get("failed_deletes"):
        print_error(
            f"{failed} files could not be deleted; `cairn files` says why. Apply the plan again, "
            "or let the next cleanup try them"
        )
        return _STORE_FAILED
    return 0


def runs(catalog: Catalog, arguments: Namespace) -> int:
    """Lists maintenance runs, newest first."""
    of_job = "WHERE job_id = :job_id " if arguments.job else ""
    query = (
        f"SELECT * FROM cairn.v_maintenance_runs {of_job}"  # noqa: S608 - fixed
        "ORDER BY planned_at DESC, maintenance_run_id LIMIT :limit"
    )
    rows = read_view(catalog, query, arguments.job, limit=arguments.limit)
    return print_rows(rows, _RUN_COLUMNS, arguments)


def _row(stored: StoredPlan) -> dict[str, Any]:
    return {
        "plan": str(stored.run_id),
        "job": stored.job,
        "action": stored.action.value,
        "status": stored.status.value,
        "files": stored.files,
        "size_bytes": stored.size_bytes,
        "breakers": ", ".join(stored.spoken),
    }


def _uuid(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{given!r} is no id of a plan; `cairn runs` lists them"
        ) from error
