"""One Spark session, and both engines on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.engines import Engine
from tests.runtime.streams import new_session

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Spark's own would run batches without data, for ever in ProcessingTime; Cairn has none.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # Of the application, so it has no effect where another test's session is there already.
        patch.setenv(
            "PYSPARK_SUBMIT_ARGS",
            "--conf spark.python.daemon.module=tests.conformance.daemon pyspark-shell",
        )
        root = new_session("local[2]")
    session = root.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    yield session
    root.stop()


@pytest.fixture(params=["spark", "cairn"])
def engine(
    request: pytest.FixtureRequest,
    session: SparkSession,
    shared_metastore_url: str,
    tmp_path: Path,
) -> Engine:
    return Engine(request.param, session, tmp_path, shared_metastore_url)
