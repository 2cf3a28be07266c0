"""`make bench-maintenance`: what planning and deleting cost, beside much that stays.

python -m benchmarks.maintenance [--workload NAME …] [--live N …] [--quick] [--json]

An embedded PostgreSQL, and an S3 server in a process of its own that waits 20 ms before each
request.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import add_workloads, machine, new_table, positive, workplace
from benchmarks.maintenance_shape import QUICK, Figure, Sizes
from benchmarks.maintenance_steps import allow, measure_deletes, measure_planning
from benchmarks.metastore_calls import CatalogCalls
from benchmarks.stub_s3 import StubS3, stub_s3
from cairn.catalog.embedded import resolve_url
from cairn.errors import CairnError

Measure = Callable[[str, StubS3, Sizes], list[Figure]]

WORKLOADS: dict[str, Measure] = {
    "planning": lambda url, s3, sizes: measure_planning(url, s3.url, sizes),
    "deletes": measure_deletes,
}


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
    with workplace(args.output / "work-maintenance") as (_, metastore), stub_s3() as s3:
        url = resolve_url(metastore)
        calls = CatalogCalls(url)
        calls.migrate()
        allow(s3.url)
        try:
            for name in args.workload:
                told.print(f"{name} …", markup=False)
                figures += WORKLOADS[name](url, s3, sizes)
        finally:
            calls.close()
    return figures


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
