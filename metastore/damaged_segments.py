"""Segments whose bytes were found damaged: what a scrub leaves for people, metrics and views."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import Damage


class DamagedSegment(Base):
    """One row per segment that was read and was not as recorded; it leaves with its file's row."""

    __tablename__ = "damaged_segments"
    __table_args__ = (one_of("damage", Damage),)
    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("cairn.physical_files.file_id"), primary_key=True
    )
    segment_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    damage: Mapped[Damage] = mapped_column(enum_of(Damage))
    found_at: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """When it was read last and found damaged."""
    resolved_at: Mapped[datetime | None]
    """When it was read and found whole again, such as after its object was put back."""
