"""Tables of what work was like. `metastore.models` has the others.

Only what a killed materialization has left is decided by one of them.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base, enum_of, one_of
from metastore.enums import SegmentKind


class Materialization(Base):
    """One row per materialization that a process of a job has begun; its files name it."""

    __tablename__ = "materializations"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "epoch"], ["cairn.runs.job_id", "cairn.runs.epoch"]),
        Index(None, "job_id", "subtask", "started_at"),
        one_of("kind", SegmentKind),
    )
    materialization_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    epoch: Mapped[int]
    subtask: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    """Null: it is running, or was killed."""
    error: Mapped[str | None]
    kind: Mapped[SegmentKind | None] = mapped_column(enum_of(SegmentKind))
    """Bases or an increment; null: nothing had changed."""
    as_of_checkpoint: Mapped[int | None]
    segments: Mapped[int] = mapped_column(server_default="0")
    entries: Mapped[int] = mapped_column(server_default="0")
    size_bytes: Mapped[int] = mapped_column(server_default="0")


class UploadTotal(Base):
    """One row per run and task manager: sums over its group commits, kept by a trigger on these."""

    __tablename__ = "upload_totals"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "epoch"], ["cairn.runs.job_id", "cairn.runs.epoch"]),
    )
    job_id: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    tm_id: Mapped[str] = mapped_column(primary_key=True)
    commits: Mapped[int]
    requests: Mapped[int]
    failed_uploads: Mapped[int]
    size_bytes: Mapped[int]
    upload_ms: Mapped[int]
    winning_attempt: Mapped[int]
    segments: Mapped[int]
    pool_wait_ms: Mapped[int]


class MaterializationTotal(Base):
    """One row per subtask of a job: sums over its materializations, kept by a trigger on these.

    Those of one run are of the newest that has begun one, `epoch`. They start with it.
    """

    __tablename__ = "materialization_totals"
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"), primary_key=True)
    subtask: Mapped[int] = mapped_column(primary_key=True)
    started: Mapped[int] = mapped_column(server_default="0")
    completed: Mapped[int] = mapped_column(server_default="0")
    failed: Mapped[int] = mapped_column(server_default="0")
    epoch: Mapped[int]
    run_started: Mapped[int] = mapped_column(server_default="0")
    run_completed: Mapped[int] = mapped_column(server_default="0")
    run_failed: Mapped[int] = mapped_column(server_default="0")
    run_bytes: Mapped[int] = mapped_column(server_default="0")
    last_duration_ms: Mapped[int | None]
    """Of the last that completed; null: none has. The same below, by kind."""
    last_full_bytes: Mapped[int | None]
    last_increment_bytes: Mapped[int | None]
    last_completed_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
