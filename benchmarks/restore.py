"""`make bench-restore`: restoring state from bases, increments and changelog.

python -m benchmarks.restore [--size-mb N] [--repetitions N] [--without-spark] [--json]

Two histories of the same state are written: one materialized by the rules of the default options,
one not at all. Each is restored from storage into empty local state, one after the other, several
times. Then a query of native Spark and one of Cairn start again on that state, their local state
gone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.common import positive, workplace
from benchmarks.restore_figures import Measured, plot, print_tables, to_json
from benchmarks.restore_history import CHANGELOG, MATERIALIZED, History, write_history
from benchmarks.restore_local import WrongStateError, restore
from benchmarks.restore_rows import Probe, Shape, write_final_rows
from benchmarks.restore_spark import CAIRN, NATIVE, Order, SparkFailedError, Start, start
from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import resolve_url
from cairn.catalog.migrate import migrate
from cairn.errors import CairnError

PROBE_KEYS = 500
BATCHES_A_START = 2
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the benchmark."""

    shape: Shape
    parallelism: int
    repetitions: int
    start: Callable[[Order], Start] | None
    """Starts a query of Spark; None: only the restores themselves are measured."""
    work: Path
    log: Path
    metastore_url: str
    tell: Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 1 if some state is not the one that was written."""
    args = _arguments(argv)
    told = Console(stderr=True, highlight=False)
    try:
        measured = _run(args, lambda line: told.print(line, markup=False, soft_wrap=True))
    except (CairnError, WrongStateError, SparkFailedError) as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    text = json.dumps(to_json(measured), indent=2) + "\n"
    (args.output / "restore.json").write_text(text)
    (args.output / "restore.svg").write_text(plot(measured))
    if args.json:
        sys.stdout.write(text)
    else:
        print_tables(measured, Console(width=max(100, Console().width)))
        told.print(f"Measurements and plot: {args.output}/restore.json, restore.svg", markup=False)
    return 0


def _run(args: argparse.Namespace, tell: Callable[[str], None]) -> Measured:
    with workplace(args.output / "work-restore") as (work, metastore):
        url = resolve_url(metastore)
        migrate(Catalog(url))
        run = Run(
            Shape.of(args.size_mb * _MB, args.entry_bytes),
            args.parallelism,
            args.repetitions,
            None if args.without_spark else start,
            work,
            args.output.absolute() / "spark.log",
            url,
            tell,
        )
        return measure(run)


def measure(run: Run) -> Measured:
    """Writes the histories and measures their restores.

    Raises:
        WrongStateError: some state is not the one that was written.
    """
    measured = Measured(run.shape, run.parallelism, os.getloadavg()[0])
    run.tell(f"writing two histories of {run.shape.state_bytes / _MB:.0f} MB of state")
    histories, probes = _write(run)
    measured.holds = {name: history.holds for name, history in histories.items()}
    measured.restores = {name: [] for name in histories}
    for repetition in range(run.repetitions):
        names = list(histories)[:: -1 if repetition % 2 else 1]
        for name in names:
            done = restore(histories[name], run.work / "restored")
            measured.restores[name].append(done)
            run.tell(f"restore {repetition + 1}/{run.repetitions}, {name}: {done.seconds:.2f} s")
    if run.start is not None:
        shutil.rmtree(run.work / CHANGELOG)  # room in the page cache
        origin = histories[MATERIALIZED].manifest
        measured.starts = measure_starts(run, run.start, origin, probes)
    return measured


def _write(run: Run) -> tuple[dict[str, History], list[Probe]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        facts = (run.shape, run.parallelism, run.work, run.metastore_url)
        writing = {
            name: pool.submit(write_history, name, *facts) for name in (MATERIALIZED, CHANGELOG)
        }
        starts = 1 + BATCHES_A_START * (1 + run.repetitions)
        rows = run.work / "rows"
        probing = pool.submit(write_final_rows, run.shape, rows, starts, _probe_keys(run, starts))
        return {name: found.result() for name, found in writing.items()}, probing.result()


def _probe_keys(run: Run, probes: int) -> int:
    return min(PROBE_KEYS, run.shape.keys // probes)


def measure_starts(
    run: Run, start: Callable[[Order], Start], origin: str, probes: Sequence[Probe]
) -> dict[str, list[Start]]:
    """Starts a query of each engine on the state, again and again; returns what is measured.

    Args:
        run: its `start` is not used.
        start: carries out an order.
        origin: the manifest of the state for Cairn.
        probes: one to warm up, then `BATCHES_A_START` for each start of an engine.

    Raises:
        WrongStateError: an engine has other state than what was written.
    """
    warm_up, *left = probes

    def carry_out(engine: str, files: Sequence[Path], *, collects: bool) -> Start:
        order = Order(
            engine,
            str(run.work / engine),
            [str(file) for file in files],
            str(warm_up.file),
            run.parallelism,
            str(run.log),
            metastore=run.metastore_url,
            restore_from=origin,
            collects=collects,
        )
        return start(order)

    final = sorted((run.work / "rows").glob("[0-9]*.parquet"))
    run.tell("native: giving it the state")
    starts: dict[str, list[Start]] = {NATIVE: [], CAIRN: []}
    for engine, given in ((NATIVE, final), (CAIRN, [])):
        first = [probe.file for probe in left[:BATCHES_A_START]]
        carry_out(engine, [*given, *first], collects=False)
    for repetition in range(run.repetitions):
        at = BATCHES_A_START * (1 + repetition)
        mine = left[at : at + BATCHES_A_START]
        for engine in list(starts)[:: -1 if repetition % 2 else 1]:
            shutil.rmtree(run.work / engine / "local", ignore_errors=True)
            done = carry_out(engine, [probe.file for probe in mine], collects=True)
            if done.output != mine[0].expected:
                raise WrongStateError(f"{engine} has other state than what was written")
            starts[engine].append(done)
            run.tell(
                f"start {repetition + 1}/{run.repetitions}, {engine}: first batch "
                f"{done.add_batch_ms[0]} ms, the next {done.add_batch_ms[1]} ms"
            )
    return starts


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restore", description=(__doc__ or "").splitlines()[0]
    )
    numbers = {
        "--size-mb": (1000, "bytes of all keys and values, in millions"),
        "--entry-bytes": (1000, "of one key and its value"),
        "--parallelism": (2, "subtasks, each restored by a process of its own"),
        "--repetitions": (3, "of each restore"),
    }
    for name, (default, what) in numbers.items():
        about = f"{what}; default: %(default)s"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=about)
    parser.add_argument("--without-spark", action="store_true", help="only the restores themselves")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="directory; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the tables")
    args = parser.parse_args(argv)
    if args.entry_bytes < 100:
        parser.error("an entry has at least 100 bytes")
    return args


if __name__ == "__main__":
    sys.exit(main())
