"""`make bench`: Cairn beside Spark's own state store, on the same rows in the same run.

python -m benchmarks [--workload NAME …] [--repetitions N] [--batches N] [--quick] [--json]

The floor is Cairn's plan with a function that passes the rows through. Results are in build/bench.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.common import add_workloads, positive, workplace
from benchmarks.report import plot, print_tables, to_json
from benchmarks.results import Result
from benchmarks.runner import QUICK, Effort, WrongResultError, run_workload
from benchmarks.slow_s3 import SlowS3
from benchmarks.streams import Place
from benchmarks.workloads import WORKLOADS
from cairn.errors import CairnError

FULL = Effort()
NARROWEST = 100


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
    (args.output / "result.json").write_text(measured)
    (args.output / "result.svg").write_text(plot(results))
    if args.json:
        sys.stdout.write(measured)
    else:
        print_tables(results, Console(width=max(NARROWEST, Console().width)))
        told.print(f"Measurements and plot: {args.output}/result.json, result.svg", markup=False)
    return 0


def _run(args: argparse.Namespace, told: Console) -> list[Result]:
    if args.quick:  # gone before an optimising compiler pays
        os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    effort = QUICK if args.quick else Effort(FULL.warm_up_batches, args.repetitions, args.batches)
    results = []
    with SlowS3() as s3, workplace(args.output / "work") as (work, metastore):
        for workload in (one for one in WORKLOADS if one.name in args.workload):
            result = run_workload(
                workload.tiny() if args.quick else workload,
                Place(work / workload.name, metastore, s3),
                effort=effort,
                log=args.output / "spark.log",
                tell=lambda line: told.print(line, markup=False, soft_wrap=True),
            )
            results.append(result)
    return results


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0]
    )
    add_workloads(parser, names)
    parser.add_argument(
        "--repetitions", type=positive, default=FULL.repetitions, help="default: %(default)s"
    )
    parser.add_argument(
        "--batches",
        type=positive,
        default=FULL.batches,
        help="timed ones in a repetition; default: %(default)s",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, once: only to see that it runs"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="directory; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the tables")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
