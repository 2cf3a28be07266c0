"""The metastore's tables. One row per fact, grain in each docstring; states are guarded by SQL.

Tables carry no behaviour: transactions are in `cairn.catalog`, legal state transitions in
`triggers/status.sql`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Computed,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from metastore.columns import SCHEMA, Base, enum_of, one_of
from metastore.damaged_segments import DamagedSegment
from metastore.enums import (
    CheckpointStatus,
    DirectoryStatus,
    FileStatus,
    MaintenanceStatus,
    MaterializedBy,
    PinKind,
    Scope,
    SegmentStatus,
    StateKind,
)
from metastore.forms import DIRECTORY_FORM, FILE_FORM, JOB_ID_FORM, STORAGE_FORM
from metastore.group_commits import GroupCommit
from metastore.history import HistoryDay
from metastore.maintenance_runs import Deletion, GoodRun, MaintenanceDecision, MaintenanceRun
from metastore.observations import Materialization, MaterializationTotal, UploadTotal
from metastore.ownership import Metastore, Ownership
from metastore.placed_segments import PlacedSegment
from metastore.quarantine import QuarantinedObject
from metastore.run_requests import RunRequest
from metastore.state_variables import StateVariable
from metastore.tenants import Tenant

__all__ = [
    "SCHEMA",
    "Base",
    "Checkpoint",
    "CheckpointStatus",
    "DamagedSegment",
    "Deletion",
    "Directory",
    "DirectoryStatus",
    "FileStatus",
    "GoodRun",
    "GroupCommit",
    "HistoryDay",
    "Job",
    "MaintenanceDecision",
    "MaintenanceRun",
    "MaintenanceStatus",
    "Materialization",
    "MaterializationTotal",
    "Metastore",
    "Ownership",
    "PhysicalFile",
    "Pin",
    "PlacedSegment",
    "QuarantinedObject",
    "Run",
    "RunRequest",
    "SegmentStatus",
    "StateKind",
    "StateVariable",
    "Tenant",
    "UploadTotal",
]


class Job(Base):
    """One row per job: a named stateful operator with its own state and storage root."""

    __tablename__ = "jobs"
    # A restart may have to replay the newest confirmed batch, from the checkpoint before it.
    __table_args__ = (
        CheckConstraint("num_retained >= 2", name="num_retained_enough"),
        CheckConstraint(JOB_ID_FORM, name="job_id_form"),
        CheckConstraint(STORAGE_FORM, name="storage_form"),
        CheckConstraint("file_retention_ms BETWEEN 0 AND 315360000000", name="file_retention_sane"),
        CheckConstraint(
            "history_retention_ms >= 3600000 AND history_max_checkpoints >= 1000",
            name="history_long_enough",
        ),
        one_of("materialized_by", MaterializedBy),
        CheckConstraint("materialize_interval_ms > 0", name="materialize_interval_sane"),
    )
    job_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    tenant: Mapped[str | None] = mapped_column(ForeignKey(Tenant.name))
    """Who alone sees it, besides operators; null: it was made by no tenant."""
    storage: Mapped[str]
    max_parallelism: Mapped[int]
    num_retained: Mapped[int]
    key_schema: Mapped[dict[str, Any]]
    time_mode: Mapped[str | None]
    """The clock of timers and TTL: none, processingtime, eventtime."""
    query_id: Mapped[str | None]
    """Spark's query; bound by the first acknowledgement."""
    current_epoch: Mapped[int] = mapped_column(server_default="0")
    """The newest run that has started a batch; older ones are fenced."""
    next_checkpoint_id: Mapped[int] = mapped_column(server_default="1")
    file_retention_ms: Mapped[int] = mapped_column(server_default="3600000")
    """How long an object stays that was condemned; a restored backup may need it until then."""
    keeps_manifest: Mapped[bool] = mapped_column(server_default="false")
    """Whether the newest checkpoint with a manifest stays: a lost metastore is rebuilt from it."""
    history_retention_ms: Mapped[int] = mapped_column(server_default="604800000")
    """How long rows stay that nothing needs any more."""
    history_max_checkpoints: Mapped[int] = mapped_column(server_default="500000")
    """Rows of so many of the newest checkpoints stay so long; those of older ones do not."""
    materialized_by: Mapped[MaterializedBy] = mapped_column(
        enum_of(MaterializedBy), server_default=MaterializedBy.STREAM
    )
    materialize_interval_ms: Mapped[int] = mapped_column(server_default="600000")
    """How old the newest bases of a subtask get before its changelog is compacted."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    former_name: Mapped[str | None]
    """Of a job that was dropped; its name is its id then, so that another one may have this."""
    dropped_at: Mapped[datetime | None]
    """Since when its files and rows are being deleted."""


class Run(Base):
    """One row per start of a job's query: registered when the plan is built."""

    __tablename__ = "runs"
    __table_args__ = (one_of("materialized_by", MaterializedBy),)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.job_id), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[UUID] = mapped_column(unique=True)
    parallelism: Mapped[int]
    supervisor_id: Mapped[UUID | None]
    """The call of `cairn.run` that started it, which does what is asked in `run_requests`."""
    query_id: Mapped[str | None]
    watermark_delays_ms: Mapped[list[int]] = mapped_column(server_default="{}")
    """Of `withWatermark`, by input; empty: no event time, or that of `watermark_job_id`."""
    watermark_job_id: Mapped[str | None]
    """The job upstream in the same query whose watermark this one follows."""
    state_ids: Mapped[list[int]] = mapped_column(server_default="{}")
    """Of the state variables that its processor declares."""
    deleted_state_ids: Mapped[list[int]] = mapped_column(server_default="{}")
    """Of those that it deletes, which happens when its first batch begins."""
    layouts: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """By state id. These and what follows become the job's when the first batch begins."""
    time_mode: Mapped[str | None]
    num_retained: Mapped[int | None]
    file_retention_ms: Mapped[int | None]
    keeps_manifest: Mapped[bool | None]
    history_retention_ms: Mapped[int | None]
    history_max_checkpoints: Mapped[int | None]
    open_file_bytes: Mapped[int | None]
    """A file of it that is smaller may be continued by a later checkpoint; null: none is."""
    materialized_by: Mapped[MaterializedBy | None] = mapped_column(enum_of(MaterializedBy))
    materialize_interval_ms: Mapped[int | None]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    """When its first batch began."""
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """Its newest sign of life, up to some minutes late: its lease is counted from here."""
    ended_at: Mapped[datetime | None]
    """When its driver found its query over; null again once it begins another batch."""


class Checkpoint(Base):
    """One row per micro-batch that a run began; the id grows for ever within the job."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "epoch"], [Run.job_id, Run.epoch]),
        UniqueConstraint("job_id", "epoch", "query_id", "batch_id"),
        Index(None, "job_id", "query_id", "batch_id"),
        Index(
            "ix_checkpoints__ended",
            "job_id",
            "ended_at",
            postgresql_where=text("status IN ('SUBSUMED', 'ABORTED')"),
        ),
        Index(
            "ix_checkpoints__retained",
            "job_id",
            "checkpoint_id",
            postgresql_where=text("status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')"),
        ),
        one_of("status", CheckpointStatus),
    )
    job_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    query_id: Mapped[str]
    batch_id: Mapped[int]
    parallelism: Mapped[int]
    parent_checkpoint: Mapped[int | None]
    """The checkpoint whose state this one starts from; null: from nothing."""
    processing_ms: Mapped[int] = mapped_column(server_default="0")
    """The batch's processing time, ms since 1970; the same when the batch runs again."""
    watermark_ms: Mapped[int] = mapped_column(server_default="0")
    """Event time that the batch's timers have reached, ms since 1970; never decreases."""
    max_event_ms: Mapped[list[int | None]] = mapped_column(server_default="{}")
    """Latest event time by input, of all batches before this one."""
    status: Mapped[CheckpointStatus] = mapped_column(
        enum_of(CheckpointStatus), server_default=CheckpointStatus.IN_PROGRESS
    )
    began_at: Mapped[datetime] = mapped_column(server_default=func.now())
    completed_at: Mapped[datetime | None]
    confirmed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    """When it was subsumed or aborted."""


class Pin(Base):
    """One row per pin of a checkpoint, removed ones too: while it is open the checkpoint stays."""

    __tablename__ = "pins"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "checkpoint_id"], [Checkpoint.job_id, Checkpoint.checkpoint_id]
        ),
        Index(None, "job_id", "checkpoint_id"),
        one_of("kind", PinKind),
    )
    pin_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    checkpoint_id: Mapped[int]
    kind: Mapped[PinKind] = mapped_column(enum_of(PinKind))
    name: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    """From when on housekeeping removes it; null: only somebody does."""
    removed_at: Mapped[datetime | None]


class PhysicalFile(Base):
    """One row per object ever intended for storage; `path` is its key below the job's storage."""

    __tablename__ = "physical_files"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "epoch"], [Run.job_id, Run.epoch]),
        UniqueConstraint("job_id", "path"),
        Index(
            "ix_physical_files__deleted",
            "job_id",
            "deleted_at",
            postgresql_where=text("status = 'DELETED'"),
        ),
        Index(
            "ix_physical_files__undeleted",
            "job_id",
            "file_id",
            postgresql_where=text("status <> 'DELETED'"),
        ),
        Index(None, "retry_of", postgresql_where=text("retry_of IS NOT NULL")),
        Index(
            None,
            "maintenance_run_id",
            postgresql_where=text("maintenance_run_id IS NOT NULL"),
        ),
        # What a plan looks for among all the files that stay.
        Index(
            "ix_physical_files__writing",
            "job_id",
            "file_id",
            postgresql_where=text("status = 'WRITING'"),
        ),
        Index(
            "ix_physical_files__empty",
            "job_id",
            "file_id",
            postgresql_where=text("status = 'SEALED' AND is_empty"),
        ),
        Index(
            "ix_physical_files__wasteful",
            "job_id",
            "dead_bytes",
            "file_id",
            postgresql_where=text("status = 'SEALED' AND dead_bytes > 0"),
        ),
        one_of("status", FileStatus),
        one_of("scope", Scope),
        CheckConstraint("live_bytes >= 0 AND live_segments >= 0", name="live_counted"),
        CheckConstraint(FILE_FORM, name="path_form"),
    )
    file_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    epoch: Mapped[int]
    path: Mapped[str] = mapped_column(Text(collation="C"))
    """In order of bytes, as listings of a storage are."""
    scope: Mapped[Scope] = mapped_column(enum_of(Scope))
    batch_id: Mapped[int | None]
    """The batch whose acks alone may seal it; null: there is none."""
    retry_of: Mapped[UUID | None] = mapped_column(ForeignKey("cairn.physical_files.file_id"))
    """The file of the first request for the same bytes; null: it is the first."""
    materialization_id: Mapped[UUID | None]
    """The materialization whose end alone may seal it; null: there is none."""
    maintenance_run_id: Mapped[UUID | None] = mapped_column(
        ForeignKey(MaintenanceRun.maintenance_run_id)
    )
    """The maintenance run whose lease alone lets it be sealed; null: a run of the job writes it."""
    status: Mapped[FileStatus] = mapped_column(
        enum_of(FileStatus), server_default=FileStatus.WRITING
    )
    size_bytes: Mapped[int | None]
    live_bytes: Mapped[int] = mapped_column(server_default="0")
    """Sum over its LIVE segments, kept by a trigger on `segments`."""
    live_segments: Mapped[int] = mapped_column(server_default="0")
    dead_bytes: Mapped[int] = mapped_column(server_default="0")
    """What was dead in it when a segment died beside live ones; kept by the same triggers.

    So a file is in the index of wasteful ones only if it is one, and no batch pays for that.
    """
    is_empty: Mapped[bool] = mapped_column(Computed("live_segments = 0", persisted=True))
    """In an index in place of the counter, of which each change would write all of them."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    sealed_at: Mapped[datetime | None]
    condemned_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    verified_at: Mapped[datetime | None]
    """When a scrub has read its live segments last; null: only their writer has."""


class Directory(Base):
    """One row per directory of a job: one subtask's of a parallelism, or one task manager's."""

    __tablename__ = "directories"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "epoch"], [Run.job_id, Run.epoch]),
        one_of("status", DirectoryStatus),
        one_of("scope", Scope),
        CheckConstraint(DIRECTORY_FORM, name="path_form"),
    )
    job_id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    scope: Mapped[Scope] = mapped_column(enum_of(Scope))
    subtask: Mapped[int | None]
    parallelism: Mapped[int | None]
    tm_id: Mapped[str | None]
    status: Mapped[DirectoryStatus] = mapped_column(
        enum_of(DirectoryStatus), server_default=DirectoryStatus.CLAIMED
    )
    epoch: Mapped[int]
    """The newest run that claimed it."""
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    unclaimed_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
