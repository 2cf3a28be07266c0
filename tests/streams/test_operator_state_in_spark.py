"""A processor with operator lists in real queries: other parallelisms, a savepoint, a batch."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cairn.catalog.catalog import Catalog
from cairn.cli.inspect import entries, find_content
from cairn.layout import manifest_file
from cairn.savepoints.write_manifest import pin
from metastore.enums import PinKind
from tests.streams.listing import Noting
from tests.streams.streams import OUTPUT, Settings, remembered, rows_of, start, write_source

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


def run(spark: SparkSession, settings: Settings) -> None:
    start(remembered(spark, settings, Noting()), settings).awaitTermination()


def lists_of(settings: Settings) -> tuple[Counter[int], dict[int, set[str]]]:
    """Returns the values that were seen, and by subtask the keys, as `cairn state` shows them."""
    content = Catalog(settings.metastore).run(
        "reading", lambda c: find_content(c, settings.job, None)
    )
    seen, keys = Counter[int](), defaultdict[int, set[str]](set)
    for row in entries(content):
        if row["state"] == "seen":
            seen[row["value"]["value"]] += 1
        elif row["state"] == "keys":
            keys[row["subtask"]].add(row["value"]["key"])
    return seen, keys


def assert_lists(settings: Settings, files: int, before_the_run: int) -> None:
    seen, keys = lists_of(settings)
    assert seen == Counter(value for file in range(files) for _, value in rows_of(file))
    old = {key for file in range(before_the_run) for key, _ in rows_of(file)}
    assert len(keys) == settings.parallelism
    assert all(known >= old for known in keys.values())
    everything = {key for file in range(files) for key, _ in rows_of(file)}
    assert set[str]().union(*keys.values()) == everything


def test_lists_go_on_over_restarts_with_other_parallelisms_and_from_a_savepoint(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(2, parallelism=3)
    run(spark, settings)
    assert_lists(settings, 2, 0)
    write_source(Path(settings.source), 4)
    settings = replace(settings, parallelism=2)
    run(spark, settings)
    assert_lists(settings, 4, 2)
    made = pin(Catalog(settings.metastore), settings.job, None, kind=PinKind.SAVEPOINT)
    write_source(Path(settings.source), 6)
    rest = tmp_path / "rest"
    shutil.copytree(settings.source, rest)
    for file in range(made.batch_id + 1):
        (rest / f"{file:05}.json").unlink()
    again = replace(
        settings,
        job="again",
        source=str(rest),
        parallelism=5,
        spark_checkpoint=str(tmp_path / "again-checkpoint"),
        local_dir=str(tmp_path / "again-local"),
        storage=(tmp_path / "again-storage").as_uri(),
        restore_from=f"{settings.storage}/{manifest_file(made.job_id, made.checkpoint_id)}",
    )
    run(spark, again)
    assert_lists(again, 6, made.batch_id + 1)


def test_in_a_batch_dataframe_lists_start_empty(spark: SparkSession, stream: MakeStream) -> None:
    df = spark.createDataFrame([("a", 1), ("a", 2)], "key string, value long")
    grouped = stream(0).cairn_job().groupBy(df, "key")
    out = grouped.transformWithState(Noting(), OUTPUT, "Update", "None").collect()
    assert [(row.key, row.n) for row in out] == [("a", 1)]
