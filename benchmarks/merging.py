"""`make bench-merging`: the proof of concept of FLIP-306 on Cairn, with native Spark beside it.

python -m benchmarks.merging [--batches N] [--json]

A word count in tumbling windows with 4 subtasks on one executor, aligned. With Cairn, each subtask
has operator state besides, as the operators of FLIP-306's job have. Counted are the files that are
created and deleted with merging off, within and across checkpoints: by the metastore's records, and
by listing the storage after every batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich import box
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select, text

import cairn
from benchmarks.common import positive, workplace
from benchmarks.lines import Line, lines_svg
from benchmarks.processors import ListedWindowCount, WindowCount
from benchmarks.session import spark_session
from benchmarks.source import SCHEMA, Source
from benchmarks.workloads import Workload
from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import resolve_url
from cairn.errors import CairnError
from cairn.locks import is_free
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.storages import STORAGES_VARIABLE
from metastore.enums import FileStatus
from metastore.models import PhysicalFile

SUBTASKS = 4
WINDOW_MS = 60_000
CLEANUP_EVERY = 5
"""Batches between cleanups."""
OUTPUT = "word string, window_end_ms long, n long"
WORDS = Workload(
    name="merging",
    about="words in tumbling windows",
    processor=WindowCount,
    columns=("key", "time_ms"),
    output=OUTPUT,
    rows=5_000,
    keys=1_000,
    parallelism=SUBTASKS,
    time_mode="EventTime",
)
FEWER_WITHIN, FEWER_ACROSS, FEWER_THAN_NATIVE = 0.75, 0.97, 0.95
_RETAINED = 3
_SAME_RETENTION = {
    "spark.sql.streaming.minBatchesToRetain": str(_RETAINED),
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to keep the state. `options` are the job's; None is native Spark."""

    name: str
    options: Mapping[str, object] | None


OFF = Mode("off", {"cairn.file-merging.enabled": False})
WITHIN = Mode("within", {})
ACROSS = Mode("across", {"cairn.file-merging.across-checkpoint-boundary": True})
NATIVE = Mode("native", None)
MODES = (NATIVE, OFF, WITHIN, ACROSS)


@dataclass(frozen=True, slots=True)
class Sample:
    """The storage after one batch. `amplification` is physical over live bytes, if any are live."""

    files: int
    size_bytes: int
    amplification: float | None


@dataclass
class Outcome:
    """What one mode did: files by listing, and as the metastore records them (native has none)."""

    mode: str
    created: int = 0
    deleted: int = 0
    recorded_created: int | None = None
    recorded_deleted: int | None = None
    samples: list[Sample] = field(default_factory=list)


class Listing:
    """Every file that was ever seen below a directory, and those that are there now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.seen: set[Path] = set()
        self.present: dict[Path, int] = {}

    def look(self) -> None:
        """Lists the directory anew."""
        found = {}
        for folder, _, names in os.walk(self._directory):
            for name in names:
                path = Path(folder, name)
                # Nor what says who owns the job's root.
                is_state = path.suffix != ".crc" and Path(folder).name != "owner"
                if is_state and not name.startswith(".tmp-"):
                    found[path] = path.stat().st_size
        self.present = found
        self.seen |= found.keys()


class WrongCountError(Exception):
    """Modes do not put out the same rows, or the listing contradicts the metastore."""


def run_mode(
    session: SparkSession, mode: Mode, files: Sequence[Path], directory: Path, metastore: str
) -> tuple[Outcome, pa.Table]:
    """Runs the word count over the files, a batch each; returns the counts and all output."""
    source, storage = directory / "source", directory / "storage"
    for made in (source, storage):
        made.mkdir(parents=True)
    os.environ[STORAGES_VARIABLE] = storage.absolute().as_uri()
    for file in files:
        os.link(file, source / file.name)
    checkpoint = directory / "checkpoint"
    listing = Listing(checkpoint / "state" if mode.options is None else storage)
    outcome, tables = Outcome(mode.name), list[pa.Table]()
    job = f"words-{mode.name}"

    def each(df: DataFrame, batch_id: int) -> None:
        tables.append(df.toArrow())
        listing.look()
        if mode.options is not None and batch_id % CLEANUP_EVERY == CLEANUP_EVERY - 1:
            cleanup_job(Catalog(resolve_url(metastore)), job)
            listing.look()
        outcome.samples.append(_sample(listing, mode, metastore, job))

    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    own = None if mode.options is None else _job(job, mode.options, directory, metastore)
    counted = _counted(_words(rows), own)
    writer = counted.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(each)
    writer.start().awaitTermination()
    _await_materialization(directory / "local")
    listing.look()
    _count(outcome, listing, mode, metastore, job)
    return outcome, pa.concat_tables(tables).sort_by(
        [("word", "ascending"), ("window_end_ms", "ascending")]
    )


def _counted(words: DataFrame, job: cairn.Job | None) -> DataFrame:
    key, how = ("word", "window_end_ms"), (OUTPUT, "Update", "EventTime")
    if job is None:
        return words.groupBy(*key).transformWithState(WindowCount(), *how)
    return job.groupBy(words, *key).transformWithState(ListedWindowCount(), *how)


def _job(name: str, options: Mapping[str, object], directory: Path, metastore: str) -> cairn.Job:
    return cairn.Job(
        name,
        storage=str(directory / "storage"),
        metastore=metastore,
        parallelism=SUBTASKS,
        options={
            "cairn.local-dir": str(directory / "local"),
            "cairn.num-retained": _RETAINED,
            # What is compared is how many files are needed, not how long others are kept.
            "cairn.file-retention": "0 s",
            # FLIP-306 counts files of state.
            "cairn.manifest-interval": 0,
            "cairn.changelog.periodic-materialize.interval": "20 s",
            **options,
        },
    )


def _await_materialization(local_directory: Path) -> None:
    for lock in local_directory.glob("*/tm/*/materializing.lock"):
        while list(lock.parent.glob("orders/*")) and not is_free(lock):
            time.sleep(0.05)


def _words(rows: DataFrame) -> DataFrame:
    end = (F.floor(F.col("time_ms") / WINDOW_MS) + 1) * WINDOW_MS
    return rows.select(
        F.col("key").alias("word"),
        F.timestamp_millis("time_ms").alias("at"),
        end.cast("long").alias("window_end_ms"),
    ).withWatermark("at", "10 seconds")


def _sample(listing: Listing, mode: Mode, metastore: str, job: str) -> Sample:
    size_bytes, amplification = sum(listing.present.values()), None
    if mode.options is not None:
        with Catalog(resolve_url(metastore)).begin() as connection:
            amplification = connection.scalar(
                text("SELECT ratio FROM cairn.v_space_amplification WHERE job_name = :job"),
                {"job": job},
            )
    return Sample(len(listing.present), size_bytes, amplification)


def _count(outcome: Outcome, listing: Listing, mode: Mode, metastore: str, job: str) -> None:
    """Fills in the counts.

    Raises:
        WrongCountError: the listing and the metastore do not know of the same files.
    """
    if mode.options is not None:
        cleanup_job(Catalog(resolve_url(metastore)), job)
        listing.look()
    outcome.created = len(listing.seen)
    outcome.deleted = len(listing.seen) - len(listing.present)
    if mode.options is None:
        return
    with Catalog(resolve_url(metastore)).begin() as connection:
        found = connection.execute(
            select(PhysicalFile.status, func.count())
            .where(PhysicalFile.path.like(f"{job}-%"))
            .group_by(PhysicalFile.status)
        )
        by_status = {status: int(files) for status, files in found}
    outcome.recorded_created = sum(by_status.values())
    outcome.recorded_deleted = by_status.get(FileStatus.DELETED, 0)
    recorded = (outcome.recorded_created, outcome.recorded_deleted)
    if recorded != (outcome.created, outcome.deleted):
        raise WrongCountError(
            f"{mode.name}: the listing saw {outcome.created} files made and {outcome.deleted} "
            f"deleted, the metastore records {recorded[0]} and {recorded[1]}"
        )


@dataclass(frozen=True, slots=True)
class Fewer:
    """By what share one mode creates fewer files than another, and what is wanted."""

    mode: str
    than: str
    share: float
    wanted: float


def fewer(outcomes: Sequence[Outcome]) -> list[Fewer]:
    """Returns the comparisons of FLIP-306's table."""
    created = {outcome.mode: outcome.created for outcome in outcomes}
    return [
        Fewer(mode.name, than.name, 1 - created[mode.name] / created[than.name], wanted)
        for mode, than, wanted in (
            (WITHIN, OFF, FEWER_WITHIN),
            (ACROSS, OFF, FEWER_ACROSS),
            (WITHIN, NATIVE, FEWER_THAN_NATIVE),
            (ACROSS, NATIVE, FEWER_THAN_NATIVE),
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs every mode; returns 1 if they disagree or one of them fails."""
    args = _arguments(argv)
    told = Console(stderr=True, highlight=False)
    try:
        outcomes = _run(args.batches, args.output, told)
    except (CairnError, WrongCountError) as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    measured = to_json(outcomes, args.batches)
    (args.output / "merging.json").write_text(json.dumps(measured, indent=2) + "\n")
    (args.output / "merging.svg").write_text(plot(outcomes))
    if args.json:
        print(json.dumps(measured, indent=2))
    else:
        _print(outcomes, Console())
        told.print(f"Counts and plot: {args.output}/merging.json, merging.svg", markup=False)
    return 0


def _run(batches: int, output: Path, told: Console) -> list[Outcome]:
    place = workplace(output / "work-merging")
    with place as (work, metastore), spark_session(output / "spark.log") as session:
        return measure(session, batches, work, metastore, told.print)


def measure(
    session: SparkSession,
    batches: int,
    work: Path,
    metastore: str,
    tell: Callable[[str], None],
    workload: Workload = WORDS,
) -> list[Outcome]:
    """Runs every mode over the same batches; returns the counts.

    Raises:
        WrongCountError: two modes put out different rows, or counts contradict each other.
    """
    outcomes: list[Outcome] = []
    first: pa.Table | None = None
    files = Source(workload, work / "input").batches(batches)
    session.conf.set("spark.sql.shuffle.partitions", str(SUBTASKS))
    for key, value in _SAME_RETENTION.items():
        session.conf.set(key, value)
    for mode in MODES:
        outcome, rows = run_mode(session, mode, files, work / mode.name, metastore)
        outcomes.append(outcome)
        tell(f"{mode.name}: {outcome.created} files, {outcome.deleted} deleted")
        first = rows if first is None else first
        if not rows.equals(first):
            raise WrongCountError(f"{mode.name} and {MODES[0].name} put out other rows")
    return outcomes


def _print(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table(title="State files", title_justify="left", box=box.SIMPLE)
    for column in ("mode", "created", "deleted", "left", "highest amplification"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for one in outcomes:
        ratios = [sample.amplification for sample in one.samples if sample.amplification]
        table.add_row(
            one.mode,
            str(one.created),
            str(one.deleted),
            str(one.created - one.deleted),
            f"{max(ratios):.2f}" if ratios else "",
        )
    console.print(table)
    for found in fewer(outcomes):
        verdict = "[green]ok" if found.share >= found.wanted else "[red]missed"
        console.print(
            f"{found.mode}: {found.share:.1%} fewer than {found.than}, "
            f"wanted {found.wanted:.0%} {verdict}"
        )


def to_json(outcomes: Sequence[Outcome], batches: int) -> dict[str, Any]:
    """Returns counts and comparisons as plain values."""
    return {
        "batches": batches,
        "subtasks": SUBTASKS,
        "modes": [asdict(outcome) for outcome in outcomes],
        "fewer": [asdict(one) for one in fewer(outcomes)],
    }


def plot(outcomes: Sequence[Outcome]) -> str:
    """Returns an SVG: files and space amplification of each mode, batch by batch."""
    files = [Line(one.mode, [float(s.files) for s in one.samples]) for one in outcomes]
    amplified = [
        Line(one.mode, [sample.amplification or 1.0 for sample in one.samples])
        for one in outcomes
        if one.recorded_created is not None
    ]
    return lines_svg({"files in storage": files, "space amplification": amplified})


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merging", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--batches", type=positive, default=100, help="default: %(default)s")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="directory; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
