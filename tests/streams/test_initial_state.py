"""Initial state is handed over once, whatever happens to the first batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import select, text

from cairn.catalog.catalog import Catalog
from cairn.maintenance.cleanup import cleanup_job
from cairn.storage import open_store
from metastore.models import PhysicalFile
from tests.streams.declaring import Seeded
from tests.streams.streams import (
    KEYS,
    OUTPUT,
    Settings,
    State,
    expected_state,
    newest_state,
    rows,
    start,
    write_source,
)

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]
SEEDED_KEYS = KEYS + 5
"""Some of them never have rows."""


def run(
    spark: SparkSession,
    settings: Settings,
    each: Callable[[DataFrame, int], None] | None = None,
) -> None:
    seeds = [(n, f"key-{key}") for key in range(SEEDED_KEYS) for n in (1000, 2000)]
    job, initial = settings.cairn_job(), spark.createDataFrame(seeds, "n long, name string")
    df = job.groupBy(rows(spark, settings), "key").transformWithState(
        Seeded(), OUTPUT, "Update", "None", initialState=job.groupBy(initial, "name")
    )
    start(df, settings, each).awaitTermination()


def seeded(files: int) -> State:
    """Returns the right state after the first files."""
    state = expected_state(files)
    for number in range(SEEDED_KEYS):
        key = f"key-{number}"
        state["count", key, ""] = state.get(("count", key, ""), 0) + 3000
        state["given", key, ""] = 2
    return state


def written(url: str) -> dict[int, set[str]]:
    """Returns the files of initial state that are not condemned, by run."""
    with Catalog(url).begin() as connection:
        found: dict[int, set[str]] = {}
        for epoch, path in connection.execute(
            select(PhysicalFile.epoch, PhysicalFile.path).where(PhysicalFile.status == "WRITING")
        ):
            found.setdefault(epoch, set()).add(path)
        return found


def clean(settings: Settings) -> None:
    """Cleans up when no write can be under way any more."""
    statement = "UPDATE cairn.physical_files SET created_at = created_at - interval '1 hour'"
    with Catalog(settings.metastore).begin() as connection:
        connection.execute(text(statement))
    cleanup_job(Catalog(settings.metastore), "small")


def test_initial_state_counts_once_when_the_first_batch_runs_twice(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(2)

    def twice(df: DataFrame, batch: int) -> None:
        assert not df.isEmpty()
        df.collect()
        df.collect()

    run(spark, settings, twice)
    assert newest_state(settings.metastore) == seeded(2)


def test_initial_state_counts_once_when_the_first_batch_was_not_committed(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(2, options={"cairn.task.memory-size": "1 kb"})

    def fail(df: DataFrame, batch: int) -> None:
        df.collect()
        raise RuntimeError("the sink failed")

    with pytest.raises(Exception, match="the sink failed"):
        run(spark, settings, fail)
    assert set(written(settings.metastore)) == {1}
    run(spark, settings)
    assert newest_state(settings.metastore) == seeded(2)
    clean(settings)
    kept = written(settings.metastore)
    assert set(kept) == {2}
    stored = {found.path for found in open_store(settings.storage).list("")}
    assert kept[2] <= stored
    write_source(Path(settings.source), 4)
    run(spark, settings)
    assert newest_state(settings.metastore) == seeded(4)
    assert set(written(settings.metastore)) == {2}
    clean(settings)
    assert written(settings.metastore) == {}
    assert not kept[2] & {found.path for found in open_store(settings.storage).list("")}
