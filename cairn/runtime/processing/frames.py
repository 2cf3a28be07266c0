"""Arrow to the pandas frames that processors see, and the frames they give back to Arrow.

As Spark's own pandas form has them: timestamps are in the session's time zone, without it.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FloatType,
    IntegralType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cairn.errors import BadInputError
from cairn.runtime.processing.arrow_types import OBJECT_TYPES, arrow_schema, arrow_type
from cairn.runtime.processing.operator_spec import FrameSettings
from cairn.runtime.processing.output_rows import DOES_NOT_FIT, in_order
from cairn.runtime.processing.rows import values_of

if TYPE_CHECKING:
    import pandas as pd

_NESTED = (ArrayType, MapType, StructType)
KeyView = Callable[[tuple[Any, ...]], tuple[Any, ...]]
_Convert = Callable[[Any], Any]


def key_in_frames(keys: Sequence[tuple[str, DataType]]) -> KeyView | None:
    """Returns what makes the timestamps of a key those of the column in frames.

    None where no key column is a timestamp.
    """
    import pandas as pd  # noqa: PLC0415 - costs a second, and only this form needs it

    times = (TimestampType, TimestampNTZType)
    places = {place for place, (_, data_type) in enumerate(keys) if isinstance(data_type, times)}

    def view(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            pd.Timestamp(value.replace(tzinfo=None)) if place in places and value else value
            for place, value in enumerate(key)
        )

    return view if places else None


def frame_of(table: pa.Table, schema: StructType, settings: FrameSettings) -> pd.DataFrame:
    """Returns a table's rows with the columns of the schema."""
    import pandas as pd  # noqa: PLC0415

    columns = [
        _series(table.column(field.name).combine_chunks(), field.dataType, settings)
        for field in schema.fields
    ]
    frame = pd.concat(columns, axis=1)
    frame.columns = pd.Index(schema.names)
    return frame


def _series(column: pa.Array, data_type: DataType, settings: FrameSettings) -> pd.Series[Any]:
    import pandas as pd  # noqa: PLC0415

    if isinstance(data_type, TimestampType | TimestampNTZType):
        if isinstance(data_type, TimestampType):
            column = pc.local_timestamp(column.cast(pa.timestamp("us", settings.timezone)))
        # pandas' own unit, which Spark gives frames; others would show another dtype.
        column = column.cast(pa.timestamp("ns"))
    elif isinstance(data_type, IntegralType) and settings.nullable_ints:
        # Otherwise one null makes floats of whole numbers, which cannot hold every long.
        return column.to_pandas(types_mapper=_nullable_ints().get)
    elif _is_object(data_type):
        return pd.Series(values_of(column, data_type), dtype=object)
    elif isinstance(data_type, IntegralType | FloatType):
        # As in Spark, which makes frames of Python's numbers: else 100 + 100 in a byte is -56.
        column = column.cast(pa.float64() if isinstance(data_type, FloatType) else pa.int64())
    is_nested = isinstance(data_type, _NESTED)
    series: pd.Series[Any] = column.to_pandas(
        coerce_temporal_nanoseconds=True, integer_object_nulls=is_nested
    )
    convert = _reader(data_type, settings.timezone) if is_nested else None
    return series if convert is None else series.apply(_or_none(convert))


def _nullable_ints() -> dict[pa.DataType, Any]:
    import pandas as pd  # noqa: PLC0415

    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
    }


def _is_object(data_type: DataType) -> bool:
    return hasattr(data_type, "deserialize") or data_type.typeName() in OBJECT_TYPES


def _or_none(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _reader(data_type: DataType, zone: str) -> _Convert | None:
    """Returns what makes a nested value of the one that pyarrow gives; None to leave it."""
    for kind, make in _READERS:
        if isinstance(data_type, kind):
            return make(data_type, zone)
    if _is_object(data_type):
        arrow = arrow_type(data_type)
        return lambda value: values_of(pa.array([value], arrow), data_type)[0]
    return None


def _moment_reader(_: TimestampType, zone: str) -> _Convert:
    import pandas as pd  # noqa: PLC0415

    def moment(value: Any) -> pd.Timestamp:  # noqa: ANN401 - of numpy or of datetime
        found = pd.Timestamp(value)
        found = found.tz_localize("UTC") if found.tzinfo is None else found
        return found.tz_convert(zone).tz_localize(None)

    return moment


def _wall_time_reader(_: TimestampNTZType, __: str) -> _Convert:
    import pandas as pd  # noqa: PLC0415

    wall_time: _Convert = pd.Timestamp
    return wall_time


def _array_reader(data_type: ArrayType, zone: str) -> _Convert | None:
    element = _reader(data_type.elementType, zone)
    if element is None:
        return None
    read = _or_none(element)
    return lambda value: np.array([read(item) for item in value])


def _map_reader(data_type: MapType, zone: str) -> _Convert:
    key, value_reader = _reader(data_type.keyType, zone), _reader(data_type.valueType, zone)
    if key is None and value_reader is None:
        return dict
    read_key, read = key or _same, _or_none(value_reader or _same)
    return lambda pairs: {read_key(key): read(value) for key, value in pairs}


def _struct_reader(data_type: StructType, zone: str) -> _Convert | None:
    readers = [_reader(field.dataType, zone) for field in data_type.fields]
    if not any(readers):
        return None
    reads = [_or_none(reader or _same) for reader in readers]
    fields = dict(zip(data_type.names, reads, strict=True))
    return lambda value: {name: read(value[name]) for name, read in fields.items()}


_READERS: tuple[tuple[type[DataType], Callable[[Any, str], _Convert | None]], ...] = (
    (TimestampType, _moment_reader),
    (TimestampNTZType, _wall_time_reader),
    (ArrayType, _array_reader),
    (MapType, _map_reader),
    (StructType, _struct_reader),
)


def _same(value: Any) -> Any:  # noqa: ANN401
    return value


def frames_to_batch(
    frames: Sequence[pd.DataFrame], schema: StructType, settings: FrameSettings
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
    full = [_arranged(frame, schema.names, settings) for frame in frames if len(frame)]
    if not full:
        return pa.RecordBatch.from_pylist([], arrow_schema(schema))
    together = full[0] if len(full) == 1 else pd.concat(full, ignore_index=True)
    # Frame by frame only if needed: one conversion of all is faster.
    if len(full) == 1:
        return _to_arrow(together, schema, settings)
    if not _is_changed(together, schema):
        # What is refused may only not fit beside the values of other frames.
        with suppress(BadInputError):
            return _to_arrow(together, schema, settings)
    batches = [_to_arrow(frame, schema, settings) for frame in full]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _arranged(frame: pd.DataFrame, names: list[str], settings: FrameSettings) -> pd.DataFrame:
    """Returns a frame with the columns of these names, in this order."""
    if not settings.by_name:
        if len(frame.columns) != len(names):
            raise BadInputError(
                f"an output frame has {len(frame.columns)} columns, the output schema "
                f"{len(names)}: {', '.join(names)}"
            )
        return frame.set_axis(names, axis=1)
    # Choosing columns copies a frame, and there is one for each key.
    if list(frame.columns) == names:
        return frame
    if missing := [name for name in names if name not in frame.columns]:
        raise BadInputError(
            f"an output frame lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(map(str, frame.columns))}"
        )
    arranged = frame[names]
    if len(arranged.columns) != len(names):
        raise BadInputError(
            f"an output frame has two columns of one name; it has "
            f"{', '.join(map(str, frame.columns))}"
        )
    return arranged


def _is_changed(together: pd.DataFrame, schema: StructType) -> bool:
    """Tells whether a frame's values may have another type because of those of another frame.

    Beside a null, whole numbers become floats; beside moments, local times become objects.
    """
    kinds = [dtype.kind for dtype in together.dtypes]
    return any(
        (kind == "f" and isinstance(field.dataType, IntegralType))
        or (kind == "O" and isinstance(field.dataType, TimestampType))
        for kind, field in zip(kinds, schema.fields, strict=True)
    )


def _to_arrow(frame: pd.DataFrame, schema: StructType, settings: FrameSettings) -> pa.RecordBatch:
    arrays = [
        _array(frame.iloc[:, place], field, settings) for place, field in enumerate(schema.fields)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def _array(series: pd.Series[Any], field: StructField, settings: FrameSettings) -> pa.Array:
    try:
        array = _converted(series, field, settings)
    except BadInputError:
        raise
    except DOES_NOT_FIT as error:
        raise BadInputError(
            f"output column {field.name}: a value does not fit {field.dataType.simpleString()}; "
            f"found a column of type {series.dtype}. {error}"
        ) from error
    if isinstance(array, pa.ChunkedArray):  # pyarrow's answer to floats for text
        array = array.combine_chunks()
    if array.null_count and not field.nullable:
        raise BadInputError(f"output column {field.name}: found null, but it is not nullable")
    return array


def _converted(
    series: pd.Series[Any], field: StructField, settings: FrameSettings
) -> pa.Array | pa.ChunkedArray:
    import pandas as pd  # noqa: PLC0415

    data_type, arrow = field.dataType, arrow_type(field.dataType)
    # Arrow makes dictionaries of categories, which Spark does not take.
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    if isinstance(data_type, TimestampType):
        series = _in_utc(series, settings.timezone)
    elif isinstance(data_type, DecimalType):
        if settings.ints_to_decimals and pd.api.types.is_integer_dtype(series):
            series = series.astype(object).map(decimal.Decimal, na_action="ignore")
    elif convert := _writer(data_type, field.name, settings.timezone):
        series = series.map(_or_none(convert))
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        return pa.Array.from_pandas(series, mask=mask, type=arrow, safe=settings.is_safe)
    except pa.ArrowInvalid:  # what Arrow does not convert, it may cast
        return pa.Array.from_pandas(series, mask=mask).cast(arrow, safe=settings.is_safe)


def _in_utc(series: pd.Series[Any], zone: str) -> pd.Series[Any]:
    """Of two moments that one local time stands for, Spark takes the later."""
    if series.dtype.kind != "M":
        return series
    moments = series
    if series.dt.tz is None:
        moments = series.dt.tz_localize(zone, ambiguous=False, nonexistent="NaT")
        if moments.hasnans and len(skipped := series[moments.isna() & series.notna()]):
            raise ValueError(f"there is no {skipped.iloc[0]} in {zone}: clocks are set forward")
    return moments.dt.tz_convert("UTC")


def _writer(data_type: Any, path: str, zone: str) -> _Convert | None:  # noqa: ANN401 - a user's
    """Returns what makes of a nested value the one that pyarrow takes; None to leave it."""
    for kind, make in _WRITERS:
        if isinstance(data_type, kind):
            return make(data_type, path, zone)
    if hasattr(data_type, "serialize"):  # a user's own type
        inner = _or_none(_writer(data_type.sqlType(), path, zone) or _same)
        return lambda value: inner(data_type.serialize(value))
    return data_type.toInternal if data_type.typeName() in OBJECT_TYPES else None


def _moment_writer(_: TimestampType, __: str, zone: str) -> _Convert:
    import pandas as pd  # noqa: PLC0415

    return lambda value: _in_utc(pd.Series([pd.Timestamp(value)]), zone).iloc[0]


def _array_writer(data_type: ArrayType, path: str, zone: str) -> _Convert:
    element = _writer(data_type.elementType, f"{path}.element", zone)
    if element is None:
        return list
    write = _or_none(element)
    return lambda value: [write(item) for item in value]


def _map_writer(data_type: MapType, path: str, zone: str) -> _Convert:
    key = _writer(data_type.keyType, f"{path}.key", zone)
    value_writer = _writer(data_type.valueType, f"{path}.value", zone)
    if key is None and value_writer is None:
        return lambda value: [*value.items()]
    write_key, write = key or _same, _or_none(value_writer or _same)
    return lambda value: [(write_key(key), write(item)) for key, item in value.items()]


def _struct_writer(data_type: StructType, path: str, zone: str) -> _Convert:
    names = data_type.names
    known = set(names)
    writers = {
        field.name: _or_none(write)
        for field in data_type.fields
        if (write := _writer(field.dataType, f"{path}.{field.name}", zone))
    }

    def struct(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a Row, a tuple or a dict
        if type(value) is not dict or not value.keys() <= known:
            (items,) = in_order([value], names, f"output column {path}: a row")
            value = dict(zip(names, items, strict=True))
        converted = {name: write(value.get(name)) for name, write in writers.items()}
        return {**value, **converted}

    return struct


_WRITERS: tuple[tuple[type[DataType], Callable[[Any, str, str], _Convert]], ...] = (
    (TimestampType, _moment_writer),
    (ArrayType, _array_writer),
    (MapType, _map_writer),
    (StructType, _struct_writer),
)
