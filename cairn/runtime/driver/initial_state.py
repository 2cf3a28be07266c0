"""Initial state: rows of a batch DataFrame that the first batch hands to the processor.

A query's plan cannot hold them, since it would read them again in every batch. So they are written
to storage when the plan is built, by subtask, and the tasks of batch 0 read them from there. Their
physical files stay WRITING, which they never leave: cleanup takes them once a newer run has begun.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cairn.runtime.executor.run_context import InitialRows, RunContext
from cairn.runtime.processing.operator_spec import KEY_HASH_COLUMN, OperatorSpec
from cairn.runtime.task.initial_rows import INITIAL_COLUMN, ROW_COLUMN, write_partition

_WRITTEN = "subtask int, path string, size_bytes long, sha256 string"


def pack(rows: DataFrame, initial: DataFrame) -> DataFrame:
    """Returns rows and initial state rows of a batch DataFrame as one, for `unpack` in the tasks.

    Both have their key's hash; each becomes a struct in a column of its own.
    """

    def packed(df: DataFrame, column: str, other: str) -> DataFrame:
        values = F.struct(*[F.col(f"`{name}`") for name in df.columns])
        # As structs: the two may have columns of the same name.
        return df.select(KEY_HASH_COLUMN, values.alias(column), F.lit(None).alias(other))

    return packed(rows, ROW_COLUMN, INITIAL_COLUMN).unionByName(
        packed(initial, INITIAL_COLUMN, ROW_COLUMN)
    )


def write_initial_rows(
    run: RunContext, operator: OperatorSpec, routed: DataFrame
) -> Sequence[InitialRows]:
    """Writes initial state rows to the job's storage, in a Spark job; returns the files.

    `routed` is the result of `cairn.runtime.driver.routing.route`.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = [dataclasses.asdict(rows) for rows in write_partition(run, operator, batches)]
        if written:
            yield pa.RecordBatch.from_pylist(written, _SCHEMA)

    return [InitialRows(**row.asDict()) for row in routed.mapInArrow(write, _WRITTEN).collect()]


_SCHEMA = pa.schema(
    [
        ("subtask", pa.int32()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)
