"""The stateful operator as Spark runs it: one task in a micro-batch, or in a batch query."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import BatchStart
from cairn.errors import BadInputError, RefusedError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.commit.changelog import Changelog
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.processing.operator_spec import OperatorSpec
from cairn.runtime.processing.preemptive_persist import PreemptivePersist
from cairn.runtime.processing.processor_io import ProcessorIO, io_of
from cairn.runtime.processing.processor_run import Share, process
from cairn.runtime.processing.spill import Output, SpillDirectory
from cairn.runtime.processing.task_input import TaskInput, subtasks_by_key_group
from cairn.runtime.task.attempt import Attempt, FinishedSubtask
from cairn.runtime.task.initial_rows import read_initial_rows, unpack
from cairn.runtime.task.parent_lists import ParentLists, spool_lists
from cairn.runtime.task.periodic_manifest import write_manifest_if_due
from cairn.state.operator_lists import Lists
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.view import NoState, Overlay
from cairn.storage import open_store


def run_task(
    run: RunContext, operator: OperatorSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Processes the rows of a task's subtasks in one micro-batch and yields the output.

    Nothing is yielded before the subtasks' changes are durable and acknowledged, so whatever
    downstream does with the output, the state of the batch is whole.
    """
    context = TaskContext.get()
    if context is None:
        raise RefusedError("the stateful operator runs in Spark tasks only", job=run.job)
    batch = _batch(run, context)
    # Spark's block directories: the same for all tasks of an executor, and for no other's.
    manager = TaskManager(run, os.environ["SPARK_LOCAL_DIRS"])
    subtasks = run.subtasks(context.partitionId())
    start = manager.begin(batch, subtasks)
    attempt = Attempt(
        manager=manager,
        store=open_store(run.storage),
        batch=batch,
        start=start,
        task_attempt=context.taskAttemptId(),
    )
    memory_bytes = run.settings.task_memory_bytes
    with SpillDirectory() as spill:
        task_input = TaskInput(
            operator,
            subtasks_by_key_group(run.parallelism, run.max_parallelism),
            subtasks,
            late_ms=_late_ms(operator, start),
            spill=spill,
            memory_bytes=memory_bytes,
        )
        output = Output(spill, memory_bytes)
        with attempt.running():
            # All of it before the first key, whose rows may be anywhere in it.
            task_input.read(batches)
            task = _Task(
                operator=operator,
                attempt=attempt,
                input=task_input,
                # One for all subtasks: to make Arrow of few rows costs as much as of many.
                io=io_of(operator, partial(_emit, operator, start.late_watermark_ms, output)),
                parents=ParentLists(attempt),
            )
            attempt.commit(task.run(subtasks))
        # One task is enough, and every batch has a partition 0.
        if run.settings.manifest_interval != 0 and context.partitionId() == 0:
            write_manifest_if_due(manager, attempt.store, start)
        yield from output.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What a task does for each of its subtasks, one after the other."""

    operator: OperatorSpec
    attempt: Attempt
    input: TaskInput
    io: ProcessorIO
    parents: ParentLists

    def run(self, subtasks: Sequence[int]) -> list[FinishedSubtask]:
        """Does the subtasks, up to all of their output."""
        finished = [self._run_subtask(subtask) for subtask in subtasks]
        # Before the commit: output that is refused refuses the batch.
        self.io.flush()
        return finished

    def _run_subtask(self, subtask: int) -> FinishedSubtask:
        lists = self.parents.of(subtask)
        work = partial(self._process, subtask, lists)
        finished = self.attempt.run_subtask(subtask, self.input.counts(subtask), work)
        return spool_lists(self.attempt, finished, lists)

    def _process(self, subtask: int, lists: Lists, reader: LocalReader, log: Changelog) -> Overlay:
        operator, start = self.operator, self.attempt.start
        run, settings = self.attempt.manager.run, self.attempt.manager.run.settings
        first_rows = [rows for rows in run.initial_rows if rows.subtask == subtask]
        # Only the first batch has no parent; each attempt at it reads these rows.
        initial = [] if start.parent else read_initial_rows(self.attempt.store, run.job, first_rows)
        return process(
            operator,
            Share(run.key_groups(subtask), run.max_parallelism),
            reader,
            _times(operator, start),
            initial=initial,
            rows=self.input.keyed_rows(subtask),
            io=self.io,
            persist=partial(
                PreemptivePersist, log=log, threshold_bytes=settings.preemptive_persist_bytes
            ),
            lists=lists,
        )


def _emit(operator: OperatorSpec, late_ms: int, output: Output, batch: pa.RecordBatch) -> None:
    """Adds output rows, none of which an operator downstream may drop as late.

    Raises:
        BadInputError: a row's event time is at or before the watermark.
    """
    if operator.emitted_time is not None:
        micros = batch.column(operator.emitted_time).cast(pa.int64())
        earliest = pc.min(micros).as_py()
        if earliest is not None and earliest <= late_ms * 1000:
            raise BadInputError(
                f"the processor yielded a row with {operator.emitted_time} {earliest // 1000} ms, "
                f"at or before the watermark of {late_ms} ms: operators downstream would drop it. "
                "Yield event times after timerValues.getCurrentWatermarkInMs()",
                job=operator.job,
            )
    output.add(batch)


def run_batch_task(
    operator: OperatorSpec, memory_bytes: int, now_ms: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Processes one partition of a batch DataFrame, all at once and from no state.

    Its state lives in memory until the partition is done, and is dropped then, as Spark's.
    """
    one_group = subtasks_by_key_group(1, 1)
    times = BatchTimes()
    if operator.time_mode is not TimeMode.NONE:
        times = BatchTimes(operator.time_mode, now_ms, -1)
    with SpillDirectory() as spill:
        output = Output(spill, memory_bytes)
        initial, rows = unpack(operator, batches, spill, memory_bytes)
        task_input = TaskInput(
            operator, one_group, range(1), late_ms=None, spill=spill, memory_bytes=memory_bytes
        )
        task_input.read(rows)
        io = io_of(operator, output.add)
        process(
            operator,
            Share(KeyGroupRange(0, 1), 1),
            NoState(),
            times,
            initial=initial,
            rows=task_input.keyed_rows(0),
            io=io,
        )
        io.flush()
        yield from output.read()


def _batch(run: RunContext, context: TaskContext) -> BatchRef:
    # Spark sets both for the tasks of micro-batches, and for no others.
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or batch_id is None:
        raise RefusedError(
            "the stateful operator runs in the micro-batches of a streaming query only",
            job=run.job,
        )
    return run.batch(query_id, int(batch_id))


def _times(operator: OperatorSpec, start: BatchStart) -> BatchTimes:
    if operator.time_mode is TimeMode.NONE:
        return BatchTimes()
    return BatchTimes(operator.time_mode, start.processing_ms, start.watermark_ms)


def _late_ms(operator: OperatorSpec, start: BatchStart) -> int | None:
    is_event_time = operator.time_mode is TimeMode.EVENT_TIME
    return start.late_watermark_ms if is_event_time else None
