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
    Select,
    Text,
    Uuid,
    any_,
    column,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    table,
)
from sqlalchemy.orm import InstrumentedAttribute, aliased

from metastore.enums import CheckpointStatus, SegmentKind, SegmentStatus
from metastore.models import SCHEMA, Checkpoint, DamagedSegment, Job, Pin, PlacedSegment

DAMAGED_SEGMENTS = table(
    "v_damaged_segments",
    column("job_id", Text),
    column("file_id", Uuid),
    column("checkpoints", ARRAY(BigInteger)),
    schema=SCHEMA,
)
"""What a scrub has found, as far as checkpoints need it."""


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


def is_kept(job_id: str) -> ColumnElement[bool]:
    """Returns the condition that a job's checkpoint stays besides the newest ones.

    It has an open pin, or the newest manifest of a job that writes manifests: a lost metastore is
    rebuilt from that one. Or newer ones need a damaged segment, and it is the newest that does not:
    it is the way back, and what the damaged one may be made from again.
    """
    newest = (
        select(PlacedSegment.first_checkpoint)
        .where(
            PlacedSegment.job_id == job_id,
            PlacedSegment.status == SegmentStatus.LIVE,
            PlacedSegment.kind == SegmentKind.MANIFEST,
            select(Job.keeps_manifest).where(Job.job_id == job_id).scalar_subquery(),
        )
        .order_by(PlacedSegment.first_checkpoint.desc())
        .limit(1)
    )
    return or_(
        is_pinned(),
        func.coalesce(Checkpoint.checkpoint_id == newest.scalar_subquery(), false()),
        func.coalesce(Checkpoint.checkpoint_id == newest_whole(job_id).scalar_subquery(), false()),
    )


def newest_whole(job_id: str) -> Select[int]:
    """Returns the query of the newest confirmed checkpoint that needs no damaged segment.

    Null where nothing is damaged.
    """
    whole = aliased(Checkpoint)
    damaged = DAMAGED_SEGMENTS.c
    return select(func.max(whole.checkpoint_id)).where(
        whole.job_id == job_id,
        whole.status == CheckpointStatus.CONFIRMED,
        # First, and once: mostly nothing is.
        exists().where(DamagedSegment.job_id == job_id, DamagedSegment.resolved_at.is_(None)),
        whole.checkpoint_id.not_in(
            select(func.unnest(damaged.checkpoints)).where(damaged.job_id == job_id)
        ),
    )


def any_uuid(ids: Sequence[UUID]) -> ColumnElement[Any]:
    """Returns `ANY(ids)`: one bound array, however many ids there are."""
    return any_(literal(list(ids), ARRAY(Uuid())))
