"""The schema besides tables: functions, triggers, views, roles, each defined in one SQL file."""

from __future__ import annotations

from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Connection

DIRECTORY = Path(str(files("metastore")))


def _views_in_order() -> list[Path]:
    """Returns the views' files, each after those of the views that it reads."""
    texts = {path: path.read_text() for path in sorted((DIRECTORY / "views").glob("*.sql"))}
    reads = {
        path: {other for other in texts if other != path and f"cairn.{other.stem}" in text}
        for path, text in texts.items()
    }
    return list(TopologicalSorter(reads).static_order())


VIEWS = _views_in_order()
FILES = (
    *sorted((DIRECTORY / "functions").glob("*.sql")),
    *sorted((DIRECTORY / "triggers").glob("*.sql")),
    *VIEWS,
    DIRECTORY / "roles.sql",
    DIRECTORY / "policies.sql",
)
"""In the order in which they are run: grants are given on views, tenants on top of them."""


def install_definitions(connection: Connection) -> None:
    """Creates or replaces all functions, triggers and views; creates roles, grants their rights.

    A view can only get columns at its end: a revision that takes one away drops the view first.
    """
    for path in FILES:
        run_file(connection, path)


def run_file(connection: Connection, path: Path) -> None:
    """Executes the statements of a file as they are: `%` and `:` in them mean themselves."""
    connection.execution_options(no_parameters=True).exec_driver_sql(path.read_text())
