"""One start of a query on the restore benchmark's state, in a process of its own.

python -m benchmarks.restore_spark < ORDERS, one a line, prints a `Start` as JSON for each. A
process of its own has nothing of the state: not in Java, not in RocksDB's local directory, which is
new with each start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import text

import cairn
from benchmarks.processors import Latest
from benchmarks.restore_rows import SCHEMA
from benchmarks.session import ROOT, spark_session
from cairn.catalog.catalog import Catalog

NATIVE, CAIRN = "native", "cairn"
_OUTPUT = "key string, value long, checksum long"
_RESTORED = (
    "SELECT max(a.restore_ms) FROM cairn.subtask_acks a"
    " JOIN cairn.checkpoints c USING (job_id, checkpoint_id) JOIN cairn.jobs j USING (job_id)"
    " WHERE j.name = :job AND c.batch_id = :batch"
)


class SparkFailedError(Exception):
    """A start did not do what it was told to."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: a batch for each file, after a small query of the same kind to warm up.

    Attributes:
        directory: the query's own, which outlives the start.
        metastore: a PostgreSQL URL, for Cairn.
        restore_from: the manifest that a job of Cairn without state starts from.
        collects: whether the output of the first batch is wanted.
    """

    engine: str
    directory: str
    files: list[str]
    warm_up: str
    parallelism: int
    log: str
    metastore: str = ""
    restore_from: str = ""
    collects: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What one start did.

    Attributes:
        add_batch_ms, trigger_ms: by batch, as Spark's progress tells.
        restore_ms: Cairn's subtask that took longest in the first batch.
        native_ms: RocksDB's metrics of loading in the first batch, sums over the partitions.
        output: the first batch's rows, sorted.
    """

    add_batch_ms: list[int]
    trigger_ms: list[int]
    restore_ms: int | None = None
    native_ms: dict[str, int] = field(default_factory=dict)
    output: list[tuple[str, int, int]] = field(default_factory=list)


def start(order: Order) -> Start:
    """Runs the order in a new process.

    Raises:
        SparkFailedError: the process failed; its log tells why.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restore_spark"],
        input=json.dumps(asdict(order)).encode(),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise SparkFailedError(f"{order.engine} failed:\n{done.stderr.decode()[-3000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Start)


def run(order: Order) -> Start:
    """Runs the order in this process."""
    directory = Path(order.directory)
    with spark_session(Path(order.log)) as session:
        session.conf.set("spark.sql.shuffle.partitions", str(order.parallelism))
        warm = directory / f"warm-{len(list(directory.glob('warm-*')))}"
        _run_files(session, order, warm, [Path(order.warm_up)], None)
        tables: list[pa.Table] = []
        collected = tables if order.collects else None
        files = [Path(file) for file in order.files]
        progress = _run_files(session, order, directory, files, collected)
    durations = [batch["durationMs"] for batch in progress]
    rows = tables[0].to_pylist() if tables else []
    return Start(
        [found["addBatch"] for found in durations],
        [found["triggerExecution"] for found in durations],
        _restore_ms(order, progress[0]["batchId"]) if order.engine == CAIRN else None,
        _native_ms(progress[0]) if order.engine == NATIVE else {},
        sorted((row["key"], row["value"], row["checksum"]) for row in rows),
    )


def _run_files(
    session: SparkSession,
    order: Order,
    directory: Path,
    files: Sequence[Path],
    tables: list[pa.Table] | None,
) -> list[Mapping[str, Any]]:
    source = directory / "source"
    source.mkdir(parents=True, exist_ok=True)
    for file in files:
        os.link(file, source / file.name)
    stream = _plan(session, order, source, directory)
    writer = stream.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    if tables is None:
        query = writer.format("noop").start()
    else:
        query = writer.foreachBatch(lambda df, _: tables.append(df.toArrow())).start()
    try:
        query.awaitTermination()
        found = [json.loads(one.json) for one in query.recentProgress]
    finally:
        query.stop()
    progress: list[Mapping[str, Any]] = [one for one in found if one["numInputRows"]]
    if len(progress) != len(files):
        raise SparkFailedError(f"{order.engine}: {len(progress)} batches of {len(files)} files")
    return progress


def _plan(session: SparkSession, order: Order, source: Path, directory: Path) -> DataFrame:
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(source))
    grouped = rows.groupBy("key")
    if order.engine == CAIRN:
        is_warm_up = directory != Path(order.directory)
        job = cairn.Job(
            str(directory),
            storage=str(directory / "storage"),
            metastore=order.metastore,
            parallelism=order.parallelism,
            # Once restored, nothing else shall run beside what is timed.
            options={
                "cairn.local-dir": str(directory / "local"),
                "cairn.changelog.periodic-materialize.interval": "1 d",
            },
            restore_from=None if is_warm_up else order.restore_from,
        )
        grouped = job.groupBy(rows, "key")  # type: ignore[assignment]  # the same methods
    return grouped.transformWithState(Latest(), _OUTPUT, "Update", "None")


def _restore_ms(order: Order, batch_id: int) -> int:
    with Catalog(order.metastore).begin() as connection:
        found = connection.scalar(text(_RESTORED), {"job": order.directory, "batch": batch_id})
    if found is None:
        raise SparkFailedError(f"no acks of batch {batch_id}")
    return int(found)


def _native_ms(progress: Mapping[str, Any]) -> dict[str, int]:
    [operator] = progress["stateOperators"]
    return {
        name: int(value)
        for name, value in operator["customMetrics"].items()
        if name.startswith(("rocksdbLoad", "rocksdbReplay", "rocksdbNumReplay"))
    }


def main() -> None:
    """Carries out the orders on the standard input."""
    for line in sys.stdin.buffer:
        started = run(msgspec.json.decode(line, type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")


if __name__ == "__main__":
    main()
