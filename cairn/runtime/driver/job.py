"""The library's front: `cairn.Job`, and its groups with `transformWithState` as Spark has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.errors import BadInputError
from cairn.keygroups import MAX_PARALLELISM
from cairn.names import check_job_name
from cairn.runtime.driver.build_plan import Call, Initial, struct, transform
from cairn.runtime.driver.inputs import unite
from cairn.runtime.driver.job_spec import JobSpec
from cairn.runtime.driver.key_columns import with_key_columns
from cairn.runtime.driver.preflight import require_processor, warn_without_watermark
from cairn.savepoints.manifest_files import check_manifest_url
from cairn.settings import Settings
from cairn.state.times import TimeMode
from cairn.storage import normalise_url


class Job:
    """A named stateful operator with its own state, storage root and key groups.

    Args:
        name: the job's name in the metastore; one running query per name.
        storage: `s3://bucket/prefix`, `file:///directory` or a path.
        metastore: a SQLAlchemy URL of a migrated PostgreSQL, or `embedded:<directory>`.
        parallelism: how many subtasks the operator has, at most the job's key groups: see
            `cairn.max-parallelism` in `options`.
        options: `cairn.…` keys, see `cairn.settings`.
        restore_from: the URL of a manifest, `…/chk-<n>/_metadata`, whose state a job without any
            starts from, at any parallelism. The source is copied and stays as it is. A job that
            has state continues from that.

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
        restore_from: str | None = None,
    ) -> None:
        check_job_name(name)
        settings = Settings.from_options(options or {})
        highest = settings.max_parallelism or MAX_PARALLELISM
        if not isinstance(parallelism, int) or not 1 <= parallelism <= highest:
            raise BadInputError(
                f"parallelism is {parallelism!r}; allowed: 1 to {highest}, the value of "
                "cairn.max-parallelism or else its highest. Lower parallelism; only a new job may "
                "raise cairn.max-parallelism",
                job=name,
            )
        self.spec = JobSpec(
            name=name,
            storage=normalise_url(storage),
            metastore=metastore,
            parallelism=parallelism,
            settings=settings,
            restore_from=None if restore_from is None else check_manifest_url(restore_from),
        )

    def __repr__(self) -> str:
        spec = self.spec
        return f"Job({spec.name!r}, storage={spec.storage!r}, parallelism={spec.parallelism})"

    def groupBy(
        self,
        df: DataFrame | Sequence[DataFrame],
        *cols: str | int | Column | Sequence[str | int | Column],
    ) -> GroupedData:
        """Returns a streaming or batch DataFrame grouped by some of its columns.

        Columns are given as to Spark's groupBy: by name, a struct's field as "s.a", as a Column, by
        number from 1, or as a list. An expression has to be a column before.

        Several DataFrames are united by column name. With event time, each needs `withWatermark`;
        the watermark is the least over all of them, as Spark's is.

        Raises:
            BadInputError: no column, an expression, or a column that a DataFrame does not have.
        """
        dfs = [df] if isinstance(df, DataFrame) else [*df]
        if not dfs:
            raise BadInputError("groupBy needs a DataFrame and a column", job=self.spec.name)
        keyed = [with_key_columns(one, cols, job=self.spec.name) for one in dfs]
        return GroupedData(self.spec, [one for one, _ in keyed], keyed[0][1])


class GroupedData:
    """A DataFrame, or several as one, grouped by key columns; streaming or batch."""

    def __init__(
        self, job: JobSpec, dfs: Sequence[DataFrame], key_columns: tuple[str, ...]
    ) -> None:
        self._job = job
        self._dfs = dfs
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
        """Returns the processor's output as rows. Signature and meaning are PySpark's.

        On a stream it registers a run of the job: what is built here fences older runs of it once
        its first batch begins. On a batch DataFrame nothing is registered and no state is kept.

        Args:
            statefulProcessor: takes rows of class Row.
            outputStructType: of the rows it yields; a StructType or DDL text.
            outputMode: Append or Update; both give the processor's output.
            timeMode: None, ProcessingTime or EventTime.
            initialState: a batch DataFrame grouped by the same key, by `job.groupBy` or Spark's
                own `groupBy`; the first batch hands its rows to `handleInitialState`.
            eventTimeColumnName: the output column that later operators take for event time.

        Raises:
            BadInputError: an argument is wrong, or the job's state was made with another schema.
            StorageError: the storage cannot be written.
        """
        return self._transform(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            uses_pandas=False,
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: object = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Returns the output of a processor of pandas frames; otherwise as transformWithState."""
        return self._transform(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            uses_pandas=True,
        )

    def _transform(
        self,
        processor: StatefulProcessor,
        output_struct: StructType | str,
        output_mode: str,
        time_mode: str,
        initial_state: object,
        event_time_column: str,
        *,
        uses_pandas: bool,
    ) -> DataFrame:
        job = self._job
        inputs = unite(self._dfs, job=job.name)
        mode = _modes(job.name, output_mode, time_mode, is_streaming=inputs.df.isStreaming)
        warn_without_watermark(inputs, mode, job.name)
        require_processor(processor, job.name)
        call = Call(
            processor=processor,
            output_schema=struct(output_struct),
            time_mode=mode,
            uses_pandas=uses_pandas,
            initial=None if initial_state is None else self._initial(initial_state),
            event_time_column=event_time_column,
        )
        return transform(job, inputs, len(self._dfs), self._key_columns, call)

    def _initial(self, grouped: Any) -> Initial:  # noqa: ANN401 - see the error
        # Several inputs are no initial state: it is one DataFrame, as in Spark.
        if isinstance(grouped, GroupedData) and len(grouped._dfs) == 1:
            initial = Initial(grouped._dfs[0], grouped._key_columns)
        elif hasattr(grouped, "_df") and hasattr(grouped, "agg"):
            names = grouped.count().columns[:-1]  # Spark's own has no other way to its keys
            initial = Initial(*with_key_columns(grouped._df, names, job=self._job.name))
        else:
            raise BadInputError(
                "initialState is a DataFrame grouped by the key, such as "
                f"job.groupBy(initial, …); found {type(grouped).__name__}",
                job=self._job.name,
            )
        schema = self._dfs[0].schema
        wanted = [schema[name].dataType for name in self._key_columns]
        # By type and not by name: a key is its bytes, and the types decide those.
        if [initial.df.schema[name].dataType for name in initial.key_columns] != wanted:
            raise BadInputError(
                "initialState is grouped by columns of other types than the rows: "
                f"{', '.join(initial.key_columns)} of {initial.df.schema.simpleString()}, for "
                f"{', '.join(self._key_columns)} of {schema.simpleString()}",
                job=self._job.name,
            )
        if initial.df.isStreaming:
            raise BadInputError("initialState is a batch DataFrame", job=self._job.name)
        return initial


def _modes(job: str, output_mode: str, time_mode: str, *, is_streaming: bool) -> TimeMode:
    allowed = ["Append", "Update"] if is_streaming else ["Append", "Update", "Complete"]
    # Checked, and then of no effect: it is the sink's, and the operator only appends.
    if output_mode.lower() not in [mode.lower() for mode in allowed]:
        raise BadInputError(
            f"outputMode is {output_mode!r}; allowed: {' or '.join(map(repr, allowed))}", job=job
        )
    try:
        return TimeMode(time_mode.lower())
    except ValueError as error:
        raise BadInputError(
            f"timeMode is {time_mode!r}; allowed: 'None', 'ProcessingTime' or 'EventTime'", job=job
        ) from error
