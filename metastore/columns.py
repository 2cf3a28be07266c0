"""What the tables share: their base, the names of constraints, the types of columns."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, DateTime, Enum, MetaData, Text, Uuid
from sqlalchemy.dialects.postgresql import INT4RANGE, JSONB, Range
from sqlalchemy.orm import DeclarativeBase

SCHEMA = "cairn"


def enum_of(values: type[StrEnum]) -> Enum:
    """Returns the type of a column that holds the values' text."""
    return Enum(
        values,
        native_enum=False,
        create_constraint=False,
        length=16,
        values_callable=lambda e: [m.value for m in e],
    )


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """Returns the constraint that a column holds one of the values."""
    allowed = ", ".join(f"'{m.value}'" for m in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=f"{column}_known")


NAMES = {
    "ix": "ix_%(table_name)s__%(column_0_N_name)s",
    "uq": "uq_%(table_name)s__%(column_0_N_name)s",
    "ck": "ck_%(table_name)s__%(constraint_name)s",
    "fk": "fk_%(table_name)s__%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Of constraints and indexes."""

TYPES = {
    str: Text(),
    int: BigInteger(),
    datetime: DateTime(timezone=True),
    dict[str, Any]: JSONB(),
    list[dict[str, Any]]: JSONB(),
    Range[int]: INT4RANGE(),
    list[int]: ARRAY(BigInteger),
    list[int | None]: ARRAY(BigInteger),
    list[UUID]: ARRAY(Uuid()),
}
"""Of columns, by the type in Python."""


class Base(DeclarativeBase):
    """Declarative base of the schema `cairn`."""

    metadata = MetaData(schema=SCHEMA, naming_convention=NAMES)
    type_annotation_map: ClassVar = TYPES
