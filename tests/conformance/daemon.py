"""Spark's Python daemon, with what its workers import imported before they are forked.

Every query that fails ends its worker, and a new one spends a second on imports.
"""

from __future__ import annotations

import numpy
import pandas
import pyarrow.compute
from pyspark import worker
from pyspark.daemon import manager
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.streaming.proto import StateMessage_pb2

import cairn.runtime.operator
from tests.conformance import processors, scripts

PRELOADED = [
    numpy,
    pandas,
    pyarrow.compute,
    worker,
    stateful_processor,
    StateMessage_pb2,
    cairn.runtime.operator,
    processors,
    scripts,
]

if __name__ == "__main__":
    manager()
