"""A program that builds a stream's plan in applications that cannot run it, and prints the errors.

Its argument is the Python of the first application's workers.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark import SparkContext
from pyspark.sql import SparkSession

import cairn
from cairn.errors import CairnError
from tests.streams.streams import OUTPUT, Remember, new_session

NO_METASTORE = "postgresql://nobody@localhost/none"
"""Refused before it is opened."""


def main(python: str) -> None:
    """Starts two applications, one after the other."""
    session = new_session("local[1]")
    session.sparkContext.pythonExec = python
    build_plan(session)
    SparkContext._jvm.System.setProperty("spark.speculation", "true")  # type: ignore[union-attr]
    build_plan(new_session("local[1]"))


def build_plan(session: SparkSession) -> None:
    """Prints the error's class and text."""
    with tempfile.TemporaryDirectory() as storage:
        job = cairn.Job("refused", storage=storage, metastore=NO_METASTORE, parallelism=1)
        rows = session.readStream.format("rate").load().withColumnRenamed("value", "key")
        try:
            job.groupBy(rows, "key").transformWithState(Remember(), OUTPUT, "Update", "None")
        except CairnError as error:
            print(f"{type(error).__name__}: {error}")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
