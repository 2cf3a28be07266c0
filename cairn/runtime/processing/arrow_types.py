"""Spark's types as Arrow's, and the session's time zone as Arrow names it."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from cairn.errors import BadInputError

_METADATA = b"SPARK::metadata::json"
"""Where Spark looks for a field's metadata: in a nested field it is part of the type."""
_SCALARS = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "daytimeinterval": pa.duration("us"),
}
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema of rows that Spark takes as of this schema.

    Raises:
        BadInputError: a column has a type that Spark cannot exchange with Python.
    """
    return pa.schema(_fields(schema))


def arrow_type(data_type: DataType) -> pa.DataType:
    """Returns the Arrow type of values that Spark takes as of this type.

    Raises:
        BadInputError: Spark cannot exchange such values with Python.
    """
    if isinstance(data_type, StructType):
        return pa.struct(_fields(data_type))
    if isinstance(data_type, ArrayType):
        # With the names of children that Spark's own Arrow types have.
        element = arrow_type(data_type.elementType)
        return pa.list_(pa.field("element", element, nullable=data_type.containsNull))
    if isinstance(data_type, MapType):
        value = arrow_type(data_type.valueType)
        return pa.map_(
            pa.field("key", arrow_type(data_type.keyType), nullable=False),
            pa.field("value", value, nullable=data_type.valueContainsNull),
        )
    if hasattr(data_type, "sqlType"):  # a user's own type
        return arrow_type(data_type.sqlType())
    return _scalar(data_type)


def _scalar(data_type: DataType) -> pa.DataType:
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    name = data_type.typeName()
    if name in OBJECT_TYPES:
        return pa.struct(OBJECT_TYPES[name](data_type))
    if name not in _SCALARS:
        raise BadInputError(
            f"Spark cannot exchange {data_type.simpleString()} with Python; use another type"
        )
    return _SCALARS[name]


def arrow_zone(timezone: str) -> str:
    """Returns a session's time zone as Arrow and pandas name it: Spark takes more forms."""
    if timezone == "Z":
        return "UTC"
    if match := _OFFSET.fullmatch(timezone):
        return f"{match[1]}{int(match[2]):02}:{match[3] or '00'}"
    return timezone


def _fields(schema: StructType) -> list[pa.Field]:
    return [
        pa.field(
            field.name,
            arrow_type(field.dataType),
            nullable=field.nullable,
            metadata={_METADATA: json.dumps(field.metadata)} if field.metadata else None,
        )
        for field in schema.fields
    ]


def _variant(_: Any) -> list[pa.Field]:  # noqa: ANN401
    return [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]


def _spatial(data_type: Any) -> list[pa.Field]:  # noqa: ANN401 - Spark 4.0 has no such types
    marks = {data_type.typeName(): "true", "srid": str(data_type.srid)}
    return [
        pa.field("srid", pa.int32(), nullable=False),
        pa.field("wkb", pa.binary(), nullable=False, metadata=marks),
    ]


OBJECT_TYPES = {"variant": _variant, "geography": _spatial, "geometry": _spatial}
"""Types whose values are objects of a class, in Arrow structs that are marked."""
