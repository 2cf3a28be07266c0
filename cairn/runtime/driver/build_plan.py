"""Building the plan of a call of transformWithState: on a stream, and on a batch DataFrame."""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.catalog.job.runs import RegisteredRun, Registration, register_run
from cairn.errors import BadInputError
from cairn.names import check_fields
from cairn.ownership.take import own_root
from cairn.runtime.driver.frame_settings import frame_settings
from cairn.runtime.driver.initial_state import pack, write_initial_rows
from cairn.runtime.driver.inputs import Inputs, with_event_time
from cairn.runtime.driver.job_spec import JobSpec
from cairn.runtime.driver.preflight import require_one_attempt, require_workers_with_cairn
from cairn.runtime.driver.routing import route, task_slots, warn_if_subtasks_float, with_key_hash
from cairn.runtime.driver.run_watch import watch_run
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.processing.operator_spec import (
    KEY_HASH_COLUMN,
    OperatorSpec,
)
from cairn.runtime.task.task import run_batch_task, run_task
from cairn.savepoints.start_from_manifest import find_origin, restore
from cairn.state.codec import TupleCodec
from cairn.state.handle import DeclaringHandle, StateDeclaration, VariableSpec
from cairn.state.times import TimeMode
from cairn.storage import open_store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Initial:
    """Initial state: a batch DataFrame and the columns that are its key."""

    df: DataFrame
    key_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of transformWithState, checked."""

    processor: StatefulProcessor
    output_schema: StructType
    time_mode: TimeMode
    uses_pandas: bool
    initial: Initial | None
    event_time_column: str


def transform(
    job: JobSpec, inputs: Inputs, count: int, key_columns: tuple[str, ...], call: Call
) -> DataFrame:
    """Returns the DataFrame of what the processor yields; `count` is how many inputs there are."""
    # Before `init` runs on a copy: the tasks get the processor as the user made it.
    dumped: bytes = cloudpickle.dumps(call.processor)  # type: ignore[no-untyped-call]
    states, deleted = _declare(dumped, call.time_mode)
    session = inputs.df.sparkSession
    key_schema = StructType([inputs.row_schema[name] for name in key_columns]).jsonValue()
    check_fields("the key", key_schema)
    TupleCodec(key_schema, name="key")  # refuses what state cannot hold
    operator = OperatorSpec(
        job=job.name,
        processor=dumped,
        uses_pandas=call.uses_pandas,
        time_mode=call.time_mode,
        key_columns=key_columns,
        key_schema=key_schema,
        row_schema=inputs.row_schema,
        output_schema=call.output_schema,
        states={s.name: VariableSpec.of(s, number) for number, s in enumerate(states)},
        event_time=inputs.event_time,
        inputs=count,
        initial_schema=call.initial.df.schema if call.initial else None,
        initial_key_columns=call.initial.key_columns if call.initial else (),
        frames=frame_settings(session.conf.get),
    )
    if inputs.df.isStreaming:
        return _on_stream(job, inputs, operator, call, states, deleted)
    return _on_batch(job, inputs, operator, call)


def struct(schema: object) -> StructType:
    """Returns the StructType of a schema given as such or as DDL text.

    Raises:
        BadInputError: it is neither.
    """
    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else None
    if not isinstance(parsed, StructType):
        raise BadInputError(
            f"a schema is a StructType or DDL text such as 'n long, word string', not {schema!r}"
        )
    return parsed


def _on_stream(
    job: JobSpec,
    inputs: Inputs,
    operator: OperatorSpec,
    call: Call,
    states: Sequence[StateDeclaration],
    deleted: Collection[str],
) -> DataFrame:
    session = inputs.df.sparkSession
    require_one_attempt(session, job.name)
    require_workers_with_cairn(session, job.name)
    warn_if_subtasks_float(session)
    # Before the run is registered: a storage that cannot work leaves no run behind.
    job.check_storage()
    registration = _registration(job, inputs, operator, states, deleted)
    registered, run = _register(job, registration, task_slots(session))
    watch_run(run.ref, run.catalog, session)
    # State is found again by these ids, in whatever order `init` declares its variables.
    operator = _with_ids(operator, call, registered)
    # A restart has in its state what the first run made of these rows.
    if call.initial and not registered.has_state:
        initial = with_key_hash(call.initial.df, call.initial.key_columns)
        written = write_initial_rows(run, operator, route(initial, run))
        run = dataclasses.replace(run, initial_rows=tuple(written))
    rows = with_key_hash(inputs.df, operator.key_columns, heartbeat=job.settings.heartbeat_enabled)

    def run_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(run, operator, batches)

    return route(rows, run).mapInArrow(run_partition, operator.output_schema)


def _registration(
    job: JobSpec,
    inputs: Inputs,
    operator: OperatorSpec,
    states: Sequence[StateDeclaration],
    deleted: Collection[str],
) -> Registration:
    return Registration(
        run_id=uuid.uuid4(),
        job=job.name,
        storage=job.storage,
        parallelism=job.parallelism,
        supervisor_id=job.supervisor_id,
        max_parallelism=job.settings.max_parallelism,
        num_retained=job.settings.num_retained,
        file_retention_ms=job.settings.file_retention_ms,
        keeps_manifest=job.settings.manifest_interval != 0,
        materialized_by=job.settings.materializer,
        materialize_interval_ms=job.settings.materialize_interval_ms,
        history_retention_ms=job.settings.history_retention_ms,
        history_max_checkpoints=job.settings.history_max_checkpoints,
        open_file_bytes=job.settings.open_file_bytes,
        key_schema=operator.key_schema,
        states=states,
        deleted_states=deleted,
        watermark_delays_ms=inputs.delays_ms,
        watermark_job_id=inputs.watermark_job_id,
        time_mode=operator.time_mode.value,
    )


def _register(
    job: JobSpec, registration: Registration, slots: int | None
) -> tuple[RegisteredRun, RunContext]:
    catalog = job.open_catalog()
    origin = None
    if job.restore_from is not None:
        # Read before the run exists: a manifest that is missing refuses the plan and changes
        # nothing.
        origin = find_origin(catalog, job.name, job.restore_from)
    if origin is not None:
        registration = dataclasses.replace(registration, origin=origin.manifest)
    run = catalog.run(
        f"register a run of job {job.name}",
        lambda connection: register_run(connection, registration),
    )
    # Once a run, before it writes anything: a batch does not pay for it.
    own_root(catalog, open_store(job.storage), run.job_id)
    facts = {
        "job": job.name,
        "epoch": run.epoch,
        "parallelism": job.parallelism,
        "has_state": run.has_state,
    }
    _log.info("run %d of job %s registered", run.epoch, job.name, extra=facts)
    context = RunContext(
        job=job.name,
        job_id=run.job_id,
        run_id=str(registration.run_id),
        epoch=run.epoch,
        parallelism=job.parallelism,
        max_parallelism=run.max_parallelism,
        storage=job.storage,
        catalog=catalog,
        settings=job.settings,
        # More tasks than slots would take turns, and each turn pays for a group commit (ADR 0011).
        tasks=min(job.parallelism, slots or job.parallelism),
        split_lists=run.split_lists,
        union_lists=run.union_lists,
    )
    # A plan that was built at the same time may have restored the job meanwhile.
    if origin is not None and not run.has_state:
        restore(catalog, origin, open_store(job.storage), run=context.ref)
        run = dataclasses.replace(run, has_state=True)
    return run, context


def _on_batch(job: JobSpec, inputs: Inputs, operator: OperatorSpec, call: Call) -> DataFrame:
    if job.restore_from is not None:
        raise BadInputError(
            "a batch DataFrame starts from no state: leave out restore_from", job=job.name
        )
    rows = with_key_hash(inputs.df, operator.key_columns)
    if call.initial:
        initial = with_key_hash(call.initial.df, call.initial.key_columns)
        rows = pack(rows, initial)
    memory_bytes = job.settings.task_memory_bytes
    # One time for all partitions, as all tasks of a micro-batch have one.
    now_ms = time.time_ns() // 1_000_000

    def run_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_batch_task(operator, memory_bytes, now_ms, batches)

    # Spark chooses how many partitions: no state has to stay where it was.
    by_key = rows.repartition(F.col(KEY_HASH_COLUMN))
    return by_key.mapInArrow(run_partition, operator.output_schema)


def _with_ids(operator: OperatorSpec, call: Call, registered: RegisteredRun) -> OperatorSpec:
    """Returns the operator with what registering the run has given it."""
    output_schema, emitted_time = call.output_schema, None
    if call.event_time_column:
        output_schema, emitted_time = with_event_time(
            output_schema, call.event_time_column, registered.job_id
        )
    return dataclasses.replace(
        operator,
        output_schema=output_schema,
        emitted_time=emitted_time,
        states={
            name: VariableSpec.of(
                spec, registered.states[name].state_id, registered.states[name].value_layout
            )
            for name, spec in operator.states.items()
        },
        dropped_state_ids=registered.dropped_state_ids,
    )


def _declare(dumped: bytes, mode: TimeMode) -> tuple[Sequence[StateDeclaration], Collection[str]]:
    """Returns the state variables that `init` declares and deletes, run on a copy."""
    copy: StatefulProcessor = cloudpickle.loads(dumped)  # our own, not from storage
    handle = DeclaringHandle(lambda schema: struct(schema).jsonValue(), mode)
    copy.init(handle)  # type: ignore[arg-type]  # the same methods, not the same class
    copy.close()
    return handle.declarations, handle.deleted
