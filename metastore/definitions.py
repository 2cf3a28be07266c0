"""The schema besides tables: triggers, views and roles, each defined in one SQL file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sqlalchemy import Connection

DIRECTORY = Path(str(files("metastore")))
FILES = (
    *sorted((DIRECTORY / "triggers").glob("*.sql")),
    *sorted((DIRECTORY / "views").glob("*.sql")),
    DIRECTORY / "roles.sql",
)
"""In the order in which they are run: grants are given on views."""


def install_definitions(connection: Connection) -> None:
    """Creates or replaces all triggers and views, creates missing roles and grants their rights.

    A view can only get columns at its end: a revision that takes one away drops the view first.
    """
    for path in FILES:
        run_file(connection, path)


def run_file(connection: Connection, path: Path) -> None:
    """Executes the statements of a file as they are: `%` and `:` in them mean themselves."""
    connection.execution_options(no_parameters=True).exec_driver_sql(path.read_text())
