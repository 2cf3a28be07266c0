"""The commands that plan a maintenance action, apply a stored plan, and list the runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN, StoredPlan
from cairn.catalog.migrate import require_current
from cairn.cli.commands import print_rows, read_view
from cairn.cli.output import print_error, progress_bars
from cairn.errors import BadInputError
from cairn.maintenance.actions import ACTIONS, apply_plan, plan_action
from cairn.maintenance.breakers import Breaker, limits_of, spoken
from cairn.maintenance.plans import Plan, pass_breakers, read
from cairn.printable import printable
from metastore.enums import MaintenanceAction, MaintenanceStatus

_TIMEOUT_MS = 60_000
_STORE_FAILED = 3
_REFUSED = 4
_MOST_SHOWN = 10
"""Of each list of a plan."""

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
    command.add_argument("--dry-run", action="store_true", help="print the plan, store none")
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
    command.add_argument(
        "--dry-run", action="store_true", help="print what the plan would do, and do nothing"
    )
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
    action = MaintenanceAction(arguments.action)
    if arguments.dry_run:
        return _print_unstored(ACTIONS[action].plan(catalog, arguments.job), arguments)
    stored = plan_action(catalog, action, arguments.job)
    if stored is None:
        return _print_nothing(arguments)
    print_rows([_row(stored) | _content(stored.plan, arguments)], _PLAN_COLUMNS, arguments)
    if stored.status is MaintenanceStatus.REFUSED:
        print_error(_how_to_pass(stored))
        return _REFUSED
    print(
        f"stored; nothing else was changed. Next, within {PLAN_LIFE_MIN} min: `cairn apply "
        f"{stored.run_id}`, with --dry-run to see what it does",
        file=sys.stderr,
    )
    return 0


def _print_nothing(arguments: Namespace) -> int:
    print_rows([], _PLAN_COLUMNS, arguments)
    print(f"nothing to do for job {arguments.job}", file=sys.stderr)
    return 0


def _print_unstored(made: Plan, arguments: Namespace) -> int:
    """Prints a plan that is not stored; returns 4 if a circuit breaker would speak."""
    if made.is_empty:
        return _print_nothing(arguments)
    said = spoken(made.deletes, limits_of(os.environ, made.action))
    row = {
        "plan": None,
        "job": made.job.name,
        "action": made.action.value,
        "status": None,
        "files": made.deletes.files,
        "size_bytes": made.deletes.size_bytes,
        "breakers": ", ".join(one.breaker for one in said),
    }
    print_rows([row | _content(made.content, arguments)], _PLAN_COLUMNS, arguments)
    _print_content(made.content, arguments)
    if said:
        found = "; ".join(f"{one.found} ({one.limit})" for one in said)
        print_error(f"a circuit breaker would speak: {found}")
        return _REFUSED
    return 0


def apply(catalog: Catalog, arguments: Namespace) -> int:
    """Applies a stored plan and prints what that has changed."""
    require_current(catalog)
    catalog = replace(catalog, timeout_ms=_TIMEOUT_MS)
    if arguments.by is not None and not arguments.passed:
        raise BadInputError("--by says who passes a circuit breaker: name it with --pass")
    if arguments.dry_run:
        return _print_stored(catalog, arguments)
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


def _print_stored(catalog: Catalog, arguments: Namespace) -> int:
    """Prints what a stored plan would do; returns 4 if it would not be applied now."""
    if arguments.passed:
        raise BadInputError("--pass is recorded, so it does not go with --dry-run")
    stored = read(catalog, arguments.plan)
    print_rows([_row(stored) | _content(stored.plan, arguments)], _PLAN_COLUMNS, arguments)
    _print_content(stored.plan, arguments)
    again = f"make a new one with `cairn plan {stored.action} {stored.job}`"
    if stored.is_expired:
        print_error(f"it would not be applied: it is too old, or has failed; {again}")
        return _REFUSED
    if stored.status is MaintenanceStatus.REFUSED:
        print_error(_how_to_pass(stored))
        return _REFUSED
    if stored.status is MaintenanceStatus.APPLIED:
        print(f"it was applied already, so nothing would be done; {again}", file=sys.stderr)
    return 0


def _how_to_pass(stored: StoredPlan) -> str:
    names = " ".join(f"--pass {name}" for name in stored.spoken)
    found = "; ".join(f"{one['found']} ({one['limit']})" for one in stored.breakers)
    return (
        f"a circuit breaker spoke, so the plan is not applied: {found}. Find out why: `cairn apply "
        f"{stored.run_id} --dry-run` has what it would do, `cairn space {stored.job}` what there "
        f"is. If it is right, run `cairn apply {stored.run_id} {names} --by NAME`"
    )


def _content(content: Mapping[str, Any], arguments: Namespace) -> dict[str, Any]:
    return {"content": content} if arguments.json else {}


def _print_content(content: Mapping[str, Any], arguments: Namespace) -> None:
    """Prints what a plan has below its table: lists by their first entries."""
    if arguments.json:
        return
    for name, value in content.items():
        if isinstance(value, list):
            print(f"{name}: {len(value)}")
            for one in value[:_MOST_SHOWN]:
                print(f"  {printable(_short(one))}")
            if len(value) > _MOST_SHOWN:
                print("  … --json has all")
        else:
            print(f"{name}: {printable(_short(value))}")


def _short(value: object) -> str:
    if isinstance(value, Mapping) and "path" in value:
        return str(value["path"])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def runs(catalog: Catalog, arguments: Namespace) -> int:
    """Lists maintenance runs, newest first."""
    of_job = "WHERE job_id = :job_id " if arguments.job else ""
    query = (
        f"SELECT * FROM cairn.v_maintenance_runs {of_job}"  # noqa: S608 - fixed
        "ORDER BY planned_at DESC, maintenance_run_id LIMIT :limit"
    )
    rows = list(read_view(catalog, query, arguments.job, limit=arguments.limit))
    print_rows(rows, _RUN_COLUMNS, arguments)
    if waiting := [row for row in rows if row["state"] == MaintenanceStatus.REFUSED]:
        print(
            f"{len(waiting)} wait for a person, for {PLAN_LIFE_MIN} min each: `cairn apply "
            f"{waiting[0]['maintenance_run_id']} --dry-run` says what the newest would do, and how "
            "to let it pass",
            file=sys.stderr,
        )
    return 0


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
