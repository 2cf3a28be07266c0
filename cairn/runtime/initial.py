"""Initial state: rows of a batch DataFrame that the first batch hands to the processor.

A query's plan cannot hold them, since it would read them again in every batch. So they are written
to storage when the plan is built, by subtask, and the tasks of batch 0 read them from there. Their
physical files stay WRITING, which they never leave: cleanup takes them once a newer run has begun.
"""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cairn.errors import CorruptSegmentError, RefusedError
from cairn.handles import Scope
from cairn.layout import shared_file
from cairn.runtime.intake import Intake, Part, subtasks_by_key_group
from cairn.runtime.plan import KEY_HASH_COLUMN, Operator
from cairn.runtime.run_plan import InitialRows, RunPlan
from cairn.runtime.spill import Output, SpillDirectory
from cairn.storage import open_store
from cairn.storage.store import ObjectStore
from metastore.engine import run_transaction
from metastore.files import IntendedFile, intend_initial_rows

_WRITTEN = "subtask int, path string, size_bytes long, sha256 string"


_ROW, _INITIAL = "__cairn_row", "__cairn_initial"


def pack(rows: DataFrame, initial: DataFrame) -> DataFrame:
    """Returns rows and initial state rows of a batch DataFrame as one, for `unpack` in the tasks.

    Both have their key's hash; each becomes a struct in a column of its own.
    """

    def packed(df: DataFrame, column: str, other: str) -> DataFrame:
        values = F.struct(*[F.col(f"`{name}`") for name in df.columns])
        return df.select(KEY_HASH_COLUMN, values.alias(column), F.lit(None).alias(other))

    return packed(rows, _ROW, _INITIAL).unionByName(packed(initial, _INITIAL, _ROW))


def unpack(
    operator: Operator,
    batches: Iterator[pa.RecordBatch],
    spill: SpillDirectory,
    memory_bytes: int,
) -> tuple[Iterator[Part], Iterator[pa.RecordBatch]]:
    """Returns the initial state rows, and the rows, of batches made by `pack`, or of other ones."""
    if operator.initial_schema is None:
        return iter(()), batches
    initial, rows = Output(spill, memory_bytes), Output(spill, memory_bytes)
    for batch in batches:
        for column, into in ((_INITIAL, initial), (_ROW, rows)):
            structs = batch.column(column)
            present = structs.filter(structs.is_valid())
            if len(present):
                into.add(pa.RecordBatch.from_struct_array(present))
    first = (Part([pa.Table.from_batches([batch])], is_one_key=False) for batch in initial.read())
    return first, rows.read()


def write_initial_rows(
    plan: RunPlan, operator: Operator, routed: DataFrame
) -> Sequence[InitialRows]:
    """Writes initial state rows to the job's storage, in a Spark job; returns what it wrote.

    `routed` comes from `cairn.runtime.placement.route`.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = [dataclasses.asdict(rows) for rows in _write(plan, operator, batches)]
        if written:
            yield pa.RecordBatch.from_pylist(written, _SCHEMA)

    return [InitialRows(*row) for row in routed.mapInArrow(write, _WRITTEN).collect()]


_SCHEMA = pa.schema(
    [
        ("subtask", pa.int32()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)


def _write(
    plan: RunPlan, operator: Operator, batches: Iterator[pa.RecordBatch]
) -> Iterator[InitialRows]:
    context = TaskContext.get()
    if context is None:
        raise RefusedError("initial state is written in Spark tasks only", job=plan.job)
    store = open_store(plan.storage)
    of_rows = dataclasses.replace(
        operator, key_columns=operator.initial_key_columns, event_time=None, inputs=1
    )
    subtasks = plan.subtasks(context.partitionId())
    with SpillDirectory() as spill:
        intake = Intake(
            of_rows,
            subtasks_by_key_group(plan.parallelism, plan.settings.max_parallelism),
            subtasks,
            late_ms=None,
            spill=spill,
            memory_bytes=plan.settings.task_memory_bytes,
        )
        intake.read(batches)
        for subtask in subtasks:
            for part in intake.parts(subtask):
                for table in part.tables:
                    yield _put(plan, store, subtask, table)


def _put(plan: RunPlan, store: ObjectStore, subtask: int, table: pa.Table) -> InitialRows:
    file_id = str(uuid.uuid4())
    path = shared_file(plan.job_id, subtask, plan.parallelism, file_id)
    run_transaction(
        plan.metastore_url,
        lambda connection: intend_initial_rows(
            connection,
            plan.job_id,
            plan.epoch,
            IntendedFile(file_id, path, Scope.SHARED),
            plan.shared_directory(subtask),
        ),
        timeout_ms=plan.settings.metastore_timeout_ms,
        what=f"record the write of {path}",
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    store.put(path, [data])
    return InitialRows(subtask, path, len(data), hashlib.sha256(data).hexdigest())


def read_initial_rows(
    store: ObjectStore, job: str, written: Sequence[InitialRows]
) -> Iterator[Part]:
    """Yields the rows of each object.

    Raises:
        CorruptSegmentError: the bytes are not those that were written.
        StorageError: an object cannot be read.
    """
    for rows in written:
        data = store.get(rows.path, 0, rows.size_bytes)
        if hashlib.sha256(data).hexdigest() != rows.sha256:
            raise CorruptSegmentError(
                "initial state rows are not those that were written; start the query again, which "
                "writes them anew",
                job=job,
                file=rows.path,
            )
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            yield Part([reader.read_all()], is_one_key=False)
