"""`make bench-metastore`: load on the metastore, with the code of an earlier commit beside it.

python -m benchmarks.metastore [--workload NAME …] [--against COMMIT] [--repetitions N] [--dead N]

Processes call the catalog as executors do, without Spark, storage and state. The code of the
working tree (after) and that of the commit (before) take turns, each on a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from sqlalchemy import make_url

from benchmarks.common import add_workloads, positive, workplace
from benchmarks.metastore_figures import AFTER, BEFORE, Measured, print_tables, to_json
from benchmarks.metastore_server import Server
from benchmarks.metastore_shape import QUICK, Sizes
from cairn.catalog.embedded import resolve_url
from cairn.errors import CairnError

ROOT = Path(__file__).resolve().parents[1]
AGAINST = "dbf3454"
"""The newest commit whose catalog `benchmarks.metastore_calls_before` calls."""
_TEMPLATE = "cairn"


class LoadFailedError(Exception):
    """A version's code could not be had, or a process with the load ended with an error."""


@dataclass(frozen=True, slots=True)
class Side:
    """One version of the code: its server, and a process with its packages that loads it.

    `url` is that of the template of databases.
    """

    name: str
    url: str
    work: Path
    sizes: Sizes
    process: subprocess.Popen[str]

    def run(self, step: str, database: str, **facts: object) -> dict[str, dict[str, float]]:
        """Runs a step on a database; returns its figures.

        Raises:
            LoadFailedError: it ended with an error; the message ends with its output.
        """
        order = {
            "step": step,
            "url": self._url_of(database),
            "storage": (self.work / "storage").as_uri(),
            "sizes": asdict(self.sizes),
            "facts": facts,
        }
        to, answers = self.process.stdin, self.process.stdout
        if to is None or answers is None:
            raise LoadFailedError(f"{self.name}: the process has no pipes")
        to.write(json.dumps(order) + "\n")
        to.flush()
        answer = answers.readline()
        if not answer:
            log = (self.work / "load.log").read_text()
            raise LoadFailedError(f"{self.name}, {step}: {log[-2000:].strip()}")
        figures: dict[str, dict[str, float]] = json.loads(answer)
        return figures

    def create(self, database: str) -> None:
        """Makes a database with the schema and nothing in it."""
        self._administer(f"CREATE DATABASE {database} TEMPLATE {_TEMPLATE}", "CHECKPOINT")

    def drop(self, database: str) -> None:
        """Drops a database."""
        self._administer(f"DROP DATABASE {database} WITH (FORCE)")

    def _administer(self, *statements: str) -> None:
        server = Server(self._url_of("postgres"))
        for statement in statements:
            server.execute(statement)
        server.close()

    def _url_of(self, database: str) -> str:
        return make_url(self.url).set(database=database).render_as_string(hide_password=False)


@contextmanager
def _side(name: str, output: Path, against: str, sizes: Sizes) -> Iterator[Side]:
    with workplace(output / f"work-metastore-{name}") as (work, metastore):
        (work / "storage").mkdir()
        tree = ROOT if name == AFTER else _packages_of(against, work / "tree")
        calls = "metastore_calls" if name == AFTER else "metastore_calls_before"
        command = [sys.executable, "-P", "-m", "benchmarks.metastore_load", f"benchmarks.{calls}"]
        with (
            (work / "load.log").open("w") as log,
            subprocess.Popen(  # noqa: S603 - this Python, fixed names
                [*command, str(tree)],
                env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            side = Side(name, resolve_url(metastore), work, sizes, process)
            side.run("migrate", _TEMPLATE)
            yield side


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the benchmark."""

    sides: Sequence[Side]
    repetitions: int
    measured: Measured
    tell: Callable[[str], None]

    def step(self, workload: str, step: str, **facts: object) -> None:
        """Runs a step on a fresh database of each side, in turn, and adds the figures."""
        for side in self.sides:
            side.create("load")
            self._add(workload, side, side.run(step, "load", **facts))
            side.drop("load")

    def kept(self, workload: str, step: str, database: str, **facts: object) -> None:
        """The same on a database that stays."""
        for side in self.sides:
            self._add(workload, side, side.run(step, database, **facts))

    def _add(self, workload: str, side: Side, figures: dict[str, dict[str, float]]) -> None:
        self.measured.add(workload, side.name, figures)
        for point, by_name in figures.items():
            name, value = next(iter(by_name.items()))
            self.tell(f"{workload}: {point}, {side.name}: {name} {value:,.1f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workloads on both versions; returns 1 if one of them fails."""
    args = _arguments(argv)
    told = Console(stderr=True, highlight=False)
    try:
        measured = _run(args, lambda line: told.print(line, markup=False, soft_wrap=True))
    except (CairnError, LoadFailedError) as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    text = json.dumps(to_json(measured), indent=2) + "\n"
    (args.output / "metastore.json").write_text(text)
    if args.json:
        sys.stdout.write(text)
    else:
        print_tables(measured, Console(width=max(120, Console().width)))
        told.print(f"Measurements: {args.output}/metastore.json", markup=False)
    return 0


def _run(args: argparse.Namespace, tell: Callable[[str], None]) -> Measured:
    sizes = QUICK if args.quick else replace(Sizes(), dead_segments=args.dead)
    measured = Measured(args.against, os.getloadavg()[0])
    with ExitStack() as stack:
        sides = [
            stack.enter_context(_side(name, args.output, args.against, sizes))
            for name in (BEFORE, AFTER)
        ]
        run = Run(sides, 1 if args.quick else args.repetitions, measured, tell)
        for workload in args.workload:
            _MEASURE[workload](run, sizes)
    return measured


def _contention(run: Run, sizes: Sizes) -> None:
    for executors in sizes.executors:
        for _ in range(run.repetitions):
            run.step("contention", "contention", executors=executors)


def _many_jobs(run: Run, _: Sizes) -> None:
    for _repetition in range(run.repetitions):
        run.step("many-jobs", "many-jobs")


def _live(run: Run, sizes: Sizes) -> None:
    points = [(live, 0) for live in sizes.live_segments]
    for live, dead in [*points, (sizes.live_segments[-1], sizes.dead_segments)]:
        for side in run.sides:
            side.create("live")
        run.kept("live", "fill", "live", live=live, dead=dead)
        for repetition in range(run.repetitions):
            run.kept("live", "live", "live", live=live, dead=dead, repetition=repetition)
        for side in run.sides:
            side.drop("live")


def _growth(run: Run, sizes: Sizes) -> None:
    for growth in sizes.growth:
        run.step("growth", "growth", growth=growth)
    run.step("growth", "group")


_MEASURE: dict[str, Callable[[Run, Sizes], None]] = {
    "contention": _contention,
    "many-jobs": _many_jobs,
    "live": _live,
    "growth": _growth,
}


def _packages_of(commit: str, tree: Path) -> Path:
    """Returns a new directory with the packages of a commit.

    Raises:
        LoadFailedError: this repository does not have it.
    """
    done = subprocess.run(  # noqa: S603 - fixed words, and a commit
        ["git", "-C", str(ROOT), "archive", commit, "cairn", "metastore"],  # noqa: S607 - the user's git
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()
        raise LoadFailedError(f"no code of {commit}, give another --against: {reason}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(tree, filter="data")
    return tree


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metastore", description=(__doc__ or "").splitlines()[0]
    )
    add_workloads(parser, _MEASURE)
    parser.add_argument(
        "--against",
        default=AGAINST,
        metavar="COMMIT",
        help="before: one whose catalog has the calls of the default, %(default)s",
    )
    parser.add_argument("--repetitions", type=positive, default=3, help="default: %(default)s")
    parser.add_argument(
        "--dead",
        type=positive,
        default=Sizes().dead_segments,
        help="dead segments beside the live ones; default: %(default)s",
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
