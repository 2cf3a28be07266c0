"""Objects that a sweep has found and nothing needs, set aside before they are deleted."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import QuarantineStatus


class QuarantinedObject(Base):
    """One row per orphan that a sweep has set aside. The object stays where it is until then.

    It is deleted only if it still is what it was: of the same size, version and age.
    """

    __tablename__ = "quarantined_objects"
    __table_args__ = (
        one_of("status", QuarantineStatus),
        # What says whose the root is, is no orphan, whatever a row says.
        CheckConstraint(
            "starts_with(path, job_id || '/') AND NOT starts_with(path, job_id || '/owner/')",
            name="below_job",
        ),
        CheckConstraint("quarantined_until > quarantined_at", name="kept_for_a_while"),
        Index(
            "uq_quarantined_objects__open",
            "job_id",
            "path",
            "upload_id",
            unique=True,
            postgresql_where=text("status IN ('QUARANTINED', 'CONDEMNED', 'RESTORED')"),
        ),
        Index(
            "ix_quarantined_objects__due",
            "job_id",
            "quarantined_until",
            postgresql_where=text("status IN ('QUARANTINED', 'CONDEMNED')"),
        ),
        Index(
            "ix_quarantined_objects__over",
            "job_id",
            text("coalesce(deleted_at, released_at)"),
            postgresql_where=text("status IN ('DELETED', 'RELEASED')"),
        ),
    )
    quarantine_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    path: Mapped[str] = mapped_column(Text(collation="C"))
    upload_id: Mapped[str] = mapped_column(server_default="")
    """Of an unfinished multipart upload; empty: it is an object."""
    reason: Mapped[str]
    """Why it is an orphan, in words."""
    size_bytes: Mapped[int]
    version: Mapped[str]
    """What the storage calls these bytes: an ETag, or the times of a file."""
    modified_at: Mapped[datetime]
    """By the storage's clock."""
    maintenance_run_id: Mapped[UUID]
    """The sweep that has found it; its row may be trimmed before this one."""
    status: Mapped[QuarantineStatus] = mapped_column(
        enum_of(QuarantineStatus), server_default=QuarantineStatus.QUARANTINED
    )
    quarantined_at: Mapped[datetime] = mapped_column(server_default=func.now())
    quarantined_until: Mapped[datetime]
    """Nothing deletes it before."""
    condemned_at: Mapped[datetime | None]
    """Since when its deletion is asked for: the delete intent."""
    restored_at: Mapped[datetime | None]
    """When somebody took it out: no sweep sets it aside again while it stays as it is."""
    released_at: Mapped[datetime | None]
    """When a sweep found that it is no orphan any more, is gone, or is another object."""
    deleted_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
