"""The two engines: Spark's own transformWithState, and Cairn's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import cairn
from tests.conformance.reference import ScriptRow
from tests.conformance.scripts import INPUT

Batches = list[list[Row]]
"""The output rows of each batch."""


class Grouped(Protocol):
    """What Spark's GroupedData and Cairn's have in common."""

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: str,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Returns what the processor yields, as rows."""
        ...

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: str,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Returns what the processor yields, as pandas frames."""
        ...


@dataclass
class Engine:
    """One engine in one test: its directory is the test's own."""

    name: Literal["spark", "cairn"]
    session: SparkSession
    directory: Path
    metastore_url: str
    _files: dict[Path, int] = field(default_factory=dict)

    @property
    def is_cairn(self) -> bool:
        return self.name == "cairn"

    def group(
        self, df: DataFrame, *columns: Any, job: str = "first", parallelism: int = 2
    ) -> Grouped:
        """Returns the grouped DataFrame, which has transformWithState."""
        if self.is_cairn:
            return self.job(job, parallelism).groupBy(df, *columns)
        return df.groupBy(*columns)

    def job(self, name: str = "first", parallelism: int = 2) -> cairn.Job:
        """Returns one of the test's jobs."""
        return cairn.Job(
            f"{self.directory.name} {name}",
            storage=(self.directory / "storage").as_uri(),
            metastore=self.metastore_url,
            parallelism=parallelism,
            options={"cairn.local-dir": str(self.directory / "local")},
        )

    def add_file(self, rows: Sequence[dict[str, Any]], source: str = "source") -> None:
        """Writes the next input file of a source: one batch reads one file."""
        directory = self.directory / source
        directory.mkdir(exist_ok=True)
        number = self._files[directory] = self._files.get(directory, -1) + 1
        path = directory / f"{number:05}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)

    def read(self, schema: str = INPUT, source: str = "source") -> DataFrame:
        """Returns the stream of a source's files."""
        reader = self.session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.directory / source))

    def run(self, df: DataFrame, checkpoint: str = "checkpoint") -> Batches:
        """Runs a query to the end of its sources; returns what it gave in each new batch."""
        found: Batches = []
        query = (
            df.writeStream.outputMode("append")
            .foreachBatch(lambda output, _: found.append(output.collect()))
            .option("checkpointLocation", str(self.directory / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    def run_scripts(
        self,
        batches: Sequence[Sequence[ScriptRow]],
        transform: Callable[[DataFrame], DataFrame],
    ) -> Batches:
        """Runs script rows, one batch after another."""
        for rows in batches:
            self.add_file([_as_json(row) for row in rows])
        return self.run(transform(with_event_time(self.read())))


def frame(engine: Engine, rows: Sequence[ScriptRow]) -> DataFrame:
    """Returns script rows as a batch DataFrame."""
    found = [(row.key, row.at_ms, json.dumps(row.calls)) for row in rows]
    return engine.session.createDataFrame(found, INPUT).coalesce(1)


def with_event_time(df: DataFrame) -> DataFrame:
    """Returns script rows with their event time as the timestamp column `at`."""
    return df.withColumn("at", F.timestamp_millis("at_ms"))


def by_key(rows: Sequence[Row]) -> dict[str | None, list[tuple[str, str]]]:
    """Returns `(call, result)` of each key, in order: the order between keys is not defined."""
    found: dict[str | None, list[tuple[str, str]]] = {}
    for row in rows:
        found.setdefault(row["key"], []).append((row["call"], row["result"]))
    return found


def times(rows: Sequence[Row]) -> tuple[int, int]:
    """Returns the batch's processing time and watermark, from its first `times` call."""
    text = next(row["result"] for row in rows if row["call"] == '["times"]')
    processing_ms, watermark_ms = text.split()
    return int(processing_ms), int(watermark_ms)


def _as_json(row: ScriptRow) -> dict[str, Any]:
    return {"key": row.key, "at_ms": row.at_ms, "calls": json.dumps(row.calls)}
