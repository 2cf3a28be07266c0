"""A batch much larger than a task's memory passes through one task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streams.big import Weighing
from tests.streams.streams import OUTPUT, Settings, newest_state, start

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]
ROWS = 75_000
PAYLOAD_BYTES = 4_000
KEYS = 1_000
HUGE = 3
"""Every row whose number this divides is of one key."""


def test_a_batch_much_larger_than_a_tasks_memory_is_processed_in_bounded_memory(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(0, parallelism=1, options={"cairn.task.memory-size": "16 mb"})
    key = f"if(id % {HUGE} = 0, 'huge', string(id % {KEYS}))"
    rows = spark.range(0, ROWS, 1, 1).selectExpr(
        f"{key} AS key", f"rpad(string(id), {PAYLOAD_BYTES}, 'x') AS payload"
    )
    rows.write.mode("append").parquet(settings.source)
    report = tmp_path / "peak"
    read = spark.readStream.schema(rows.schema).parquet(settings.source)
    df = settings.cairn_job().groupBy(read, "key")
    weighed = df.transformWithState(Weighing(report), OUTPUT, "Update", "None")
    report.unlink(missing_ok=True)  # what closing it in this process has left
    start(weighed, settings).awaitTermination()
    counts = {key: n for (_, key, _), n in newest_state(settings.metastore).items()}
    assert counts.pop("huge") == ROWS // HUGE
    assert len(counts) == KEYS
    assert sum(counts.values()) == ROWS - ROWS // HUGE
    assert int(report.read_text()) < 450 * 1024
