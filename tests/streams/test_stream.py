"""A whole stream in one process: what it remembers, what it refuses, and what it survives."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import create_engine, func, make_url, select, text

from cairn import cause_of
from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.errors import BadInputError, StorageError
from cairn.layout import generation_of
from cairn.maintenance.cleanup import cleanup_job
from cairn.storage import open_store
from metastore.group_commits import Segment, SubtaskAck
from metastore.models import Checkpoint, PhysicalFile, Run
from tests.streams.streams import (
    Remember,
    Settings,
    WrongType,
    await_materialization,
    expected_state,
    newest_state,
    read_state,
    remembered,
    retained,
    start,
    write_source,
)

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


def run(spark: SparkSession, settings: Settings, **more: Any) -> None:
    start(
        remembered(spark, settings, more.pop("processor", None)), settings, **more
    ).awaitTermination()
    await_materialization(settings)


def scalar(url: str, statement: Any) -> Any:
    with Catalog(url).begin() as connection:
        return connection.scalar(statement)


def test_state_is_right_after_every_batch(spark: SparkSession, stream: MakeStream) -> None:
    settings = stream(5)
    run(spark, settings)
    states = {
        batch: read_state(settings.metastore, "small", checkpoint)
        for checkpoint, batch in retained(settings.metastore, "small").items()
    }
    assert states == {batch: expected_state(batch + 1) for batch in range(5)}


def test_restarts_with_other_parallelisms_and_machines_keep_the_state_and_cleanup_the_rest(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """The first run has no base; when the first machine is back, its state is a run old."""
    elsewhere, settings = str(tmp_path / "another-machine"), stream(2)
    run(spark, settings)
    # Without manifests, of which the newest would keep its checkpoint, too.
    always = {
        "cairn.changelog.periodic-materialize.interval": "1 ms",
        "cairn.manifest-interval": "0",
    }
    settings = replace(settings, options=always)
    for files, parallelism, local_dir in (
        (4, 5, settings.local_dir),
        (6, 2, elsewhere),
        (9, 3, settings.local_dir),
    ):
        write_source(Path(settings.source), files)
        run(spark, replace(settings, parallelism=parallelism, local_dir=local_dir))
        assert newest_state(settings.metastore) == expected_state(files)
    report = cleanup_job(Catalog(settings.metastore), "small")
    assert report.deleted_files > 0
    assert report.failed_deletes == 0
    stored = {found.path for found in open_store(settings.storage).list("")}
    with Catalog(settings.metastore).begin() as connection:
        known = set(
            connection.scalars(
                select(PhysicalFile.path).where(PhysicalFile.status.in_(["SEALED", "WRITING"]))
            )
        )
    assert {path for path in stored if generation_of(path) is None} == known
    assert sorted(retained(settings.metastore, "small").values()) == [5, 6, 7, 8]
    for checkpoint, batch in retained(settings.metastore, "small").items():
        assert read_state(settings.metastore, "small", checkpoint) == expected_state(batch + 1)


def test_a_sink_that_runs_the_plan_twice_leaves_the_state_right(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(4)

    def twice(df: DataFrame, batch: int) -> None:
        assert not df.isEmpty()
        df.collect()
        df.collect()

    run(spark, settings, each=twice)
    assert newest_state(settings.metastore) == expected_state(4)


def test_a_sink_that_reads_part_of_a_batch_is_refused_at_the_next(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(3)

    def peek(df: DataFrame, batch: int) -> None:
        df.take(1)

    with pytest.raises(Exception, match=r"never acknowledged batch 0.*downstream") as caught:
        run(spark, settings, each=peek)
    assert "RefusedError" in str(caught.value)


def test_a_sink_that_never_runs_the_plan_is_refused_at_the_next_batch(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(3)

    def ignore(df: DataFrame, batch: int) -> None:
        if batch == 1:
            df.collect()

    with pytest.raises(Exception, match="no checkpoint of batch 0"):
        run(spark, settings, each=ignore)


def test_a_task_that_fails_after_its_segment_was_written_leaves_the_state_right(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(3)

    def fail_first_attempt(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the sink failed")

    failing = remembered(spark, settings).mapInArrow(fail_first_attempt, "key string, n long")
    start(failing, settings).awaitTermination()
    assert newest_state(settings.metastore) == expected_state(3)
    dead = scalar(settings.metastore, select(func.count()).where(Segment.status == "DEAD"))
    assert dead == 9  # each of 3 subtasks wrote each of 3 batches twice


def test_empty_batches_are_acknowledged_by_every_subtask(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(3)
    (Path(settings.source) / "00001.json").write_text("")
    run(spark, settings)
    acks = scalar(settings.metastore, select(func.count()).select_from(SubtaskAck))
    assert acks == 9


def test_a_second_query_on_the_job_is_refused_by_the_name_of_the_first(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(2)
    first = start(remembered(spark, settings), settings)
    first.awaitTermination()
    other = replace(settings, spark_checkpoint=str(tmp_path / "other"))
    with pytest.raises(Exception, match=f"the job belongs to query {first.id}"):
        run(spark, other)
    write_source(Path(settings.source), 4)
    run(spark, settings)
    assert newest_state(settings.metastore) == expected_state(4)


def test_a_plan_that_is_only_built_fences_nobody(spark: SparkSession, stream: MakeStream) -> None:
    settings = stream(2)
    first = remembered(spark, settings)
    remembered(spark, settings)
    start(first, settings).awaitTermination()
    assert newest_state(settings.metastore) == expected_state(2)
    assert scalar(settings.metastore, select(func.count()).select_from(Run)) == 2


def test_a_newer_run_fences_the_older_one(spark: SparkSession, stream: MakeStream) -> None:
    settings = stream(2)
    older = remembered(spark, settings)
    run(spark, settings)
    write_source(Path(settings.source), 3)
    with pytest.raises(Exception, match=r"run 1 was replaced by run 2"):
        start(older, settings).awaitTermination()


def test_a_checkpoint_location_that_was_moved_back_is_refused(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(4)
    run(spark, settings)
    for name in ("offsets", "commits"):
        for batch in (2, 3):
            (Path(settings.spark_checkpoint) / name / str(batch)).unlink()
            (Path(settings.spark_checkpoint) / name / f".{batch}.crc").unlink()
    with pytest.raises(Exception, match="moved back or edited"):
        run(spark, settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"options": {"cairn.num-retaned": "3"}},
            "unknown option 'cairn.num-retaned'; did you mean cairn.num-retained",
        ),
        ({"options": {"cairn.num-retained": 1}}, "cairn.num-retained is 1; allowed: 2 to 10000"),
        ({"parallelism": 32769}, "parallelism is 32769; allowed: 1 to 32768.*Lower parallelism"),
        (
            {"parallelism": 129, "options": {"cairn.max-parallelism": "128"}},
            "parallelism is 129; allowed: 1 to 128, the value of cairn.max-parallelism",
        ),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"metastore": "mysql://x"}, "not a metastore"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(
    spark: SparkSession, stream: MakeStream, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        remembered(spark, stream(1, **changes))


def test_storage_that_cannot_be_written_is_refused_when_the_plan_is_built(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises((BadInputError, StorageError), match="a-file"):
        remembered(spark, stream(1, storage=str(tmp_path / "a-file" / "storage")))


def test_another_key_schema_is_refused_and_the_state_kept(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(2)
    run(spark, settings)
    df = spark.readStream.schema("key long, value long").json(settings.source)
    with pytest.raises(BadInputError, match=r"the key is key long, but .* with the key key string"):
        settings.cairn_job().groupBy(df, "key").transformWithState(
            Remember(), "key long, n long", "Update", "None"
        )
    assert newest_state(settings.metastore) == expected_state(2)


def test_a_value_of_the_wrong_type_is_refused_and_the_state_kept(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(2)
    run(spark, settings)
    write_source(Path(settings.source), 3)
    with pytest.raises(StreamingQueryException) as ended:
        run(spark, settings, processor=WrongType())
    cause = cause_of(ended.value)
    assert isinstance(cause, BadInputError)
    assert re.search(r"count.*n.*(?i:long).*many", cause.message)
    run(spark, settings)
    assert newest_state(settings.metastore) == expected_state(3)


def test_a_corrupt_segment_is_named_and_no_state_is_lost(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(3)
    run(spark, settings)
    with Catalog(settings.metastore).begin() as connection:
        path, offset = connection.execute(
            select(PhysicalFile.path, Segment.offset_bytes)
            .join(PhysicalFile, PhysicalFile.file_id == Segment.file_id)
            .where(Segment.first_checkpoint == 2)
            .limit(1)
        ).one()
    file = Path(settings.storage.removeprefix("file://")) / path
    good = file.read_bytes()
    file.write_bytes(bytes([*good[: offset + 40], good[offset + 40] ^ 1, *good[offset + 41 :]]))
    write_source(Path(settings.source), 4)
    elsewhere = replace(settings, local_dir=str(tmp_path / "another-machine"))
    message = rf"CorruptSegmentError.*job small, checkpoint 2, file {path}, offset {offset}"
    with pytest.raises(Exception, match=message):
        run(spark, elsewhere)
    file.write_bytes(good)
    run(spark, elsewhere)
    assert newest_state(settings.metastore) == expected_state(4)


def test_a_metastore_away_during_a_batch_is_waited_for(
    spark: SparkSession, stream: MakeStream, metastore_url: str
) -> None:
    settings = stream(6, options={"cairn.metastore.timeout": "60 s"})
    query = start(remembered(spark, settings), settings)
    wait_for_batch(metastore_url, 2)
    with closed_to_connections(metastore_url, 3):
        pass
    query.awaitTermination()
    assert newest_state(metastore_url) == expected_state(6)


def test_a_metastore_away_for_good_is_a_clear_error_and_no_state_is_lost(
    spark: SparkSession, stream: MakeStream, metastore_url: str
) -> None:
    settings = stream(6, options={"cairn.metastore.timeout": "2 s"})
    query = start(remembered(spark, settings), settings)
    wait_for_batch(metastore_url, 2)
    with (
        closed_to_connections(metastore_url, 0),
        pytest.raises(Exception, match="MetastoreError"),
    ):
        query.awaitTermination()
    run(spark, settings)
    assert newest_state(metastore_url) == expected_state(6)


def wait_for_batch(url: str, batch: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reached = scalar(url, select(func.max(Checkpoint.batch_id)))
        if reached is not None and reached >= batch:
            return
        time.sleep(0.02)
    raise AssertionError(f"batch {batch} never began")


class closed_to_connections:
    """Throws everybody out of a database and lets nobody in, for at least so many seconds."""

    def __init__(self, url: str, seconds: float) -> None:
        self._engine = make_url(url)
        self._seconds = seconds

    def __enter__(self) -> None:
        name = self._engine.database
        self._admin = create_engine(
            self._engine.set(database="postgres"), isolation_level="AUTOCOMMIT"
        )
        with self._admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :n"),
                {"n": name},
            )
        time.sleep(self._seconds)

    def __exit__(self, *_: object) -> None:
        dispose_engines()  # this process's own connections are gone too
        with self._admin.connect() as connection:
            connection.execute(
                text(f"ALTER DATABASE {self._engine.database} ALLOW_CONNECTIONS true")
            )
        self._admin.dispose()
