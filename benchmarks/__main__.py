"""`make bench`: Cairn beside Spark's own state store, on the same rows in the same run.

python -m benchmarks [--workload NAME…] [--repetitions N] [--batches N] [--quick] [--json]

The floor is Cairn's plan with a function that passes the rows through. Results go to build/bench.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.report import plot, print_tables, to_json
from benchmarks.runner import Result, WrongResultError, run_workload
from benchmarks.session import ROOT
from benchmarks.slow_s3 import SlowS3
from benchmarks.streams import Place
from benchmarks.workloads import WORKLOADS, Workload
from cairn.errors import CairnError
from metastore.embedded import stop

BUILD = ROOT / "build" / "bench"
WORK = BUILD / "work"
METASTORE = f"embedded:{WORK / 'metastore'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 1 if the engines disagree or one of them fails."""
    args = _arguments(argv)
    told = Console(stderr=True, highlight=False)
    load = os.getloadavg()[0]
    try:
        results = _run(args, told)
    except (CairnError, WrongResultError) as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    measured = json.dumps(to_json(results, load), indent=2) + "\n"
    (BUILD / "result.json").write_text(measured)
    (BUILD / "result.svg").write_text(plot(results))
    if args.json:
        sys.stdout.write(measured)
    else:
        print_tables(results, Console())
        told.print("Measurements: build/bench/result.json, plot: build/bench/result.svg")
    return 0


def _run(args: argparse.Namespace, told: Console) -> list[Result]:
    if WORK.exists():
        stop(METASTORE)
        shutil.rmtree(WORK)
    WORK.mkdir(parents=True)
    workloads: list[Workload] = [w for w in WORKLOADS if w.name in args.workload]
    with SlowS3() as s3:
        try:
            return [
                run_workload(
                    workload.tiny() if args.quick else workload,
                    Place(WORK / workload.name, METASTORE, s3),
                    repetitions=1 if args.quick else args.repetitions,
                    batches=1 if args.quick else args.batches,
                    log=BUILD / "spark.log",
                    tell=lambda line: told.print(line, markup=False, soft_wrap=True),
                )
                for workload in workloads
            ]
        finally:
            stop(METASTORE)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"only these: {', '.join(names)}",
    )
    parser.add_argument("--repetitions", type=_positive, default=5, help="default: 5")
    parser.add_argument(
        "--batches", type=_positive, default=4, help="timed ones in a repetition; default: 4"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, once: only to see that it runs"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the tables")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
