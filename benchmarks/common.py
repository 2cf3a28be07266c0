"""What the benchmarks share: a place to work in, and parts of their arguments and reports."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from rich import box
from rich.table import Table

from cairn.catalog.embedded import stop


def positive(text: str) -> int:
    """Returns an argument that is a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def add_workloads(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds an argument for the workloads to run, by default all of them."""
    every = list(names)
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=every,
        default=every,
        metavar="NAME",
        help=f"only these: {', '.join(every)}",
    )


@contextmanager
def workplace(directory: Path) -> Iterator[tuple[Path, str]]:
    """Gives an empty directory and an embedded metastore in it, stopped and removed at the end.

    After an error the directory stays, for a look at it, until the next run.
    """
    work = directory.absolute()
    metastore = f"embedded:{work / 'metastore'}"
    if work.exists():  # a run that was killed
        stop(metastore)
        shutil.rmtree(work)
    work.mkdir(parents=True)
    try:
        yield work, metastore
    finally:
        stop(metastore)
    shutil.rmtree(work)


def machine(load_before: float) -> dict[str, Any]:
    """Returns where a benchmark ran, with the load average when it began."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "spark": version("pyspark"),
        "load_before": round(load_before, 2),
    }


def new_table(title: str, *columns: str) -> Table:
    """Returns an empty table whose columns are texts."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


def add_text(svg: ET.Element, x: float, y: float, text: str, *, anchor: str = "start") -> None:
    """Adds text to a plot, at a place in pixels."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ET.SubElement(svg, "text", place).text = text
