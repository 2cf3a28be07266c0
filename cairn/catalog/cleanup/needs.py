"""Conditions of what the checkpoints of a job need, for the snapshot and for applying a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Uuid,
    any_,
    func,
    literal,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute

from metastore.models import Checkpoint, Pin, PlacedSegment


def multirange(
    ids: ColumnElement[int] | InstrumentedAttribute[int], *conditions: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Returns the ids of the rows that fulfil the conditions as one multirange, read once."""
    one_id = func.int8range(ids, ids, "[]")
    return (
        # A multirange and no list: a job retains ranges, and a test per segment stays cheap.
        select(func.coalesce(func.range_agg(one_id), func.int8multirange()))
        .where(*conditions)
        .scalar_subquery()
    )


def multirange_of(ids: Sequence[int]) -> ColumnElement[Any]:
    """Returns ids as one multirange."""
    return multirange(func.unnest(literal(list(ids), ARRAY(BigInteger))).column_valued("id"))


def is_needed(checkpoints: ColumnElement[Any]) -> ColumnElement[bool]:
    """Returns the condition that a checkpoint of a multirange, or one to come, needs a segment."""
    return func.cairn.is_needed(
        PlacedSegment.first_checkpoint,
        PlacedSegment.released_checkpoint,
        checkpoints,
        type_=Boolean,
    )


def is_pinned() -> ColumnElement[bool]:
    """Returns the condition that a checkpoint has an open pin."""
    return (
        select(Pin.pin_id)
        .where(
            Pin.job_id == Checkpoint.job_id,
            Pin.checkpoint_id == Checkpoint.checkpoint_id,
            Pin.removed_at.is_(None),
        )
        .exists()
    )


def any_uuid(ids: Sequence[UUID]) -> ColumnElement[Any]:
    """Returns `ANY(ids)`: one bound array, however many ids there are."""
    return any_(literal(list(ids), ARRAY(Uuid())))
