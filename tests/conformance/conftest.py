"""One Spark session, and both engines on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.engines import Engine

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # Compiling a plan takes longer than interpreting it for a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Spark's own would run batches without data, for ever in ProcessingTime; Cairn has none.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


@pytest.fixture(params=["spark", "cairn"])
def engine(
    request: pytest.FixtureRequest,
    session: SparkSession,
    shared_metastore_url: str,
    tmp_path: Path,
) -> Engine:
    return Engine(request.param, session, tmp_path, shared_metastore_url)
