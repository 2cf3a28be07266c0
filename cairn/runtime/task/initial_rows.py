"""Initial state rows in the tasks: written by subtask when a plan is built, read by batch 0."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext

from cairn.catalog.job.files import IntendedFile, intend_initial_rows
from cairn.errors import CorruptSegmentError, RefusedError
from cairn.layout import shared_file
from cairn.runtime.executor.run_context import InitialRows, RunContext
from cairn.runtime.processing.operator_spec import OperatorSpec
from cairn.runtime.processing.spill import Output, SpillDirectory
from cairn.runtime.processing.task_input import KeyedRows, TaskInput, subtasks_by_key_group
from cairn.storage import open_store
from cairn.storage.store import ObjectStore
from metastore.enums import Scope

ROW_COLUMN, INITIAL_COLUMN = "__cairn_row", "__cairn_initial"


def unpack(
    operator: OperatorSpec,
    batches: Iterator[pa.RecordBatch],
    spill: SpillDirectory,
    memory_bytes: int,
) -> tuple[Iterator[KeyedRows], Iterator[pa.RecordBatch]]:
    """Returns the initial state rows, and the rows, of batches made by `pack`, or of other ones."""
    if operator.initial_schema is None:
        return iter(()), batches
    initial, rows = Output(spill, memory_bytes), Output(spill, memory_bytes)
    for batch in batches:
        for column, into in ((INITIAL_COLUMN, initial), (ROW_COLUMN, rows)):
            structs = batch.column(column)
            present = structs.filter(structs.is_valid())
            if len(present):
                into.add(pa.RecordBatch.from_struct_array(present))
    # A generator: initial state may be larger than memory.
    first = (
        KeyedRows([pa.Table.from_batches([batch])], is_one_key=False) for batch in initial.read()
    )
    return first, rows.read()


def write_partition(
    run: RunContext, operator: OperatorSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[InitialRows]:
    """Writes one partition's initial state rows to the job's storage; yields the files."""
    context = TaskContext.get()
    if context is None:
        raise RefusedError("initial state is written in Spark tasks only", job=run.job)
    store = open_store(run.storage)
    of_rows = dataclasses.replace(
        operator, key_columns=operator.initial_key_columns, event_time=None, inputs=1
    )
    subtasks = run.subtasks(context.partitionId())
    with SpillDirectory() as spill:
        task_input = TaskInput(
            of_rows,
            subtasks_by_key_group(run.parallelism, run.max_parallelism),
            subtasks,
            late_ms=None,
            spill=spill,
            memory_bytes=run.settings.task_memory_bytes,
        )
        task_input.read(batches)
        for subtask in subtasks:
            for keyed in task_input.keyed_rows(subtask):
                for table in keyed.tables:
                    yield _put(run, store, subtask, table)


def _put(run: RunContext, store: ObjectStore, subtask: int, table: pa.Table) -> InitialRows:
    # A task that runs again writes another file, and the driver hears of one of them only.
    file_id = str(uuid.uuid4())
    path = shared_file(run.job_id, subtask, run.parallelism, file_id)
    run.catalog.run(
        f"record the write of {path}",
        lambda connection: intend_initial_rows(
            connection,
            run.ref,
            IntendedFile(file_id=file_id, path=path, scope=Scope.SHARED),
            run.shared_directory(subtask),
        ),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    store.put(path, [data])
    return InitialRows(
        subtask=subtask, path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )


def read_initial_rows(
    store: ObjectStore, job: str, written: Sequence[InitialRows]
) -> Iterator[KeyedRows]:
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
            yield KeyedRows([reader.read_all()], is_one_key=False)
