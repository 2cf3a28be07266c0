"""Arrow to the pandas frames that processors see, and the frames they give back to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegralType, StructType

from cairn.errors import BadInputError

if TYPE_CHECKING:
    import pandas as pd


def frame_of(table: pa.Table, schema: StructType, timezone: str) -> pd.DataFrame:
    """Returns a table's rows with the columns of the schema, as Spark's own pandas form has them.

    Timestamps are in the session's time zone, without it, as in all of Spark's pandas functions.
    """
    import pandas as pd  # noqa: PLC0415 - costs a second, and only this form needs it

    columns: list[Any] = ArrowBatchTransformer.to_pandas(
        table.select(schema.names).combine_chunks(), timezone=timezone, schema=schema
    )
    return pd.concat(columns, axis=1)


def frames_to_batch(
    frames: Sequence[pd.DataFrame], schema: StructType, timezone: str
) -> pa.RecordBatch:
    """Returns frames as one Arrow record batch of the schema; columns are taken by name.

    Raises:
        BadInputError: not a frame, a column is missing, or a value does not fit its column.
    """
    import pandas as pd  # noqa: PLC0415

    for frame in frames:
        if not isinstance(frame, pd.DataFrame):
            raise BadInputError(
                "transformWithStateInPandas takes pandas.DataFrame from the processor; found "
                f"{type(frame).__name__}"
            )
        missing = [name for name in schema.names if name not in frame.columns]
        if missing and len(frame):
            raise BadInputError(
                f"an output frame lacks the columns {', '.join(missing)}; it has "
                f"{', '.join(map(str, frame.columns))}"
            )
    full = [frame for frame in frames if len(frame)]
    if not full:
        return pa.RecordBatch.from_pylist([], to_arrow_schema(schema, timezone="UTC"))
    together = full[0] if len(full) == 1 else pd.concat(full, ignore_index=True)
    if len(full) == 1 or not _rounds(together, schema):
        return _convert(together, schema, timezone)
    batches = [_convert(frame, schema, timezone) for frame in full]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _rounds(together: pd.DataFrame, schema: StructType) -> bool:
    """Tells whether whole numbers may have become floats, because another frame has a null."""
    return any(
        together[field.name].dtype.kind == "f"
        for field in schema
        if isinstance(field.dataType, IntegralType)
    )


def _convert(frame: pd.DataFrame, schema: StructType, timezone: str) -> pa.RecordBatch:
    try:
        return PandasToArrowConversion.convert(
            frame, schema, timezone=timezone, arrow_cast=True, assign_cols_by_name=True
        )
    except (PySparkTypeError, PySparkValueError, pa.ArrowException) as error:
        raise BadInputError(f"output frame: {error}") from error
