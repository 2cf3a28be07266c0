"""The library's front: `cairn.Job` and the grouped stream it gives."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.errors import BadInputError
from cairn.runtime.operator import run_task
from cairn.runtime.placement import route, warn_if_subtasks_float
from cairn.runtime.plan import OperatorPlan
from cairn.settings import Settings
from cairn.state.codec import TupleCodec
from cairn.state.handle import DeclaringHandle, StateDeclaration, VariableSpec
from cairn.storage import normalise_url, open_store
from metastore.embedded import EMBEDDED_PREFIX, resolve_url
from metastore.engine import run_transaction
from metastore.migrate import migrate, require_current
from metastore.runs import Registration, register_run


class Job:
    """A named stateful operator with its own state, storage root and key groups.

    Args:
        name: what the job is called in the metastore; one running query per name.
        storage: `s3://bucket/prefix`, `file:///directory` or a path.
        metastore: a SQLAlchemy URL of a migrated PostgreSQL, or `embedded:<directory>`.
        parallelism: how many subtasks the operator has, 1 to `cairn.max-parallelism`.
        options: `cairn.…` keys, see `cairn.settings`.

    Raises:
        BadInputError: a value is unknown, of the wrong type or out of its range.
    """

    def __init__(
        self,
        name: str,
        *,
        storage: str,
        metastore: str,
        parallelism: int,
        options: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise BadInputError(f"a job's name is text that is not empty, not {name!r}")
        self.name = name
        self.settings = Settings.from_options(options or {})
        highest = self.settings.max_parallelism
        if not isinstance(parallelism, int) or not 1 <= parallelism <= highest:
            raise BadInputError(
                f"parallelism is {parallelism!r}; allowed: 1 to cairn.max-parallelism, which is "
                f"{highest}. Lower it, or for a new job raise cairn.max-parallelism (it is fixed "
                "once the job has state)",
                job=name,
            )
        self.parallelism = parallelism
        self.storage = normalise_url(storage)
        self._metastore = metastore

    def __repr__(self) -> str:
        return f"Job({self.name!r}, storage={self.storage!r}, parallelism={self.parallelism})"

    def groupBy(self, df: DataFrame, *cols: str) -> GroupedStream:
        """Returns the streaming DataFrame grouped by some of its columns, by name.

        Raises:
            BadInputError: no column, not a name, or a name that the DataFrame does not have.
        """
        if not cols:
            raise BadInputError("groupBy needs at least one column", job=self.name)
        for col in cols:
            if not isinstance(col, str):
                raise BadInputError(
                    f"groupBy takes column names, not {type(col).__name__}; add the expression "
                    "with df.withColumn(name, …) and group by that name",
                    job=self.name,
                )
            if col not in df.columns:
                raise BadInputError(
                    f"no column {col!r}; the DataFrame has {', '.join(df.columns)}", job=self.name
                )
        return GroupedStream(self, df, cols)

    def open_metastore(self) -> str:
        """Returns the metastore's SQLAlchemy URL; starts and migrates an embedded one.

        Raises:
            RefusedError: the database's revision is not the one this version needs.
        """
        url = resolve_url(self._metastore)
        if self._metastore.startswith(EMBEDDED_PREFIX):
            migrate(url)
        require_current(url)
        return url


class GroupedStream:
    """A streaming DataFrame grouped by key; has `transformWithState` as Spark's GroupedData."""

    def __init__(self, job: Job, df: DataFrame, key_columns: tuple[str, ...]) -> None:
        self._job = job
        self._df = df
        self._key_columns = key_columns

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: object = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Returns what the processor yields, one micro-batch after another.

        Registers a run of the job: what is built here fences older runs of it once its first
        batch begins. Signature and meaning are PySpark's.

        Raises:
            BadInputError: an argument that is wrong or that this version does not support, or a
                schema that the job's state was not made with.
            StorageError: the storage cannot be written.
        """
        _check_modes(self._job.name, outputMode, timeMode)
        if initialState is not None or eventTimeColumnName:
            raise BadInputError(
                "initialState and eventTimeColumnName are not supported by this version; leave "
                "them out",
                job=self._job.name,
            )
        if not self._df.isStreaming:
            raise BadInputError(
                "this is a batch DataFrame; this version runs streaming ones. Use "
                "df.groupBy(…).transformWithState, or read with spark.readStream",
                job=self._job.name,
            )
        output_schema = _struct(outputStructType)
        plan = self._register(statefulProcessor, output_schema)
        rows = route(
            self._df,
            self._key_columns,
            parallelism=plan.parallelism,
            max_parallelism=plan.settings.max_parallelism,
        )

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return run_task(plan, statefulProcessor, batches)

        return rows.mapInArrow(run, output_schema)

    def transformWithStateInPandas(self, *_: object, **__: object) -> DataFrame:
        """Raises BadInputError: this version has the Row form only."""
        raise BadInputError(
            "transformWithStateInPandas is not supported by this version; use transformWithState",
            job=self._job.name,
        )

    def _register(self, processor: StatefulProcessor, output_schema: StructType) -> OperatorPlan:
        job = self._job
        session = self._df.sparkSession
        warn_if_subtasks_float(session)
        states, deleted = _declare(processor)
        key_schema = StructType([self._df.schema[name] for name in self._key_columns])
        TupleCodec(key_schema.jsonValue(), name="key")  # refuses what state cannot hold
        open_store(job.storage).check_writable()
        url = job.open_metastore()
        registration = Registration(
            run_id=uuid.uuid4(),
            job=job.name,
            storage=job.storage,
            parallelism=job.parallelism,
            max_parallelism=job.settings.max_parallelism,
            num_retained=job.settings.num_retained,
            key_schema=key_schema.jsonValue(),
            states=states,
            deleted_states=deleted,
        )
        run = run_transaction(
            url,
            lambda connection: register_run(connection, registration),
            timeout_ms=job.settings.metastore_timeout_ms,
            what=f"register a run of job {job.name}",
        )
        return OperatorPlan(
            job=job.name,
            job_id=run.job_id,
            run_id=str(registration.run_id),
            epoch=run.epoch,
            parallelism=job.parallelism,
            storage=job.storage,
            metastore_url=url,
            settings=job.settings,
            key_columns=self._key_columns,
            key_schema=key_schema.jsonValue(),
            input_schema=self._df.schema,
            output_schema=output_schema,
            states={
                state.name: VariableSpec.of(state, run.state_ids[state.name]) for state in states
            },
        )


def _check_modes(job: str, output_mode: str, time_mode: str) -> None:
    if output_mode.lower() not in ("append", "update"):
        raise BadInputError(
            f"outputMode is {output_mode!r}; allowed: 'Append' or 'Update'", job=job
        )
    if time_mode.lower() in ("processingtime", "eventtime"):
        raise BadInputError(
            f"timeMode {time_mode!r} needs timers, which this version does not support; use 'None'",
            job=job,
        )
    if time_mode.lower() != "none":
        raise BadInputError(f"timeMode is {time_mode!r}; allowed: 'None'", job=job)


def _struct(schema: object) -> StructType:
    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else None
    if not isinstance(parsed, StructType):
        raise BadInputError(
            f"a schema is a StructType or DDL text such as 'n long, word string', not {schema!r}"
        )
    return parsed


def _declare(
    processor: StatefulProcessor,
) -> tuple[Sequence[StateDeclaration], Collection[str]]:
    """Returns the state variables that `init` declares and deletes, run on a copy."""
    dumped: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
    copy: StatefulProcessor = cloudpickle.loads(dumped)  # our own, not from storage
    handle = DeclaringHandle(lambda schema: _struct(schema).jsonValue())
    copy.init(handle)  # type: ignore[arg-type]
    copy.close()
    return handle.declarations, handle.deleted
