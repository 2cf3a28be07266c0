"""Tables for people, JSON arrays for machines, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cairn.errors import BadInputError, CairnError, RefusedError, StoreFailedError
from cairn.printable import printable

_EXIT_CODES: tuple[tuple[type[CairnError], int], ...] = (
    (BadInputError, 2),
    (StoreFailedError, 3),
    (RefusedError, 4),
    (CairnError, 5),
)
_MOST_TABLE_ROWS = 1000
# A pipe has no width to wrap at.
_PIPE_WIDTH = 4096


def fail(error: CairnError) -> int:
    """Prints an error on one line of stderr and returns its exit code."""
    print_error(str(error))
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def print_error(text: str) -> None:
    """Prints an error on one line of stderr."""
    print(f"error: {printable(' '.join(text.split()))}", file=sys.stderr)


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows as a JSON array, one object a line, while they are read."""
    separator = "["
    for row in rows:
        text = json.dumps(row, default=_plain, ensure_ascii=False)
        print(separator + printable(text), end="")
        separator = ",\n "
    print("[]" if separator == "[" else "]")


def print_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Prints the first thousand rows as a table; `columns` maps keys to headings."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    remaining = iter(rows)
    shown = list(islice(remaining, _MOST_TABLE_ROWS))
    for key, heading in columns.items():
        numeric = any(isinstance(row.get(key), int | float) for row in shown)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*(printable(_cell(key, row.get(key))) for key in columns))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)
    if next(remaining, None) is not None:
        print(f"only the first {_MOST_TABLE_ROWS}; --json prints all", file=sys.stderr)


def progress_bars(*, keep: bool = False) -> Progress:
    """Returns progress bars on stderr, to be used by `with`.

    They disappear at the end, and are not drawn where stderr is no terminal. With `keep` their last
    state remains, in a log file as well.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=not keep,
        disable=not (keep or console.is_terminal),
    )


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _cell(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, int) and key.endswith("_bytes"):
        return decimal(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
