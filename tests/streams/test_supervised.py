"""`cairn.run`: a query that is rescaled, stopped and started again in one application."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from sqlalchemy import text

import cairn
from cairn.catalog.catalog import Catalog
from cairn.cli.app import main
from cairn.errors import BadInputError
from tests.streams.streams import (
    OUTPUT,
    FailsWhile,
    Remember,
    Settings,
    WrongType,
    expected_state,
    newest_state,
    retained,
    rows,
    write_source,
)

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]
SOON = cairn.RestartPolicy(first_delay_ms=1, max_delay_ms=1)


class Query:
    """Builds a query, and notes at which parallelism."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        processor: StatefulProcessor | None = None,
        *,
        ends: bool = False,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._processor = processor or Remember()
        self._trigger: dict[str, Any] = (
            {"availableNow": True} if ends else {"processingTime": "100 milliseconds"}
        )
        self.parallelism: list[int] = []

    def __call__(self, job: cairn.Job) -> StreamingQuery:
        self.parallelism.append(job.spec.parallelism)
        grouped = job.groupBy(rows(self._spark, self._settings), "key")
        df = grouped.transformWithState(self._processor, OUTPUT, "Update", "None")
        writer = df.writeStream.outputMode("update").format("noop").trigger(**self._trigger)
        return writer.option("checkpointLocation", self._settings.spark_checkpoint).start()


@contextmanager
def running(query: Query, settings: Settings) -> Iterator[Future[None]]:
    """Supervises a query in a thread. One that is left running is stopped."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(cairn.run, query, settings.cairn_job(), restart=SOON)
        try:
            yield future
        finally:
            if not future.done():
                main(["stop", settings.job, "--metastore", settings.metastore])


def wait_for(done: Callable[[], bool], future: Future[None]) -> None:
    deadline_s = time.monotonic() + 60
    while not done():
        assert not future.done(), future.exception()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def batches(settings: Settings) -> int:
    with Catalog(settings.metastore).begin() as connection:
        found = connection.scalar(
            text("SELECT count(*) FROM cairn.checkpoints WHERE completed_at IS NOT NULL")
        )
    return int(found or 0)


def told(settings: Settings, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["requests", settings.job, "--json", "--metastore", settings.metastore]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_running_query_goes_on_at_another_parallelism_and_ends_with_a_savepoint(
    spark: SparkSession, stream: MakeStream, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = stream(2, parallelism=3)
    source, metastore = Path(settings.source), ["--metastore", settings.metastore]
    query = Query(spark, settings)
    with running(query, settings) as future:
        wait_for(lambda: batches(settings) >= 2, future)
        rescale = ["rescale", settings.job, "--parallelism", "5", *metastore]
        assert main([*rescale, "--dry-run"]) == 0
        assert main([*rescale, "--no-wait"]) == 0
        wait_for(lambda: query.parallelism == [3, 5], future)
        write_source(source, 4)
        wait_for(lambda: told(settings, capsys)[0]["status"] == "DONE", future)
        assert main(["stop", settings.job, "--savepoint", "before-upgrade", *metastore]) == 0
        future.result(timeout=30)
    newest = max(retained(settings.metastore, settings.job))
    stopped = told(settings, capsys)[0]
    assert (stopped["status"], stopped["checkpoint_id"]) == ("DONE", newest), "the last batch"
    assert main(["pins", settings.job, "--json", *metastore]) == 0
    [pin] = json.loads(capsys.readouterr().out)
    assert (pin["checkpoint_id"], pin["kind"], pin["name"]) == (
        newest,
        "savepoint",
        "before-upgrade",
    )
    assert newest_state(settings.metastore) == expected_state(4)

    # The parallelism that was asked for holds, until the code has another one.
    write_source(source, 5)
    for given, used in ((3, 5), (2, 2)):
        again = Query(spark, settings, ends=True)
        cairn.run(again, replace(settings, parallelism=given).cairn_job())
        assert again.parallelism == [used]
    assert newest_state(settings.metastore) == expected_state(5)


def test_a_query_that_failed_starts_again_and_loses_nothing(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(2)
    flag = tmp_path / "away"
    flag.touch()
    query = Query(spark, settings, FailsWhile(flag), ends=True)

    def build(job: cairn.Job) -> StreamingQuery:
        if query.parallelism:
            flag.unlink()
        return query(job)

    cairn.run(build, settings.cairn_job(), restart=SOON)
    assert query.parallelism == [3, 3]
    assert newest_state(settings.metastore) == expected_state(2)


def test_an_error_that_waiting_does_not_mend_is_raised_at_once(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(1)
    query = Query(spark, settings, WrongType(), ends=True)
    with pytest.raises(StreamingQueryException) as raised:
        cairn.run(query, settings.cairn_job(), restart=SOON)
    assert isinstance(cairn.cause_of(raised.value), BadInputError)
    assert query.parallelism == [3]
