"""Segments that have a row of their own."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, SmallInteger, func, text
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import SegmentKind, SegmentStatus


class PlacedSegment(Base):
    """One row per segment that no group commit made: bases, increments, manifests, adopted ones.

    Part of checkpoint c iff first <= c and (released is null or c < it).
    """

    __tablename__ = "placed_segments"
    __table_args__ = (
        Index(
            "ix_placed_segments__live",
            "job_id",
            "first_checkpoint",
            postgresql_where=text("status = 'LIVE'"),
        ),
        Index(
            "ix_placed_segments__key_groups",
            "key_groups",
            postgresql_using="gist",
            postgresql_where=text("status = 'LIVE'"),
        ),
        Index(None, "file_id"),
        Index(None, "job_id", "first_checkpoint"),
        Index(
            "uq_placed_segments__sequence_number",
            "job_id",
            "first_checkpoint",
            "subtask",
            "sequence_number",
            unique=True,
            postgresql_where=text("kind = 'changelog' AND status = 'LIVE'"),
        ),
        Index(
            "ix_placed_segments__manifests",
            "job_id",
            "first_checkpoint",
            postgresql_where=text("kind = 'manifest' AND status = 'LIVE'"),
        ),
        Index(
            "uq_placed_segments__operator",
            "job_id",
            "first_checkpoint",
            "subtask",
            unique=True,
            postgresql_where=text("kind = 'operator' AND status = 'LIVE'"),
        ),
        one_of("status", SegmentStatus),
        one_of("kind", SegmentKind),
        CheckConstraint("offset_bytes >= 0 AND size_bytes > 0", name="range_sane"),
        CheckConstraint(
            "(index_size_bytes IS NULL) = (index_sha256 IS NULL)"
            " AND index_size_bytes > 0 AND index_size_bytes < size_bytes",
            name="index_inside",
        ),
        CheckConstraint(
            "released_checkpoint IS NULL OR released_checkpoint >= first_checkpoint",
            name="released_after_first",
        ),
        CheckConstraint(
            "kind NOT IN ('operator', 'channel', 'manifest') OR (released_checkpoint IS NOT NULL"
            " AND released_checkpoint <= first_checkpoint + 1)",
            name="exclusive_to_one",
        ),
    )
    segment_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    file_id: Mapped[UUID] = mapped_column(ForeignKey("cairn.physical_files.file_id"))
    kind: Mapped[SegmentKind] = mapped_column(enum_of(SegmentKind))
    subtask: Mapped[int]
    key_groups: Mapped[Range[int]]
    offset_bytes: Mapped[int]
    size_bytes: Mapped[int]
    sha256: Mapped[str]
    index_size_bytes: Mapped[int | None] = mapped_column(Integer)
    """Of its index by key group, which is its last part; null: it has none."""
    index_sha256: Mapped[str | None]
    entries: Mapped[int]
    first_checkpoint: Mapped[int]
    as_of_checkpoint: Mapped[int]
    """The checkpoint whose state it brings a restore to; below `first_checkpoint` for a base."""
    sequence_number: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    """Its place among the subtask's changelog segments of the checkpoint."""
    released_checkpoint: Mapped[int | None]
    status: Mapped[SegmentStatus] = mapped_column(
        enum_of(SegmentStatus), server_default=SegmentStatus.LIVE
    )
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
