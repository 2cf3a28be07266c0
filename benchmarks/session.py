"""The Spark session that both engines share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from cairn.runtime.driver.run_watch import note_ends
from spark_jobs import environment

ROOT = Path(__file__).resolve().parents[1]
MASTER = "local[2]"
HEAP = "4g"

_STATE_STORE = "spark.sql.streaming.stateStore"
NATIVE_STATE = {
    # With ProcessingTime, native would run batches without data for ever.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    f"{_STATE_STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
"""How native keeps its state, in any session."""
_SETTINGS = {
    **NATIVE_STATE,
    "spark.driver.memory": HEAP,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",  # a stream's batches, all of them
    "spark.shuffle.reduceLocality.enabled": "false",
}


@contextmanager
def spark_session(log: Path) -> Iterator[SparkSession]:
    """Gives a session with Python workers of its own; Java is the same for all of a process.

    Args:
        log: the output of Java and the workers is written here.
    """
    environment.prepare()
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import the processors by name
    builder = SparkSession.builder.appName("bench").master(MASTER)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    with _printing_to(log):
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        note_ends()  # the metastore is stopped before this process exits
        session.stop()


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Makes processes that are started meanwhile print to a file."""
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.flush()
    kept = [os.dup(number) for number in (1, 2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for number in (1, 2):
            os.dup2(target, number)
        yield
    finally:
        os.close(target)
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)
