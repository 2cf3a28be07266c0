"""An operator's input DataFrames: their rows, and their event time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from cairn.errors import BadInputError
from cairn.runtime.processing.operator_spec import INPUT_COLUMN, EventTime

_DELAY = "spark.watermarkDelayMs"
_WATERMARK_JOB = "cairn.watermarkJob"
_NODE = "EventTimeWatermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One or several inputs as one DataFrame; several are told apart by `INPUT_COLUMN`.

    `event_time` is None where the rows have none. `delays_ms` is by input, and empty where the
    watermark is that of the job upstream, `watermark_job_id`.
    """

    df: DataFrame
    row_schema: StructType
    event_time: EventTime | None = None
    delays_ms: tuple[int, ...] = ()
    watermark_job_id: str | None = None


def unite(dfs: Sequence[DataFrame], *, job: str) -> Inputs:
    """Returns the inputs as one, with the delay of each input's `withWatermark`.

    Raises:
        BadInputError: inputs have other columns, or event time that cannot be followed.
    """
    first = dfs[0]
    # Nullability is left out: a union takes the wider of two.
    columns = [(field.name, field.dataType) for field in first.schema]
    for other in dfs[1:]:
        if sorted(columns, key=str) != sorted(
            ((field.name, field.dataType) for field in other.schema), key=str
        ):
            raise BadInputError(
                f"inputs of one operator have the same columns; found {first.schema.simpleString()}"
                f" and {other.schema.simpleString()}",
                job=job,
            )
    fields = [_event_time_field(df, job) for df in dfs]
    named = {field.name for field in fields if field is not None}
    if not named:
        return Inputs(df=_united(dfs), row_schema=first.schema)
    if len(named) > 1 or None in fields:
        raise BadInputError(
            "each input needs withWatermark on the same column: the watermark is the least over "
            f"all inputs. Found it on {', '.join(sorted(named))}",
            job=job,
        )
    (name,) = named
    found = [field for field in fields if field is not None]
    is_window = isinstance(found[0].dataType, StructType)
    upstream = [field.metadata.get(_WATERMARK_JOB) for field in found]
    if any(upstream) and len(dfs) > 1:
        raise BadInputError(
            "the output of a stateful operator cannot be one of several inputs with event time; "
            "make it the only one",
            job=job,
        )
    return Inputs(
        df=_united(dfs),
        row_schema=first.schema,
        event_time=EventTime((name, "end"), (name, "start"))
        if is_window
        else EventTime((name,), (name,)),
        delays_ms=() if upstream[0] else tuple(field.metadata[_DELAY] for field in found),
        watermark_job_id=upstream[0],
    )


def with_event_time(schema: StructType, column: str, job_id: str) -> tuple[StructType, str]:
    """Returns an output schema whose column says that it follows a job's watermark, and its name.

    Spark's own operators downstream take it for event time too.

    Raises:
        BadInputError: there is no such column of timestamps.
    """
    matching = [
        field.name
        for field in schema
        if field.name.lower() == column.lower() and isinstance(field.dataType, TimestampType)
    ]
    if not matching:
        raise BadInputError(
            f"eventTimeColumnName is {column!r}, which has to be a timestamp of the output; it is "
            f"{schema.simpleString()}"
        )
    # Spark's key, so that its own operators see event time; the upstream watermark has the delay.
    metadata = {_DELAY: 0, _WATERMARK_JOB: job_id}
    fields = [
        StructField(f.name, f.dataType, f.nullable, metadata) if f.name in matching else f
        for f in schema
    ]
    return StructType(fields), matching[0]


def _united(dfs: Sequence[DataFrame]) -> DataFrame:
    if len(dfs) == 1:
        return dfs[0]
    # Rows say which input they are from: the watermark is the least of the inputs' own.
    tagged = [df.withColumn(INPUT_COLUMN, F.lit(number)) for number, df in enumerate(dfs)]
    return reduce(DataFrame.unionByName, tagged)


def _event_time_field(df: DataFrame, job: str) -> StructField | None:
    """Returns the column with event time, if there is one."""
    fields = [field for field in df.schema if _DELAY in field.metadata]
    if not fields:
        return None
    if len(fields) > 1:
        raise BadInputError(
            f"several columns have event time: {', '.join(f.name for f in fields)}. Drop all but "
            "one before groupBy",
            job=job,
        )
    # After a union the column has the metadata of one input only; the plan shows them all.
    if _WATERMARK_JOB not in fields[0].metadata and _watermarks(df) > 1:
        raise BadInputError(
            "this DataFrame has several withWatermark, whose least counts, but after a union or a "
            "join rows do not say which input they are from. Give the inputs as a list: "
            "job.groupBy([first, second], …)",
            job=job,
        )
    return fields[0]


def _watermarks(df: DataFrame) -> int:
    """Returns how many `withWatermark` the plan has."""
    printed = io.StringIO()
    with redirect_stdout(printed):  # what has the plan in classic Spark and in Connect
        df.explain(extended=True)
    analysed = printed.getvalue().partition("== Analyzed Logical Plan ==")[2]
    return analysed.partition("== Optimized Logical Plan ==")[0].count(_NODE)
