"""`make demo`: the main job on real text, killed and restarted, cleaned up, and checked.

python -m demo [--storage s3://bucket/prefix]
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from cairn.airflow_ext.metastore import METASTORE_VARIABLE
from cairn.airflow_ext.pools import MAINTENANCE_POOL
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.engine import open_engine
from cairn.catalog.migrate import migrate
from cairn.cli.output import progress_bars
from cairn.errors import CairnError
from demo.airflow import LocalAirflow
from demo.report import counted_words, make_report
from demo.source import count_words, stage
from demo.stream import Stream, batches_done, wait_for_middle_of_batch

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "demo"
METASTORE = f"embedded:{BUILD / 'metastore'}"
JOB = "wordcount"
BATCHES = 32
KILL_AFTER_BATCHES = 12
DAG = "subsumption_cleanup"
POOLS = {MAINTENANCE_POOL: 2}


@dataclass(frozen=True, slots=True)
class Demo:
    """Where one run of the demo keeps its things."""

    url: str
    arguments: list[str]
    log: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 1 if a count is wrong or a step failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--storage", help="s3://bucket/prefix; default: a local directory")
    args = parser.parse_args(argv)
    console = Console()
    began = time.monotonic()
    try:
        mismatches = _run(args.storage, console)
    except CairnError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    console.print(f"Took {time.monotonic() - began:.0f} s. Report: build/demo/report.json")
    if mismatches:
        console.print(f"{mismatches} counts are wrong", style="red")
        return 1
    console.print("Every count is right. Look at what is left with:")
    console.print(
        f"  .venv/bin/cairn files {JOB} --metastore {METASTORE}", markup=False, soft_wrap=True
    )
    return 0


def _run(storage: str | None, console: Console) -> int:
    if BUILD.exists():
        stop(METASTORE)
        shutil.rmtree(BUILD)
    BUILD.mkdir(parents=True)
    with progress_bars(keep=True) as bars:
        files = _staged(bars)
        demo = _prepare(storage, len(files))
        airflow = LocalAirflow(
            BUILD / "airflow",
            dags=ROOT / "dags",
            port=_free_port(),
            variables={METASTORE_VARIABLE: METASTORE},
        )
        with ThreadPoolExecutor(1) as background:
            migrated = background.submit(airflow.migrate)
            killed_in = _stream(demo, bars)
            migrated.result()
        try:
            airflow.start()
            expected = _count(files, bars)
            _clean_up(airflow, bars)
        finally:
            airflow.stop()
    mismatches = _check(demo, expected, killed_in, console)
    stop(METASTORE)
    return mismatches


def _prepare(storage: str | None, files: int) -> Demo:
    url = resolve_url(METASTORE)
    migrate(url)
    storage = storage or str(BUILD / "storage")
    arguments = {
        "--source": BUILD / "source",
        "--storage": storage,
        "--metastore": METASTORE,
        "--spark-checkpoint": BUILD / "spark-checkpoint",
        "--local-dir": BUILD / "local",
        "--job": JOB,
        "--parallelism": 4,
        "--files-per-batch": files // BATCHES,
        "--materialize-interval": "5 s",
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    return Demo(url, words, BUILD / "stream.log")


def _staged(bars: Progress) -> list[Path]:
    task = bars.add_task("Copy the standard library's source text", total=1)
    files = stage(BUILD / "source")
    bars.update(task, completed=1)
    return files


def _stream(demo: Demo, bars: Progress) -> int:
    """Runs the stream, kills it in the middle of a batch, runs it to its end."""
    task = bars.add_task("Stream (killed once)", total=BATCHES)
    stream = Stream(demo.arguments, demo.log)
    try:
        while stream.running() and (done := batches_done(demo.url, JOB)) < KILL_AFTER_BATCHES:
            bars.update(task, completed=done)
            time.sleep(0.1)
        killed_in = wait_for_middle_of_batch(stream, demo.url, JOB)
        stream.kill()
        bars.update(task, description=f"Stream (killed in checkpoint {killed_in}, restarted)")
        stream = Stream(demo.arguments, demo.log)
        while stream.running():
            done = batches_done(demo.url, JOB)
            bars.update(task, completed=done, total=max(BATCHES, done))
            time.sleep(0.2)
    finally:
        stream.stop()
    done = batches_done(demo.url, JOB)
    bars.update(task, completed=done, total=done)
    return killed_in


def _count(files: list[Path], bars: Progress) -> Counter[tuple[str, str]]:
    task = bars.add_task("Count the same words in plain Python", total=len(files))
    return count_words(files, lambda: bars.advance(task))


def _clean_up(airflow: LocalAirflow, bars: Progress) -> None:
    task = bars.add_task("Clean up with Airflow", total=3)
    airflow.wait_ready(DAG, POOLS, timeout_s=120)
    bars.advance(task)
    run_id = airflow.trigger(DAG, {"job": JOB})
    bars.advance(task)
    airflow.wait_for_run(DAG, run_id, timeout_s=120)
    bars.advance(task)


def _check(demo: Demo, expected: Counter[tuple[str, str]], killed_in: int, console: Console) -> int:
    with open_engine(demo.url).connect() as connection:
        counted = counted_words(connection, JOB)
        report = make_report(connection, JOB, counted, expected, killed_in)
    (BUILD / "report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n")
    report.print(console)
    return report.mismatches


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
