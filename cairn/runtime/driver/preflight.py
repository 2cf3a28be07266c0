"""What is refused before a stream's run is registered, because it would fail late or go wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from weakref import WeakSet

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cairn.errors import BadInputError, RefusedError
from cairn.runtime.driver.inputs import Inputs
from cairn.state.times import TimeMode

_log = logging.getLogger(__name__)

_METHODS = ("init", "handleInputRows", "close")
_SPECULATION = "spark.speculation"
_CAUSE = re.compile(r"^(?:ModuleNotFoundError|ImportError|.*PYTHON_VERSION_MISMATCH\]?).*$", re.M)

_checked: WeakSet[SparkSession] = WeakSet()


def require_one_attempt(session: SparkSession, job: str) -> None:
    """Refuses speculation: the rows of one attempt would be put out with the state of another.

    Raises:
        RefusedError: Spark may run a task twice at once.
    """
    if (session.conf.get(_SPECULATION, "") or "false").lower() == "true":
        raise RefusedError(
            f"{_SPECULATION} is true: of two attempts of a task, Spark may put out the rows of one "
            "while the state of the other counts, which differ where a processor depends on more "
            f"than its rows. Start the application with --conf {_SPECULATION}=false",
            job=job,
        )


def warn_without_watermark(inputs: Inputs, time_mode: TimeMode, job: str) -> None:
    """Warns of event time without a watermark on a stream: no timer ever fires, as in Spark."""
    is_streaming = inputs.df.isStreaming
    if is_streaming and time_mode is TimeMode.EVENT_TIME and inputs.event_time is None:
        _log.warning(
            "timeMode of job %s is 'EventTime', but no input has a watermark, so timers will never "
            "fire. Call withWatermark(column, delay) on the input before groupBy",
            job,
            extra={"job": job},
        )


def require_processor(processor: object, job: str) -> None:
    """Refuses what has not the methods of a processor; a base class is not needed, as in Spark.

    Raises:
        BadInputError: it is a class, or lacks a method.
    """
    missing = [name for name in _METHODS if not callable(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        raise BadInputError(
            f"statefulProcessor is an object with the methods {', '.join(_METHODS)}, such as "
            f"MyProcessor(); found {processor!r}",
            job=job,
        )


def require_workers_with_cairn(session: SparkSession, job: str) -> None:
    """Runs one task, once a session, that imports what a batch's tasks need.

    Raises:
        BadInputError: Spark's Python workers do not have it, or are of another Python version.
    """
    if session in _checked:
        return
    try:
        session.range(1, numPartitions=1).mapInArrow(_import_all, "id long").collect()
    except PySparkException as error:
        found = _CAUSE.search(str(error))
        if found is None:
            raise
        raise BadInputError(
            f"Spark's Python workers cannot run Cairn: {found[0].strip()}. Install cairn-streaming "
            "where the executors run, and name that Python by PYSPARK_PYTHON or "
            "spark.pyspark.python, of the same version as the driver's",
            job=job,
        ) from None
    _checked.add(session)


def _import_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from cairn.runtime.task import task  # noqa: F401, PLC0415 - it is what the task is for

    yield from batches
