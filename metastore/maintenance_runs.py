"""Stored plans of maintenance actions, and the deletes that they ask for."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import MaintenanceStatus


class MaintenanceRun(Base):
    """One row per stored plan of a maintenance action on one job."""

    __tablename__ = "maintenance_runs"
    __table_args__ = (one_of("status", MaintenanceStatus),)
    maintenance_run_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    action: Mapped[str]
    plan: Mapped[dict[str, Any]]
    plan_sha256: Mapped[str]
    status: Mapped[MaintenanceStatus] = mapped_column(
        enum_of(MaintenanceStatus), server_default=MaintenanceStatus.PLANNED
    )
    result: Mapped[dict[str, Any] | None]
    planned_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class Deletion(Base):
    """One row per object to delete, committed before its bytes are deleted: the delete intent."""

    __tablename__ = "deletions"
    __table_args__ = (
        Index(None, "maintenance_run_id"),
        Index(
            "ix_deletions__open",
            "job_id",
            "requested_at",
            "file_id",
            postgresql_where=text("done_at IS NULL"),
        ),
    )
    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("cairn.physical_files.file_id"), primary_key=True
    )
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    path: Mapped[str]
    maintenance_run_id: Mapped[UUID] = mapped_column(ForeignKey(MaintenanceRun.maintenance_run_id))
    attempts: Mapped[int] = mapped_column(server_default="0")
    last_error: Mapped[str | None]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    done_at: Mapped[datetime | None]
