"""Times of batches, event time of inputs, TTL and dropping of state variables, wider schemas.

Code of the release before must run on this schema, and locks must be short: add first, take away
a release later.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIGINTS = ARRAY(sa.BigInteger)

# Appends columns to the view of 0003, which is all that CREATE OR REPLACE may do.
V_CHECKPOINT_HISTORY = """
SELECT
    c.job_id,
    j.name AS job_name,
    c.checkpoint_id,
    c.query_id,
    c.batch_id,
    c.status,
    c.epoch,
    a.acks,
    c.parallelism,
    CAST(round(extract(EPOCH FROM c.completed_at - c.began_at) * 1000) AS bigint) AS duration_ms,
    a.restore_ms,
    a.input_rows,
    coalesce(s.new_segments, 0) AS new_segments,
    coalesce(s.new_bytes, 0) AS new_bytes,
    coalesce(s.new_files, 0) AS new_files,
    c.began_at,
    c.completed_at,
    c.confirmed_at,
    c.ended_at,
    a.late_rows,
    to_timestamp(CAST(c.processing_ms AS double precision) / 1000) AS processing_time,
    to_timestamp(CAST(c.watermark_ms AS double precision) / 1000) AS watermark
FROM cairn.checkpoints AS c
JOIN cairn.jobs AS j ON j.job_id = c.job_id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS acks,
        max(subtask_acks.restore_ms) AS restore_ms,
        CAST(coalesce(sum(subtask_acks.input_rows), 0) AS bigint) AS input_rows,
        CAST(coalesce(sum(subtask_acks.late_rows), 0) AS bigint) AS late_rows
    FROM cairn.subtask_acks
    WHERE subtask_acks.job_id = c.job_id
      AND subtask_acks.checkpoint_id = c.checkpoint_id
) AS a
LEFT JOIN (
    SELECT
        segments.job_id,
        segments.first_checkpoint,
        count(*) AS new_segments,
        CAST(sum(segments.size_bytes) AS bigint) AS new_bytes,
        count(DISTINCT segments.file_id) AS new_files
    FROM cairn.segments
    GROUP BY segments.job_id, segments.first_checkpoint
) AS s ON s.job_id = c.job_id AND s.first_checkpoint = c.checkpoint_id
"""

COMMENT = (
    "One row per checkpoint: status, acks of parallelism, duration in ms, rows, the segments, "
    "bytes and files that are new with it, and the processing time and watermark of the batch."
)

# A state variable that was dropped may be made again, and the layout of its values may grow.
STATE_VARIABLES = """
DROP TRIGGER guard_identity ON cairn.state_variables;
CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.state_variables FOR EACH ROW
WHEN (
    (OLD.job_id, OLD.state_id, OLD.name, OLD.kind, OLD.user_key_schema, OLD.has_ttl)
    IS DISTINCT FROM
    (NEW.job_id, NEW.state_id, NEW.name, NEW.kind, NEW.user_key_schema, NEW.has_ttl)
)
EXECUTE FUNCTION cairn.refuse_identity('job_id, state_id, name, kind, user_key_schema, has_ttl');

CREATE TRIGGER guard_dropped BEFORE UPDATE ON cairn.state_variables FOR EACH ROW
WHEN (OLD.dropped_at IS NOT NULL AND NEW.dropped_at IS DISTINCT FROM OLD.dropped_at)
EXECUTE FUNCTION cairn.refuse_identity('dropped_at, once set,');
"""


def upgrade() -> None:
    for table, column in (
        ("jobs", sa.Column("time_mode", sa.Text)),
        ("runs", _column("watermark_delays_ms", BIGINTS, "{}")),
        ("runs", sa.Column("watermark_job_id", sa.Text)),
        ("runs", _column("state_ids", BIGINTS, "{}")),
        ("runs", _column("deleted_state_ids", BIGINTS, "{}")),
        ("checkpoints", _column("processing_ms", sa.BigInteger(), "0")),
        ("checkpoints", _column("watermark_ms", sa.BigInteger(), "0")),
        ("checkpoints", _column("max_event_ms", BIGINTS, "{}")),
        ("subtask_acks", _column("late_rows", sa.BigInteger(), "0")),
        ("subtask_acks", _column("max_event_ms", BIGINTS, "{}")),
        ("state_variables", _column("has_ttl", sa.Boolean(), "false")),
        ("state_variables", sa.Column("dropped_at", sa.DateTime(timezone=True))),
    ):
        op.add_column(table, column, schema="cairn")
    op.drop_constraint("uq_state_variables__job_id_name", "state_variables", schema="cairn")
    op.create_index(
        "uq_state_variables__name",
        "state_variables",
        ["job_id", "name"],
        unique=True,
        postgresql_where=sa.text("dropped_at IS NULL"),
        schema="cairn",
    )
    op.execute(STATE_VARIABLES)
    op.execute(f"CREATE OR REPLACE VIEW cairn.v_checkpoint_history AS {V_CHECKPOINT_HISTORY}")
    op.execute(f"COMMENT ON VIEW cairn.v_checkpoint_history IS '{COMMENT}'")


def _column(name: str, kind: sa.types.TypeEngine[Any], default: str) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=default)
