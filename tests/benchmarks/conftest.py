from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from benchmarks.session import NATIVE_STATE


@pytest.fixture
def bench_session(spark: SparkSession) -> SparkSession:
    """A session of the tests' JVM that keeps native state as the benchmarks do."""
    session = spark.newSession()
    for name, value in NATIVE_STATE.items():
        session.conf.set(name, value)
    return session
