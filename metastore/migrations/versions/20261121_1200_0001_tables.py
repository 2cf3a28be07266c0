"""Tables, exactly those of `metastore.models`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _jobs()
    _maintenance_runs()
    _runs()
    _state_variables()
    _checkpoints()
    _physical_files()
    _deletions()
    _segments()
    _subtask_acks()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("storage", sa.Text(), nullable=False),
        sa.Column("max_parallelism", sa.BigInteger(), nullable=False),
        sa.Column("num_retained", sa.BigInteger(), nullable=False),
        sa.Column("key_schema", postgresql.JSONB(), nullable=False),
        sa.Column("query_id", sa.Text()),
        sa.Column("current_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_checkpoint_id", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("num_retained >= 2", name=op.f("ck_jobs__num_retained_enough")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("name", name=op.f("uq_jobs__name")),
        schema="cairn",
    )


def _maintenance_runs() -> None:
    op.create_table(
        "maintenance_runs",
        sa.Column("maintenance_run_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("plan", postgresql.JSONB(), nullable=False),
        sa.Column("plan_sha256", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), server_default="PLANNED", nullable=False),
        sa.Column("result", postgresql.JSONB()),
        sa.Column(
            "planned_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "status IN ('PLANNED', 'APPLIED', 'FAILED')",
            name=op.f("ck_maintenance_runs__status_known"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["cairn.jobs.job_id"], name=op.f("fk_maintenance_runs__job_id")
        ),
        sa.PrimaryKeyConstraint("maintenance_run_id", name=op.f("pk_maintenance_runs")),
        schema="cairn",
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("parallelism", sa.BigInteger(), nullable=False),
        sa.Column("query_id", sa.Text()),
        sa.Column(
            "registered_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["job_id"], ["cairn.jobs.job_id"], name=op.f("fk_runs__job_id")),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs__run_id")),
        schema="cairn",
    )


def _state_variables() -> None:
    op.create_table(
        "state_variables",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("state_id", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("value_schema", postgresql.JSONB(), nullable=False),
        sa.Column("user_key_schema", postgresql.JSONB()),
        sa.CheckConstraint(
            "kind IN ('value', 'list', 'map')", name=op.f("ck_state_variables__kind_known")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["cairn.jobs.job_id"], name=op.f("fk_state_variables__job_id")
        ),
        sa.PrimaryKeyConstraint("job_id", "state_id", name=op.f("pk_state_variables")),
        sa.UniqueConstraint("job_id", "name", name=op.f("uq_state_variables__job_id_name")),
        schema="cairn",
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("query_id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("parallelism", sa.BigInteger(), nullable=False),
        sa.Column("parent_checkpoint", sa.BigInteger()),
        sa.Column("status", sa.String(16), server_default="IN_PROGRESS", nullable=False),
        sa.Column(
            "began_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.Column("confirmed_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED', 'SUBSUMED', 'ABORTED')",
            name=op.f("ck_checkpoints__status_known"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["cairn.runs.job_id", "cairn.runs.epoch"],
            name=op.f("fk_checkpoints__job_id_epoch"),
        ),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint(
            "job_id",
            "epoch",
            "query_id",
            "batch_id",
            name=op.f("uq_checkpoints__job_id_epoch_query_id_batch_id"),
        ),
        schema="cairn",
    )
    op.create_index(
        op.f("ix_checkpoints__job_id_query_id_batch_id"),
        "checkpoints",
        ["job_id", "query_id", "batch_id"],
        schema="cairn",
    )
    op.create_index(
        "ix_checkpoints__open",
        "checkpoints",
        ["job_id", "checkpoint_id"],
        schema="cairn",
        postgresql_where=sa.text("status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')"),
    )


def _physical_files() -> None:
    op.create_table(
        "physical_files",
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), server_default="WRITING", nullable=False),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("live_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("live_segments", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("sealed_at", sa.DateTime(timezone=True)),
        sa.Column("condemned_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "scope IN ('shared', 'taskmanager')", name=op.f("ck_physical_files__scope_known")
        ),
        sa.CheckConstraint(
            "status IN ('WRITING', 'SEALED', 'CONDEMNED', 'DELETED')",
            name=op.f("ck_physical_files__status_known"),
        ),
        sa.CheckConstraint(
            "live_bytes >= 0 AND live_segments >= 0", name=op.f("ck_physical_files__live_counted")
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["cairn.runs.job_id", "cairn.runs.epoch"],
            name=op.f("fk_physical_files__job_id_epoch"),
        ),
        sa.PrimaryKeyConstraint("file_id", name=op.f("pk_physical_files")),
        sa.UniqueConstraint("job_id", "path", name=op.f("uq_physical_files__job_id_path")),
        schema="cairn",
    )
    op.create_index(
        "ix_physical_files__undeleted",
        "physical_files",
        ["job_id", "file_id"],
        schema="cairn",
        postgresql_where=sa.text("status <> 'DELETED'"),
    )


def _deletions() -> None:
    op.create_table(
        "deletions",
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("maintenance_run_id", sa.Uuid(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text()),
        sa.Column(
            "requested_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["file_id"], ["cairn.physical_files.file_id"], name=op.f("fk_deletions__file_id")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["cairn.jobs.job_id"], name=op.f("fk_deletions__job_id")
        ),
        sa.ForeignKeyConstraint(
            ["maintenance_run_id"],
            ["cairn.maintenance_runs.maintenance_run_id"],
            name=op.f("fk_deletions__maintenance_run_id"),
        ),
        sa.PrimaryKeyConstraint("file_id", name=op.f("pk_deletions")),
        schema="cairn",
    )
    op.create_index(
        "ix_deletions__open",
        "deletions",
        ["job_id", "file_id"],
        schema="cairn",
        postgresql_where=sa.text("done_at IS NULL"),
    )


def _segments() -> None:
    op.create_table(
        "segments",
        sa.Column("segment_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subtask", sa.BigInteger(), nullable=False),
        sa.Column("key_groups", postgresql.INT4RANGE(), nullable=False),
        sa.Column("offset_bytes", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("first_checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("as_of_checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("released_checkpoint", sa.BigInteger()),
        sa.Column("status", sa.String(16), server_default="LIVE", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "kind IN ('changelog', 'keyed_full')", name=op.f("ck_segments__kind_known")
        ),
        sa.CheckConstraint("status IN ('LIVE', 'DEAD')", name=op.f("ck_segments__status_known")),
        sa.CheckConstraint(
            "offset_bytes >= 0 AND size_bytes > 0", name=op.f("ck_segments__range_sane")
        ),
        sa.CheckConstraint(
            "released_checkpoint IS NULL OR released_checkpoint >= first_checkpoint",
            name=op.f("ck_segments__released_after_first"),
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["cairn.physical_files.file_id"], name=op.f("fk_segments__file_id")
        ),
        sa.PrimaryKeyConstraint("segment_id", name=op.f("pk_segments")),
        schema="cairn",
    )
    op.create_index(op.f("ix_segments__file_id"), "segments", ["file_id"], schema="cairn")
    op.create_index(
        "ix_segments__live",
        "segments",
        ["job_id", "first_checkpoint"],
        schema="cairn",
        postgresql_where=sa.text("status = 'LIVE'"),
    )


def _subtask_acks() -> None:
    op.create_table(
        "subtask_acks",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("subtask", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("task_attempt", sa.BigInteger(), nullable=False),
        sa.Column("tm_id", sa.Text(), nullable=False),
        sa.Column("segment_id", sa.Uuid()),
        sa.Column("input_rows", sa.BigInteger(), nullable=False),
        sa.Column("restore_ms", sa.BigInteger(), nullable=False),
        sa.Column(
            "acked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "checkpoint_id"],
            ["cairn.checkpoints.job_id", "cairn.checkpoints.checkpoint_id"],
            name=op.f("fk_subtask_acks__job_id_checkpoint_id"),
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["cairn.segments.segment_id"], name=op.f("fk_subtask_acks__segment_id")
        ),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", "subtask", name=op.f("pk_subtask_acks")),
        schema="cairn",
    )
    op.create_index(
        op.f("ix_subtask_acks__segment_id"), "subtask_acks", ["segment_id"], schema="cairn"
    )
