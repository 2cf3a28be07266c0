"""Timers, TTL and watermark of whole streams, over restarts, other parallelisms and failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.streams.streams import Settings, newest_state, retained, start
from tests.streams.timed_streams import (
    CLOCK,
    EVENTS,
    WAIT_MS,
    Expected,
    FlakyEvents,
    late_rows,
    stream_of,
    times_of_batches,
    write_source,
)

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


@pytest.fixture(autouse=True)
def no_batches_without_data(spark: SparkSession) -> None:
    """A stream by processing time has no last batch else, as in Spark itself."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")


@pytest.fixture
def events(stream: MakeStream, tmp_path: Path) -> Settings:
    """Five subtasks, which two tasks share."""
    source = write_source(tmp_path / "timed", 6)
    return replace(stream(0, job=EVENTS, parallelism=5), source=source)


def run(
    spark: SparkSession,
    settings: Settings,
    processor: StatefulProcessor | None = None,
    each: Callable[[DataFrame, int], None] | None = None,
) -> None:
    start(stream_of(spark, settings, processor), settings, each).awaitTermination()


def assert_events(settings: Settings, files: int) -> None:
    """State, fired timers, watermarks and late rows are what they should be."""
    url, expected = settings.metastore, Expected.of_events(files)
    assert newest_state(url, EVENTS) == expected.state
    times = times_of_batches(url, EVENTS)
    assert {batch: times[batch][1] for batch in times} == expected.watermarks
    assert late_rows(url, EVENTS) == expected.late
    assert sum(expected.late.values()) > 5


def test_timers_by_event_time_fire_once_over_restarts_with_other_parallelisms(
    spark: SparkSession, events: Settings, tmp_path: Path
) -> None:
    for files, parallelism in ((6, 8), (8, 3), (11, 5)):
        write_source(Path(events.source), files)
        run(spark, replace(events, parallelism=parallelism))
        assert_events(events, files)


def test_timers_and_ttl_by_processing_time_outlive_restarts(
    spark: SparkSession, events: Settings
) -> None:
    settings = replace(events, job=CLOCK)
    for files, parallelism in ((4, 8), (6, 3), (10, 5)):
        write_source(Path(settings.source), files)
        run(spark, replace(settings, parallelism=parallelism))
        times = times_of_batches(settings.metastore, CLOCK)
        expected = Expected.of_clock({batch: times[batch][0] for batch in times})
        assert newest_state(settings.metastore, CLOCK) == expected.state


def test_a_sink_that_runs_the_plan_twice_fires_each_timer_once(
    spark: SparkSession, events: Settings
) -> None:
    def twice(df: DataFrame, batch: int) -> None:
        assert not df.isEmpty()
        df.collect()
        df.collect()

    run(spark, events, each=twice)
    assert_events(events, 6)


def test_a_task_that_fails_after_one_of_its_subtasks_leaves_the_state_right(
    spark: SparkSession, events: Settings
) -> None:
    run(spark, events, FlakyEvents())
    assert_events(events, 6)


def fired(settings: Settings) -> int:
    """Returns how many timers of the newest checkpoint's state have fired."""
    if not retained(settings.metastore, settings.job):
        return 0
    return sum(name == "fired" for name, _, _ in newest_state(settings.metastore, settings.job))


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("heartbeat", [True, False])
def test_timers_fire_while_the_source_is_idle_with_a_heartbeat_only(
    spark: SparkSession, events: Settings, heartbeat: bool
) -> None:
    write_source(Path(events.source), 1)
    for file in range(1, 6):
        (Path(events.source) / f"{file:05}.json").unlink()
    options = {"cairn.heartbeat.enabled": str(heartbeat)}
    settings = replace(events, job=CLOCK, options=options)
    writer = stream_of(spark, settings).writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", settings.spark_checkpoint)
    query = writer.trigger(processingTime="300 milliseconds").start()
    try:
        wait_until(
            lambda: not query.isActive or (fired(settings) > 0 if heartbeat else is_idle(query))
        )
        assert query.isActive, query.exception()
        assert (fired(settings) > 0) == heartbeat
        assert (len(times_of_batches(settings.metastore, CLOCK)) > 1) == heartbeat
    finally:
        query.stop()


def is_idle(query: StreamingQuery) -> bool:
    """Tells whether a query has found its source without new rows ten times longer than timers."""
    last = query.lastProgress
    return (
        last is not None
        and query.status["message"] == "Waiting for data to arrive"
        and (datetime.now(UTC) - datetime.fromisoformat(last["timestamp"])).total_seconds()
        > 5 * WAIT_MS / 1000
    )
