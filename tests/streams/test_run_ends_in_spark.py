"""How a driver notices the end of its queries: several at once, with errors, and when it exits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.runtime.driver import run_watch
from tests.streams.streams import ROOT, Settings, WrongType, dump, remembered, start

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


def states(settings: Settings) -> dict[str, str]:
    with Catalog(settings.metastore).begin() as connection:
        found = connection.execute(text("SELECT job_name, run_state FROM cairn.v_jobs"))
        return {row.job_name: row.run_state for row in found}


def test_of_several_queries_those_that_are_over_have_ended(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(1)
    done, failing, idle = (
        replace(settings, job=job, spark_checkpoint=str(tmp_path / job))
        for job in ("done", "failing", "idle")
    )
    start(remembered(spark, done), done).awaitTermination()
    with pytest.raises(StreamingQueryException):
        start(remembered(spark, failing, WrongType()), failing).awaitTermination()
    writer = remembered(spark, idle).writeStream.outputMode("update").format("noop")
    waiting = writer.option("checkpointLocation", idle.spark_checkpoint).start()
    try:
        waiting.processAllAvailable()
        run_watch._watch.look()
        assert states(settings) == {"done": "ended", "failing": "ended", "idle": "running"}
    finally:
        waiting.stop()
    run_watch._watch.look()
    assert states(settings)["idle"] == "ended"


def test_a_query_with_asynchronous_progress_is_stopped(
    spark: SparkSession, stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    settings = stream(1)
    writer = remembered(spark, settings).writeStream.outputMode("update").format("noop")
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    query = writer.option("checkpointLocation", settings.spark_checkpoint).start()
    try:
        assert query.awaitTermination(60), "it is still active"
    finally:
        query.stop()
    assert "asyncProgressTrackingEnabled is true" in caplog.text
    run_watch._watch.look()
    assert states(settings) == {"small": "ended"}


def test_a_plan_that_is_started_twice_is_running_again(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(1)
    df = remembered(spark, settings)
    start(df, settings).awaitTermination()
    run_watch._watch.look()
    assert states(settings) == {"small": "ended"}
    writer = df.writeStream.outputMode("update").format("noop")
    again = writer.option("checkpointLocation", settings.spark_checkpoint).start()
    try:
        run_watch._watch.look()
        assert states(settings) == {"small": "running"}, "without a batch yet"
    finally:
        again.stop()


def test_a_driver_that_exits_after_its_query_notes_the_end(
    stream: MakeStream,
) -> None:
    settings = stream(1)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.streams.streams", dump(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert states(settings) == {"small": "ended"}
