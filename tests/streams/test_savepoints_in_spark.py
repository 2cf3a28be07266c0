"""Savepoints and a lost metastore with real queries: nothing counts twice or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.errors import BadInputError
from cairn.layout import manifest_file
from cairn.savepoints.rebuild import rebuild
from cairn.savepoints.write_manifest import pin
from metastore.enums import PinKind
from tests.streams import timed_streams
from tests.streams.streams import (
    OUTPUT,
    Remember,
    Settings,
    expected_state,
    newest_state,
    remembered,
    retained,
    start,
    write_source,
)
from tests.streams.timed_streams import EVENTS, Expected, stream_of, times_of_batches

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


def run(spark: SparkSession, settings: Settings, **more: Any) -> None:
    start(remembered(spark, settings), settings, **more).awaitTermination()


def savepoint(settings: Settings) -> tuple[str, int]:
    """Returns the URL of a savepoint of the newest confirmed checkpoint, and its batch."""
    made = pin(Catalog(settings.metastore), settings.job, None, kind=PinKind.SAVEPOINT)
    return f"{settings.storage}/{manifest_file(made.job_id, made.checkpoint_id)}", made.batch_id


def without(settings: Settings, files: int, directory: Path) -> str:
    """Returns a source with all files but the first ones, which a savepoint has seen."""
    shutil.copytree(settings.source, directory)
    for file in range(files):
        (directory / f"{file:05}.json").unlink()
    return str(directory)


def restored(settings: Settings, url: str, tmp_path: Path, **changes: object) -> Settings:
    """Returns the settings of a new job with directories of its own."""
    facts: dict[str, Any] = {
        "job": "again",
        "spark_checkpoint": str(tmp_path / "again-checkpoint"),
        "local_dir": str(tmp_path / "again-local"),
        "storage": (tmp_path / "again-storage").as_uri(),
        "restore_from": url,
        **changes,
    }
    return replace(settings, **facts)


def test_a_new_job_at_another_parallelism_goes_on_from_a_savepoint_without_its_source(
    spark: SparkSession,
    stream: MakeStream,
    tmp_path: Path,
    other_url: str,
) -> None:
    settings = stream(5, options={"cairn.changelog.periodic-materialize.interval": "1 s"})
    run(spark, settings)
    url, batch = savepoint(settings)
    assert batch == 3, "batch 4 is not confirmed"
    write_source(Path(settings.source), 8)
    again = restored(
        settings,
        url,
        tmp_path,
        source=without(settings, batch + 1, tmp_path / "rest"),
        metastore=other_url,
        parallelism=5,
    )
    remembered(spark, again)  # a plan that is only built copies, and the next one does not
    shutil.rmtree(tmp_path / "storage")
    run(spark, again)
    assert newest_state(again.metastore, "again") == expected_state(8)
    assert sorted(retained(again.metastore, "again").values()) == [-1, 0, 1, 2, 3]
    write_source(Path(settings.source), 9)
    shutil.copy(Path(settings.source) / "00008.json", again.source)
    run(spark, again)
    assert newest_state(again.metastore, "again") == expected_state(9)


def test_a_batch_dataframe_is_not_restored(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = restored(stream(1), "/nowhere/job/chk-1/_metadata", tmp_path)
    df = spark.createDataFrame([("a", 1)], "key string, value long")
    grouped = settings.cairn_job().groupBy(df, "key")
    with pytest.raises(BadInputError, match="leave out restore_from"):
        grouped.transformWithState(Remember(), OUTPUT, "Update", "None")


def lose(settings: Settings, url: str) -> Settings:
    """Returns the settings with a metastore rebuilt at `url`; the old one's jobs are gone."""

    def drop(connection: Any) -> None:
        connection.exec_driver_sql("DROP SCHEMA cairn CASCADE")

    Catalog(settings.metastore).run("losing the metastore", drop)
    dispose_engines()
    report = rebuild(Catalog(url), settings.storage, takes_over=True)
    assert (len(report.jobs), report.problems) == (1, ())
    return replace(settings, metastore=url)


def test_a_query_continues_exactly_once_with_a_rebuilt_metastore(
    spark: SparkSession, stream: MakeStream, other_url: str
) -> None:
    settings = stream(5, options={"cairn.manifest-interval": "1"})

    def fail(df: DataFrame, batch: int) -> None:
        df.collect()
        if batch == 4:
            raise RuntimeError("the sink failed")

    with pytest.raises(Exception, match="the sink failed"):
        run(spark, settings, each=fail)
    write_source(Path(settings.source), 7)
    after = lose(settings, other_url)
    run(spark, after)
    assert newest_state(after.metastore) == expected_state(7)


def test_a_query_that_is_ahead_is_refused_until_it_is_rolled_back_as_told(
    spark: SparkSession, stream: MakeStream, other_url: str
) -> None:
    settings = stream(5, options={"cairn.manifest-interval": "2"})
    run(spark, settings)
    write_source(Path(settings.source), 6)
    after = lose(settings, other_url)
    told = (
        r"no checkpoint of batch 4; the newest is of batch 3.*above 3 in .*above 4 in its offsets"
    )
    with pytest.raises(Exception, match=told):
        run(spark, after)
    for log, newest in (("commits", 3), ("offsets", 4)):
        for file in (Path(settings.spark_checkpoint) / log).iterdir():
            if int(file.name.strip(".").split(".")[0]) > newest:
                file.unlink()
    for files in (6, 7):
        write_source(Path(settings.source), files)
        run(spark, after)
        assert newest_state(after.metastore) == expected_state(files)


def test_timers_and_watermark_go_on_from_the_savepoint(
    spark: SparkSession, stream: MakeStream, tmp_path: Path, other_url: str
) -> None:
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    source = timed_streams.write_source(tmp_path / "timed", 6)
    settings = replace(stream(0, job=EVENTS, parallelism=3), source=source)
    start(stream_of(spark, settings), settings).awaitTermination()
    url, batch = savepoint(settings)
    timed_streams.write_source(Path(source), 12)
    again = restored(
        settings,
        url,
        tmp_path,
        job=EVENTS,
        source=without(settings, batch + 1, tmp_path / "rest"),
        metastore=other_url,
        parallelism=4,
    )
    start(stream_of(spark, again), again).awaitTermination()
    expected = Expected.of_events(12)
    assert newest_state(again.metastore, EVENTS) == expected.state
    watermarks = {n: times[1] for n, times in times_of_batches(again.metastore, EVENTS).items()}
    assert watermarks == {n: expected.watermarks[n + batch + 1] for n in watermarks}
