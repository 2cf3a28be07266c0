"""The stateful operator: what one Spark task does in one micro-batch."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

import cairn.segments.format as segment_format
from cairn.errors import RefusedError
from cairn.handles import SegmentKind
from cairn.runtime.executor import TaskManager, write_whole
from cairn.runtime.group_commit import Request, Running, commit
from cairn.runtime.local_store import LocalReader
from cairn.runtime.materialize import is_due, materialize
from cairn.runtime.plan import KEY_GROUP_COLUMN, OperatorPlan
from cairn.runtime.restore import parent_state
from cairn.runtime.rows import group_rows, rows_to_batch
from cairn.state.codec import TupleCodec
from cairn.state.handle import StateHandle
from cairn.state.view import Overlay
from cairn.storage import open_store
from metastore.batches import BatchRef, BatchStart

OUTPUT_ROWS_PER_BATCH = 10_000
"""Turned into Arrow as they come: many live Python rows make the garbage collector slow."""


def run_task(
    plan: OperatorPlan, processor: StatefulProcessor, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Processes one subtask's rows of one batch and yields the output.

    Nothing is yielded before the subtask's changes are durable and acknowledged, so whatever
    downstream does with the output, the state of the batch is whole.
    """
    context = TaskContext.get()
    if context is None:
        raise RefusedError("the stateful operator runs in Spark tasks only", job=plan.job)
    batch = _batch(plan, context)
    subtask = context.partitionId()
    manager = TaskManager(plan, _executor_root())
    store = open_store(plan.storage)
    start = manager.begin(batch)
    attempt_id = str(uuid.uuid4())
    began = time.monotonic()
    with (
        Running(manager, start.checkpoint_id, attempt_id),
        parent_state(manager, store, subtask, start) as reader,
    ):
        restore_ms = round((time.monotonic() - began) * 1000)
        if plan.settings.materialize_enabled and _is_due(plan, subtask, start):
            materialize(manager, store, batch, subtask, reader)
        table = pa.Table.from_batches(pending) if (pending := list(batches)) else None
        output, overlay = _process(plan, processor, subtask, table, reader)
        request = _spool(manager, start, subtask, attempt_id, overlay)
        commit(
            manager,
            store,
            batch,
            Request(
                start.checkpoint_id,
                subtask,
                attempt_id,
                context.taskAttemptId(),
                table.num_rows if table else 0,
                restore_ms,
                *request,
            ),
        )
    yield from output


def _executor_root() -> str:
    """Returns the executor's own block directories, whose names are made anew with it."""
    return os.environ["SPARK_LOCAL_DIRS"]


def _batch(plan: OperatorPlan, context: TaskContext) -> BatchRef:
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or batch_id is None:
        raise RefusedError(
            "the stateful operator runs in the micro-batches of a streaming query only",
            job=plan.job,
        )
    return plan.batch(query_id, int(batch_id))


def _is_due(plan: OperatorPlan, subtask: int, start: BatchStart) -> bool:
    return is_due(
        start.clock,
        subtask=subtask,
        parallelism=plan.parallelism,
        start=plan.key_groups(subtask).start,
        interval_ms=plan.settings.materialize_interval_ms,
    )


def _process(
    plan: OperatorPlan,
    processor: StatefulProcessor,
    subtask: int,
    table: pa.Table | None,
    reader: LocalReader,
) -> tuple[list[pa.RecordBatch], Overlay]:
    overlay = Overlay(reader)
    handle = StateHandle(plan.states, overlay, row_factory=Row)
    processor.init(handle)  # type: ignore[arg-type]  # the same methods, not the same class
    output: list[pa.RecordBatch] = []
    rows_out: list[Row] = []
    if table is not None:
        _check_placement(plan, subtask, table)
        no_timers = TimerValues(-1, -1)
        encode_key = TupleCodec(plan.key_schema, name="key").encode
        set_key, handle_rows, emit = handle.set_key, processor.handleInputRows, rows_out.extend
        for key_group, key, rows in group_rows(table, plan.key_columns, plan.input_schema):
            set_key(key_group, encode_key(key))
            emit(handle_rows(key, rows, no_timers))
            if len(rows_out) >= OUTPUT_ROWS_PER_BATCH:
                output.append(rows_to_batch(rows_out, plan.output_schema))
                rows_out.clear()
    if rows_out:
        output.append(rows_to_batch(rows_out, plan.output_schema))
    processor.close()
    return output, overlay


def _check_placement(plan: OperatorPlan, subtask: int, table: pa.Table) -> None:
    """Refuses rows that another subtask owns: their state is not here."""
    key_groups = table.column(KEY_GROUP_COLUMN).to_numpy()
    owners = np.unique(key_groups * plan.parallelism // plan.settings.max_parallelism)
    if owners.tolist() not in ([], [subtask]):
        raise RefusedError(
            f"task {subtask} was given rows of subtasks {owners.tolist()}: Spark changed the "
            "partitioning of the plan. Please report this with the query's explain()",
            job=plan.job,
        )


def _spool(
    manager: TaskManager, start: BatchStart, subtask: int, attempt_id: str, overlay: Overlay
) -> tuple[int, str, int]:
    """Writes the batch's changes to the spool; returns their size in bytes, SHA-256 and count."""
    changes = overlay.changes()
    if not changes.keys:
        return 0, "", 0
    data = segment_format.encode(
        changes.ops,
        changes.keys,
        changes.values,
        metadata={
            "job": manager.plan.job,
            "checkpoint": str(start.checkpoint_id),
            "subtask": str(subtask),
            "kind": SegmentKind.CHANGELOG.value,
        },
    )
    write_whole(manager.spool_file(start.checkpoint_id, attempt_id), data)
    return len(data), hashlib.sha256(data).hexdigest(), len(changes.keys)
