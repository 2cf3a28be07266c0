"""The commands that say why an object is there, and what the bytes of a job are kept by."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.cli.commands import print_rows, read_view
from cairn.layout import generation_of

_KEEPER_COLUMNS = {
    "path": "object",
    "status": "status",
    "size_bytes": "size",
    "keeper": "kept by",
    "because": "because",
    "kept_until": "until (UTC)",
}
_SPACE_COLUMNS = {
    "job_name": "job",
    "files": "files",
    "physical_bytes": "in storage",
    "live_bytes": "live",
    "retained_bytes": "by retention",
    "pinned_bytes": "by pins",
    "superseded_bytes": "superseded",
    "dead_bytes": "dead",
    "unneeded_bytes": "unneeded",
    "waiting_bytes": "waiting",
    "due_bytes": "due",
    "unsealed_files": "unsealed files",
}

_KEEPERS = (
    "SELECT * FROM cairn.v_keepers WHERE job_id = ANY(:job_ids) AND path = ANY(:paths) "
    "ORDER BY path, keeper, because"
)
_KEEPERS_OF_FILE = "SELECT * FROM cairn.v_keepers WHERE file_id = :file_id ORDER BY keeper, because"
_SPACE = "SELECT * FROM cairn.v_space WHERE job_id = :job_id"


def add_commands(
    commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser
) -> None:
    """Adds the parsers of explain and space."""
    command: argparse.ArgumentParser = commands.add_parser(
        "explain",
        parents=[common],
        help="say who keeps an object, or what deletes it when",
        epilog="The object is given by its URL, by its path below the job's storage, or by the id "
        "of its file.",
    )
    command.add_argument("object", metavar="OBJECT", help="an object in storage")
    command.set_defaults(run=explain)
    command = commands.add_parser(
        "space", parents=[common], help="print the bytes of a job by what keeps them"
    )
    command.add_argument("job", metavar="JOB", help="the job's name")
    command.set_defaults(run=space)


def explain(catalog: Catalog, arguments: Namespace) -> int:
    """Prints every reason why an object is there, or what deletes it."""
    rows = _keepers(catalog, arguments.object)
    return print_rows(rows or [_unknown(arguments.object)], _KEEPER_COLUMNS, arguments)


def space(catalog: Catalog, arguments: Namespace) -> int:
    """Prints the bytes of a job by what keeps them."""
    return print_rows(read_view(catalog, _SPACE, arguments.job), _SPACE_COLUMNS, arguments)


def _keepers(catalog: Catalog, given: str) -> list[Mapping[str, Any]]:
    try:
        return read_view(catalog, _KEEPERS_OF_FILE, file_id=UUID(given))
    except ValueError:
        paths = _paths(given)
    job_ids = [path.partition("/")[0] for path in paths]
    return read_view(catalog, _KEEPERS, job_ids=job_ids, paths=paths)


def _paths(given: str) -> list[str]:
    """Returns what of a URL or path may be a path below a storage, which begins with a job's id."""
    rest = unquote(given.partition("://")[2]) if "://" in given else given
    parts = rest.split("/")
    return ["/".join(parts[place:]) for place in range(len(parts) - 1)]


def _unknown(given: str) -> Mapping[str, Any]:
    is_owner = any(generation_of(path) is not None for path in _paths(given))
    return {
        "path": given,
        "status": None,
        "size_bytes": None,
        "keeper": "job" if is_owner else "nothing",
        "because": "it says which metastore owns the job's root, and is deleted with the job alone"
        if is_owner
        else "no row of this metastore knows it, so no checkpoint needs it and no cleanup deletes "
        "it. It may be another metastore's, or its row was trimmed long after its deletion",
        "kept_until": None,
    }
