"""Breaks the code on purpose, one defect at a time, and shows which test notices.

python -m tests.mutants [PART OF A NAME …]

Each mutant is applied to a copy of the tree, where its tests run. The exit status is 1 if a mutant
survives, or has no verdict.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.mutant import ROOT, Mutant, mutants

WORKERS = 2
TIMEOUT_S = 300
TIMEOUT_OF_ALL_S = 1800
FOLDERS = ("cairn", "metastore", "spark_jobs", "dags", "demo", "benchmarks", "tests", "docs")
KILLED, SURVIVED, NO_VERDICT = "killed", "SURVIVED", "NO VERDICT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What running a mutant's tests gave; `by` is the test that failed, or what went wrong."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float


def copy_tree(directory: Path) -> Path:
    """Copies the project's folders and its settings into a directory; returns that."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, directory / folder, ignore=ignored)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, directory)
    shutil.copy(ROOT / "Makefile", directory)
    return directory


def run_tests(tree: Path, tests: Sequence[str], timeout_s: int = TIMEOUT_S) -> tuple[int, str]:
    """Returns pytest's exit status and output; 1 and a note where it takes too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "--no-header"]
    # A copy has no cache, and the order that the names give.
    command += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED {tests[0]} - no end after {timeout_s} s"
    return done.returncode, done.stdout + done.stderr


def try_mutant(tree: Path, mutant: Mutant) -> Outcome:
    """Returns what a mutant's tests say; the tree is as before afterwards."""
    file, began = tree / mutant.file, time.monotonic()
    original = file.read_text()
    try:
        file.write_text(mutant.applied(original))
        status, output = run_tests(tree, mutant.node_ids())
    finally:
        file.write_text(original)
    seconds = time.monotonic() - began
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", output, re.MULTILINE)
    if status == 1 and failed:
        return Outcome(mutant=mutant, verdict=KILLED, by=failed[1], seconds=seconds)
    if status == 0:
        return Outcome(mutant=mutant, verdict=SURVIVED, by="", seconds=seconds)
    last = output.strip().splitlines()[-1:] or ["no output"]
    return Outcome(mutant=mutant, verdict=NO_VERDICT, by=last[0], seconds=seconds)


def try_all(trees: Sequence[Path], mutants: Sequence[Mutant], console: Console) -> list[Outcome]:
    """Returns the outcome of each mutant in the given order, with a progress bar meanwhile."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def work(mutant: Mutant) -> Outcome:
        tree = free.get()
        try:
            return try_mutant(tree, mutant)
        finally:
            free.put(tree)

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, ThreadPoolExecutor(len(trees)) as threads:
        task = bar.add_task("mutants", total=len(mutants))
        started = [threads.submit(work, mutant) for mutant in mutants]
        for one in as_completed(started):
            bar.advance(task)
            if one.result().verdict != KILLED:
                bar.console.print(f"{one.result().mutant.name}: {one.result().verdict}")
    return [one.result() for one in started]


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints a table of all outcomes, and how many were killed."""
    table = Table("mutant", "file", "verdict", "by", "s")
    for one in outcomes:
        table.add_row(one.mutant.name, one.mutant.file, one.verdict, one.by, f"{one.seconds:.0f}")
    console.print(table)
    killed = sum(one.verdict == KILLED for one in outcomes)
    console.print(f"{killed} of {len(outcomes)} mutants killed")


def main(names: Sequence[str]) -> int:
    """Tries the mutants of the names, all without names; returns the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    chosen = [one for one in mutants() if not names or any(part in one.name for part in names)]
    if not chosen:
        console.print(f"no mutant's name contains {' or '.join(names)}; see tests/mutants/*.toml")
        return 2
    with tempfile.TemporaryDirectory(prefix="cairn-mutants-") as directory:
        trees = [copy_tree(Path(directory) / str(n)) for n in range(WORKERS)]
        console.print("The tests have to pass on the code as it is")
        tests = sorted({test for mutant in chosen for test in mutant.node_ids()})
        status, output = run_tests(trees[0], tests, TIMEOUT_OF_ALL_S)
        if status != 0:
            console.print(output)
            return 1
        outcomes = try_all(trees, chosen, console)
    show(outcomes, console)
    return 0 if all(one.verdict == KILLED for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
