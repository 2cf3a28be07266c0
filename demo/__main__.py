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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from cairn.airflow_ext.pools import MAINTENANCE_POOL
from cairn.catalog.catalog import METASTORE_VARIABLE, Catalog
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from cairn.cli.output import progress_bars
from cairn.errors import CairnError
from cairn.maintenance.storages import STORAGES_VARIABLE
from cairn.storage import normalise_url
from demo.airflow import LocalAirflow
from demo.report import DemoReport, make_report
from demo.source import count_words, stage
from demo.stream import Stream, batches_done, begun_checkpoint, compacted_subtasks, rows_read
from demo.usage import usage

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "demo"
METASTORE = f"embedded:{BUILD / 'metastore'}"
JOB = "wordcount"
BATCHES = 20
KILL_AFTER_BATCHES = 8
DAG = "subsumption_cleanup"
POOLS = {MAINTENANCE_POOL: 2}
PARALLELISM = 4
STEP_S = 600
"""More than any step takes on a slow and busy machine."""

Counts = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Demo:
    """Where one run of the demo keeps its things."""

    catalog: Catalog
    arguments: list[str]
    log: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 1 if a step failed, a count is wrong, or nothing was cleaned up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--storage", help="s3://bucket/prefix; default: a local directory")
    args = parser.parse_args(argv)
    console = Console()
    began = time.monotonic()
    try:
        report = _run(args.storage or str(BUILD / "storage"), console)
    except CairnError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    (BUILD / "report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n")
    report.print(console)
    console.print(f"Took {time.monotonic() - began:.0f} s. Report: build/demo/report.json")
    for problem in report.problems():
        console.print(problem, style="red")
    if report.problems():
        return 1
    console.print(
        "Every count is right, and the cleanup freed what it says. Check what is left with:"
    )
    for command in _checks(args.storage):
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _checks(s3: str | None) -> list[str]:
    """Returns what prints files and bytes by the metastore, and by a listing of the storage."""
    metrics = f".venv/bin/cairn metrics {JOB} --table --metastore {METASTORE}"
    by_metastore = f"{metrics} | grep physicalFile"
    if s3:
        return [by_metastore, f"aws s3 ls --recursive --summarize {s3}/{JOB}-"]
    sizes = f"find {BUILD / 'storage'} -name '*.seg' -printf '%s\\n'"
    return [by_metastore, f"{sizes} | awk '{{n += $1}} END {{print NR, n}}'"]


def _run(storage: str, console: Console) -> DemoReport:
    if BUILD.exists():
        stop(METASTORE)
        shutil.rmtree(BUILD)
    BUILD.mkdir(parents=True)
    with progress_bars(keep=True) as bars, ThreadPoolExecutor(2) as background:
        files = _staged(bars)
        demo = _prepare(storage, len(files))
        airflow = LocalAirflow(
            BUILD / "airflow",
            dags=ROOT / "dags",
            port=_free_port(),
            variables={METASTORE_VARIABLE: METASTORE, STORAGES_VARIABLE: normalise_url(storage)},
        )
        counting = background.submit(_count, files, bars)
        migrating = background.submit(airflow.migrate)
        killed_in = _stream(demo, counting, bars)
        with demo.catalog.begin() as connection:
            before = usage(connection, JOB)
        migrating.result()
        try:
            airflow.start()
            cleanup = _clean_up(airflow, bars)
        finally:
            airflow.stop()
    with demo.catalog.begin() as connection:
        report = make_report(connection, JOB, counting.result(), killed_in, before, cleanup)
    stop(METASTORE)
    return report


def _prepare(storage: str, files: int) -> Demo:
    catalog = Catalog(resolve_url(METASTORE))
    migrate(catalog)
    arguments = {
        "--source": BUILD / "source",
        "--storage": storage,
        "--metastore": METASTORE,
        "--spark-checkpoint": BUILD / "spark-checkpoint",
        "--local-dir": BUILD / "local",
        "--job": JOB,
        "--parallelism": PARALLELISM,
        "--files-per-batch": files // BATCHES,
        "--materialize-interval": "5 s",
        # The demo shows files being deleted, and is over before the default would delete one.
        "--file-retention": "0 s",
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    return Demo(catalog, ["--keep-running", "--heartbeat", *words], BUILD / "stream.log")


def _staged(bars: Progress) -> list[Path]:
    task = bars.add_task("Copy the standard library's source text", total=1)
    files = stage(BUILD / "source")
    bars.update(task, completed=1)
    return files


def _count(files: list[Path], bars: Progress) -> Counts:
    task = bars.add_task("Count the words in plain Python", total=len(files))
    return count_words(files, lambda: bars.advance(task))


def _stream(demo: Demo, counting: Future[Counts], bars: Progress) -> int:
    """Streams until every word is in and there is something to clean up; returns the kill's batch.

    By then every subtask's changelog from before the kill is compacted, and the checkpoints that
    the cleanup keeps start from that.
    """
    killed_in = _stream_and_kill(demo, bars)
    stream = Stream(demo.arguments, demo.log)
    try:
        words = counting.result().total()
        task = bars.add_task("Stream the rest", total=words)
        stream.wait_for(
            f"checkpoint with all {words} words",
            lambda: _reached(words, rows_read(demo.catalog, JOB), bars, task),
            timeout_s=STEP_S,
        )
        task = bars.add_task("Stream on until it is compacted", total=PARALLELISM)
        stream.wait_for(
            f"base in all of the newest checkpoints for all {PARALLELISM} subtasks",
            lambda: _reached(
                PARALLELISM, compacted_subtasks(demo.catalog, JOB, since=killed_in), bars, task
            ),
            timeout_s=STEP_S,
        )
    finally:
        stream.stop()
    return killed_in


def _stream_and_kill(demo: Demo, bars: Progress) -> int:
    """Kills the stream in the middle of a batch; returns the id of its checkpoint."""
    task = bars.add_task("Stream, to be killed", total=KILL_AFTER_BATCHES)
    stream = Stream(demo.arguments, demo.log)
    try:
        stream.wait_for(
            f"checkpoint {KILL_AFTER_BATCHES}",
            lambda: _reached(KILL_AFTER_BATCHES, batches_done(demo.catalog, JOB), bars, task),
            timeout_s=STEP_S,
        )
        killed_in = stream.wait_for(
            "batch to be killed in", lambda: begun_checkpoint(demo.catalog, JOB), timeout_s=STEP_S
        )
    finally:
        stream.kill()
    bars.update(task, description=f"Stream (killed in checkpoint {killed_in})")
    return killed_in


def _reached(goal: int, now: int, bars: Progress, task: TaskID) -> bool | None:
    bars.update(task, completed=now)
    return now >= goal or None


def _clean_up(airflow: LocalAirflow, bars: Progress) -> dict[str, int]:
    """Returns the sums that the DAG run returned."""
    task = bars.add_task("Clean up with Airflow", total=3)
    airflow.wait_ready(DAG, POOLS, timeout_s=STEP_S)
    bars.advance(task)
    run_id = airflow.trigger(DAG, {"job": JOB})
    bars.advance(task)
    results = airflow.wait_for_run(DAG, run_id, timeout_s=STEP_S)
    bars.advance(task)
    sums: dict[str, int] = results["summarise"]
    return sums


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
