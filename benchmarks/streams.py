"""One engine's stream over one workload, started again for every repetition."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import cairn
from benchmarks.materializations import MaterializationWatch
from benchmarks.results import Repetition
from benchmarks.slow_s3 import SlowS3
from benchmarks.source import SCHEMA
from benchmarks.workloads import Engine, Kind, Workload
from cairn.catalog.catalog import Catalog
from cairn.keygroups import default_max_parallelism
from cairn.runtime.driver.routing import route, task_slots, with_key_hash
from cairn.runtime.executor.run_context import RunContext
from cairn.settings import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """Where the streams of one run of the benchmark keep their things."""

    directory: Path
    metastore: str
    s3: SlowS3


class FileKind(Enum):
    """What a state file is for: a batch's changes, or one of those written by the clock."""

    CHANGE = auto()
    SNAPSHOT = auto()
    CHECKSUM = auto()


def kind_of(path: Path) -> FileKind:
    """Returns what a file is in native's `state/` directory or in Cairn's storage."""
    if path.suffix == ".crc":
        return FileKind.CHECKSUM
    if path.suffix in (".zip", ".sst") or "shared" in path.parts or path.name == "_metadata":
        return FileKind.SNAPSHOT
    return FileKind.CHANGE


class Stream:
    """One engine's stream, which continues from its checkpoint whenever it is fed."""

    def __init__(self, workload: Workload, engine: Engine, place: Place) -> None:
        self.engine = engine
        self._workload = workload
        self._place = place
        self._parallelism = engine.parallelism or workload.parallelism
        self._directory = place.directory / engine.name
        self._source = self._directory / "source"
        self._checkpoint = self._directory / "checkpoint"
        self._storage = self._directory / "storage"
        for directory in (self._source, self._storage):
            directory.mkdir(parents=True)

    def run(self, session: SparkSession, files: Sequence[Path]) -> Repetition:
        """Runs a batch for each file."""
        repetition, _ = self._run(session, files, collect=False)
        return repetition

    def output(self, session: SparkSession, file: Path) -> pa.Table:
        """Returns what one batch puts out, sorted by all columns."""
        _, tables = self._run(session, [file], collect=True)
        table = pa.concat_tables(tables)
        return table.sort_by([(name, "ascending") for name in table.column_names])

    def _run(
        self, session: SparkSession, files: Sequence[Path], *, collect: bool
    ) -> tuple[Repetition, list[pa.Table]]:
        for file in files:
            os.link(file, self._source / file.name)
        session.conf.set("spark.sql.shuffle.partitions", str(self._parallelism))
        self._place.s3.delay_ms = self.engine.delay_ms or 0
        known = self._stored()
        tables: list[pa.Table] = []
        began_s = time.time()
        stream = self._plan(session)
        writer = stream.writeStream.outputMode("update").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if collect:
            query = writer.foreachBatch(lambda df, _: tables.append(df.toArrow())).start()
        else:
            query = writer.format("noop").start()
        watch = MaterializationWatch(self._directory / "local")
        try:
            with watch:
                query.awaitTermination()
            progress = [found for found in query.recentProgress if found["numInputRows"]]
        finally:
            query.stop()
            session.catalog.clearCache()  # the anchor of Cairn's plan; the next run has its own
        if len(progress) != len(files):
            raise RuntimeError(f"{self.engine.name}: {len(progress)} batches of {len(files)} files")
        kinds = Counter(map(kind_of, self._stored() - known))
        durations = [batch["durationMs"] for batch in progress]
        return Repetition(
            restart_ms=round((_span_s(progress[0])[1] - began_s) * 1000),
            first_batch_ms=durations[0]["triggerExecution"],
            add_batch_ms=[batch["addBatch"] for batch in durations[1:]],
            trigger_ms=[batch["triggerExecution"] for batch in durations[1:]],
            files=kinds[FileKind.CHANGE],
            snapshot_files=kinds[FileKind.SNAPSHOT],
            checksum_files=kinds[FileKind.CHECKSUM],
            requests=[self._requests(batch) for batch in progress[1:]],
            batches=len(progress),
            materializing=[watch.share(*_span_s(batch)) for batch in progress[1:]],
        ), tables

    def _plan(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(self._source)).select(*self._workload.columns)
        if self.engine.kind is Kind.FLOOR:
            return _pass_through(rows, self._parallelism)
        grouped = (
            rows.groupBy("key")
            if self.engine.kind is Kind.NATIVE
            else self._job().groupBy(rows, "key")
        )
        transform = (
            grouped.transformWithStateInPandas
            if self._workload.in_pandas
            else grouped.transformWithState
        )
        work = self._workload
        return transform(work.processor(), work.output, "Update", work.time_mode)

    def _job(self) -> cairn.Job:
        slow = self.engine.delay_ms is not None
        return cairn.Job(
            f"{self._workload.name}-{self.engine.name}",
            storage=self._place.s3.url if slow else str(self._storage),
            metastore=self._place.metastore,
            parallelism=self._parallelism,
            options={"cairn.local-dir": str(self._directory / "local"), **self.engine.options},
        )

    def _requests(self, progress: Any) -> int:  # noqa: ANN401 - see _span_s
        began_s, ended_s = _span_s(progress)
        return sum(began_s <= at_s < ended_s for at_s in self._place.s3.arrived_s)

    def _stored(self) -> set[Path]:
        """Returns the files that hold state, not those that hold offsets and commits."""
        found = [*(self._checkpoint / "state").rglob("*"), *self._storage.rglob("*")]
        return {path.relative_to(self._directory) for path in found if path.is_file()}


def _pass_through(rows: DataFrame, parallelism: int) -> DataFrame:
    """Returns the rows by way of Cairn's plan with nothing in it: the least it can cost."""
    names = rows.columns
    plan = RunContext(
        job="floor",
        job_id="floor",
        run_id="floor",
        epoch=0,
        parallelism=parallelism,
        max_parallelism=default_max_parallelism(parallelism),
        storage="",
        catalog=Catalog(""),
        settings=Settings(),
        tasks=min(parallelism, task_slots(rows.sparkSession) or parallelism),
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.select(names) for batch in batches)

    return route(with_key_hash(rows, ["key"]), plan).mapInArrow(run, rows.schema)


def _span_s(progress: Any) -> tuple[float, float]:  # noqa: ANN401 - its class is private
    """Returns when a batch began and ended, in seconds since the epoch."""
    began_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return began_s, began_s + progress["durationMs"]["triggerExecution"] / 1000
