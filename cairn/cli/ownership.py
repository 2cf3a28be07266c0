"""The command that makes a metastore the owner of jobs' roots in storage."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import unknown_job
from cairn.catalog.migrate import require_current
from cairn.catalog.ownership import job_ids, own_facts
from cairn.cli.commands import print_rows
from cairn.cli.output import fail
from cairn.errors import CairnError
from cairn.owner import Standing
from cairn.ownership.check import look_up, refusal
from cairn.ownership.take import TakenOver, take_over
from cairn.storage import open_store

_COLUMNS = {
    "job": "job",
    "generation": "generation",
    "from_metastore": "before",
    "newest_manifest": "newest manifest",
}


def add_command(
    actions: argparse._SubParsersAction[Any],
    common: argparse.ArgumentParser,
    changing: argparse.ArgumentParser,
) -> None:
    """Adds the parser of `metastore take-over`."""
    command = actions.add_parser(
        "take-over",
        parents=[common, changing],
        help="say that this metastore is the one that counts; any other is fenced",
    )
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("job", metavar="JOB", nargs="?", help="the job's name")
    which.add_argument("--all", action="store_true", help="every job of the metastore")
    command.set_defaults(run=take_over_roots)


def take_over_roots(catalog: Catalog, arguments: Namespace) -> int:
    """Takes over the root of one job or of all; continues with the next when one fails."""
    require_current(catalog)
    known = catalog.run("listing the jobs", job_ids)
    if arguments.job is not None and arguments.job not in known:
        raise unknown_job(arguments.job, list(known))
    chosen = list(known) if arguments.all else [arguments.job]
    taken, code = list[TakenOver](), 0
    for name in chosen:
        try:
            taken.append(_take_over(catalog, known[name], dry_run=arguments.dry_run))
        except CairnError as error:
            code = code or fail(error)
    rows = [{**asdict(one), "dry_run": arguments.dry_run} for one in taken]
    print_rows(rows, _COLUMNS, arguments)
    return code


def print_others(catalog: Catalog, job_ids: Sequence[str]) -> None:
    """Says on stderr which roots are another metastore's, and what that means."""
    for job_id in job_ids:
        found = look_up(catalog, open_store(_storage(catalog, job_id)), job_id)
        if found.standing is Standing.FOREIGN:
            print(f"not taken over: {refusal(found).message}", file=sys.stderr)


def _take_over(catalog: Catalog, job_id: str, *, dry_run: bool) -> TakenOver:
    store = open_store(_storage(catalog, job_id))
    return take_over(catalog, store, job_id, dry_run=dry_run)


def _storage(catalog: Catalog, job_id: str) -> str:
    return catalog.run(f"reading where {job_id}/ is", lambda c: own_facts(c, job_id)).storage
