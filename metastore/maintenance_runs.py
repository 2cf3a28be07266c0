"""Stored plans of maintenance actions, who applies them, and what they decide and delete."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import DecisionKind, MaintenanceAction, MaintenanceStatus


class MaintenanceRun(Base):
    """One row per stored plan of a maintenance action on one job."""

    __tablename__ = "maintenance_runs"
    __table_args__ = (
        Index("ix_maintenance_runs__planned", "job_id", "planned_at"),
        one_of("status", MaintenanceStatus),
        one_of("action", MaintenanceAction),
        CheckConstraint(
            "status <> 'RUNNING' OR (holder IS NOT NULL AND leased_until IS NOT NULL)",
            name="running_is_leased",
        ),
        CheckConstraint(
            "status IN ('REFUSED', 'FAILED') OR breakers = '[]' OR passed_by IS NOT NULL",
            name="breakers_passed",
        ),
    )
    maintenance_run_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    action: Mapped[MaintenanceAction] = mapped_column(enum_of(MaintenanceAction))
    plan: Mapped[dict[str, Any]]
    plan_sha256: Mapped[str]
    planned_files: Mapped[int] = mapped_column(server_default="0")
    """How many objects the plan deletes, and their bytes."""
    planned_bytes: Mapped[int] = mapped_column(server_default="0")
    status: Mapped[MaintenanceStatus] = mapped_column(
        enum_of(MaintenanceStatus), server_default=MaintenanceStatus.PLANNED
    )
    result: Mapped[dict[str, Any] | None]
    planned_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    holder: Mapped[UUID | None]
    """The process that applies it, or did last; a process that has lost it never has it again."""
    former_holders: Mapped[list[UUID]] = mapped_column(server_default="{}")
    """Those that have lost it, oldest first; kept by a trigger."""
    leased_until: Mapped[datetime | None]
    """Until when the holder may write, unless it renews its lease."""
    breakers: Mapped[list[dict[str, Any]]] = mapped_column(server_default="[]")
    """Circuit breakers that spoke: what each one found, and its limit."""
    passed_by: Mapped[str | None]
    """Who has passed them."""
    passed_at: Mapped[datetime | None]


class GoodRun(Base):
    """One row per job and action: when it was last done, or there was nothing to do.

    It stays when the rows of maintenance runs are trimmed.
    """

    __tablename__ = "good_runs"
    __table_args__ = (one_of("action", MaintenanceAction),)
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"), primary_key=True)
    action: Mapped[MaintenanceAction] = mapped_column(enum_of(MaintenanceAction), primary_key=True)
    finished_at: Mapped[datetime] = mapped_column(server_default=func.now())


class MaintenanceDecision(Base):
    """One row per object that a run did not treat as planned, or decision about the run itself.

    At most so many a run; of the rest one row for each reason has the number.
    """

    __tablename__ = "maintenance_decisions"
    __table_args__ = (one_of("decision", DecisionKind),)
    maintenance_run_id: Mapped[UUID] = mapped_column(
        ForeignKey(MaintenanceRun.maintenance_run_id), primary_key=True
    )
    decision: Mapped[DecisionKind] = mapped_column(enum_of(DecisionKind), primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True, server_default="")
    """Below the job's storage; empty: of the run itself, or of the rest."""
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"))
    objects: Mapped[int] = mapped_column(server_default="1")
    decided_at: Mapped[datetime] = mapped_column(server_default=func.now())


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
