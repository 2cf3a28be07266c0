"""`make bench-maintenance`: what the maintenance costs, and what it costs a stream beside it.

python -m benchmarks.maintenance [--workload NAME …] [--live N …] [--quick] [--json]

An embedded PostgreSQL, and S3 servers in processes of their own with 20 ms before each request: one
that keeps no bytes, and, where bytes are copied, a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import add_workloads, machine, new_table, positive, workplace
from benchmarks.maintenance_shape import QUICK, Figure, Place, Sizes
from benchmarks.metastore_calls import CatalogCalls
from cairn.catalog.embedded import resolve_url
from cairn.errors import CairnError

WORKLOADS = {
    "planning": "maintenance_steps:measure_planning",
    "deletes": "maintenance_steps:measure_deletes",
    "listing": "maintenance_listing:measure_listing",
    "compaction": "maintenance_compaction:measure_compaction",
    "fold": "maintenance_fold:measure_fold",
    "stream": "maintenance_stream:measure_stream",
}
"""By name: processes that are measured import this module, and not what they do not need."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table or JSON, writes `maintenance.json`; returns the exit status."""
    args = _arguments(argv)
    sizes = QUICK if args.quick else Sizes(live_segments=tuple(args.live))
    if args.delay_ms is not None:
        sizes = replace(sizes, delay_ms=args.delay_ms)
    told = Console(stderr=True, highlight=False)
    load = os.getloadavg()[0]
    try:
        figures = _run(args, sizes, told)
    except CairnError as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    measured = json.dumps(_to_json(figures, sizes, load), indent=2) + "\n"
    (args.output / "maintenance.json").write_text(measured)
    if args.json:
        sys.stdout.write(measured)
    else:
        Console().print(_table(figures, load))
        told.print(f"Measurements: {args.output}/maintenance.json", markup=False)
    return 0


def _run(args: argparse.Namespace, sizes: Sizes, told: Console) -> list[Figure]:
    figures: list[Figure] = []
    with workplace(args.output / "work-maintenance") as (work, metastore):
        url = resolve_url(metastore)
        calls = CatalogCalls(url)
        calls.migrate()
        try:
            for name in args.workload:
                told.print(f"{name} …", markup=False)
                directory = work / name
                directory.mkdir()
                place = Place(url=url, directory=directory, sizes=sizes, is_quick=args.quick)
                figures += _measure_of(name)(place)
        finally:
            calls.close()
    return figures


def _measure_of(workload: str) -> Callable[[Place], list[Figure]]:
    module, _, function = WORKLOADS[workload].partition(":")
    measure: Callable[[Place], list[Figure]] = getattr(
        import_module(f"benchmarks.{module}"), function
    )
    return measure


def _to_json(figures: Sequence[Figure], sizes: Sizes, load: float) -> dict[str, Any]:
    return {
        "machine": machine(load),
        "sizes": asdict(sizes),
        "figures": [asdict(one) | {"met": one.met} for one in figures],
    }


def _table(figures: Sequence[Figure], load: float) -> Table:
    table = new_table(f"Maintenance, load before {load:.1f}", "workload", "what")
    for column in ("measured", "wanted"):
        table.add_column(column, justify="right")
    table.add_column("")
    for one in figures:
        sign = "≥" if one.at_least else "≤"
        verdict = {None: "", True: "[green]ok", False: "[red]missed"}[one.met]
        wanted = "" if one.wanted is None else f"{sign} {one.wanted:,g}"
        table.add_row(one.workload, one.name, f"{one.value:,.4g} {one.unit}", wanted, verdict)
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.maintenance", description=(__doc__ or "").splitlines()[0]
    )
    add_workloads(parser, WORKLOADS)
    parser.add_argument(
        "--live",
        nargs="+",
        type=positive,
        default=list(Sizes().live_segments),
        metavar="N",
        help="live segments to plan beside, fewest first; default: %(default)s",
    )
    parser.add_argument("--delay-ms", type=float, help="what each request waits; default: 20")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see that it runs")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="directory; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
