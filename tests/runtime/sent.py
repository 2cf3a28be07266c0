"""What this process sends to Postgres, by whatever way, and which statements are transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.catalog import connections

Note = Callable[[Any, str, bool], None]
"""Takes the driver's connection, the statement, and whether it is a transaction of its own."""


def watch(note: Note) -> Callable[[], None]:
    """Calls `note` before each statement is sent; returns what ends that."""
    cursor = connections._Cursor
    execute = cursor.execute

    def noting(self: Any, query: str, vars: Any = None) -> None:
        is_whole = self.connection.ends_with_statement or "COMMIT;" in query
        note(self.connection, query, is_whole)
        execute(self, query, vars)

    cursor.execute = noting  # type: ignore[method-assign]

    def end() -> None:
        cursor.execute = execute  # type: ignore[method-assign]

    return end
