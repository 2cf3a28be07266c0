"""Sums over the rows that the cleanup has trimmed, kept by triggers in the same transaction."""

from __future__ import annotations

import datetime

from sqlalchemy import Date, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import Base


class HistoryDay(Base):
    """One row per job and day (UTC) that has trimmed rows. A row counts for the day it was made."""

    __tablename__ = "history_days"
    job_id: Mapped[str] = mapped_column(ForeignKey("cairn.jobs.job_id"), primary_key=True)
    day: Mapped[datetime.date] = mapped_column(Date, primary_key=True)
    checkpoints_subsumed: Mapped[int] = mapped_column(server_default="0")
    checkpoints_aborted: Mapped[int] = mapped_column(server_default="0")
    subtasks: Mapped[int] = mapped_column(server_default="0")
    """Of the subsumed checkpoints, each with its parallelism."""
    group_commits: Mapped[int] = mapped_column(server_default="0")
    input_rows: Mapped[int] = mapped_column(server_default="0")
    """Without those of aborted checkpoints and replaced attempts, which were read again."""
    late_rows: Mapped[int] = mapped_column(server_default="0")
    segments: Mapped[int] = mapped_column(server_default="0")
    segment_bytes: Mapped[int] = mapped_column(server_default="0")
    uploads: Mapped[int] = mapped_column(server_default="0")
    """Group commits that uploaded something."""
    upload_requests: Mapped[int] = mapped_column(server_default="0")
    upload_retries: Mapped[int] = mapped_column(server_default="0")
    upload_hedges: Mapped[int] = mapped_column(server_default="0")
    failed_uploads: Mapped[int] = mapped_column(server_default="0")
    uploaded_bytes: Mapped[int] = mapped_column(server_default="0")
    upload_ms: Mapped[int] = mapped_column(server_default="0")
    files: Mapped[int] = mapped_column(server_default="0")
    """All of them deleted."""
    files_sealed: Mapped[int] = mapped_column(server_default="0")
    file_bytes: Mapped[int] = mapped_column(server_default="0")
    """Of those that were sealed."""
    materializations: Mapped[int] = mapped_column(server_default="0")
    materialized_bytes: Mapped[int] = mapped_column(server_default="0")
