"""Increments: segments with what has changed since a base; and what materializations were made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KNOWN_KINDS = "kind IN ('changelog', 'keyed_full', 'keyed_increment')"

V_MATERIALIZATION = """
SELECT
    m.job_id,
    j.name AS job_name,
    m.subtask,
    count(*) AS started,
    count(*) FILTER (WHERE m.finished_at IS NOT NULL AND m.error IS NULL) AS completed,
    count(m.error) AS failed,
    CAST(
        (array_agg(round(extract(EPOCH FROM m.finished_at - m.started_at) * 1000)
            ORDER BY m.started_at DESC)
            FILTER (WHERE m.finished_at IS NOT NULL AND m.error IS NULL))[1] AS bigint
    ) AS last_duration_ms,
    (array_agg(m.size_bytes ORDER BY m.started_at DESC)
        FILTER (WHERE m.kind = 'keyed_full'))[1] AS last_full_bytes,
    (array_agg(m.size_bytes ORDER BY m.started_at DESC)
        FILTER (WHERE m.kind = 'keyed_increment'))[1] AS last_increment_bytes,
    coalesce(max(s.segments), 0) AS changelog_segments,
    CAST(coalesce(max(s.bytes), 0) AS bigint) AS changelog_bytes,
    max(m.finished_at) FILTER (WHERE m.error IS NULL) AS last_completed_at,
    (array_agg(m.error ORDER BY m.started_at DESC) FILTER (WHERE m.error IS NOT NULL))[1]
        AS last_error
FROM cairn.materializations AS m
JOIN cairn.jobs AS j ON j.job_id = m.job_id
LEFT JOIN (
    SELECT
        segments.job_id,
        segments.subtask,
        count(*) AS segments,
        sum(segments.size_bytes) AS bytes
    FROM cairn.segments
    WHERE segments.kind = 'changelog'
      AND segments.status = 'LIVE'
      AND segments.released_checkpoint IS NULL
    GROUP BY segments.job_id, segments.subtask
) AS s ON s.job_id = m.job_id AND s.subtask = m.subtask
GROUP BY m.job_id, j.name, m.subtask
"""

COMMENT = (
    "One row per job and subtask: materializations begun, completed and failed, how long the last "
    "one took, what it wrote in bytes, and the changelog that a restore replays."
)

GRANTS = """
GRANT SELECT, INSERT, UPDATE ON cairn.materializations TO cairn_writer;
GRANT SELECT ON cairn.materializations TO cairn_maintainer;
GRANT SELECT ON cairn.v_materialization TO cairn_writer, cairn_maintainer, cairn_reader;
"""


def upgrade() -> None:
    known = op.f("ck_segments__kind_known")
    op.drop_constraint(known, "segments", schema="cairn", type_="check")
    op.create_check_constraint(known, "segments", KNOWN_KINDS, schema="cairn")
    op.create_table(
        "materializations",
        sa.Column("materialization_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("subtask", sa.BigInteger(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.Column("kind", sa.String(16)),
        sa.Column("as_of_checkpoint", sa.BigInteger()),
        *(
            sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
            for name in ("segments", "entries", "size_bytes")
        ),
        sa.CheckConstraint(KNOWN_KINDS, name=op.f("ck_materializations__kind_known")),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["cairn.runs.job_id", "cairn.runs.epoch"],
            name=op.f("fk_materializations__job_id_epoch"),
        ),
        sa.PrimaryKeyConstraint("materialization_id", name=op.f("pk_materializations")),
        schema="cairn",
    )
    op.create_index(
        op.f("ix_materializations__job_id_subtask_started_at"),
        "materializations",
        ["job_id", "subtask", "started_at"],
        schema="cairn",
    )
    op.execute(f"CREATE VIEW cairn.v_materialization AS {V_MATERIALIZATION}")
    op.execute(f"COMMENT ON VIEW cairn.v_materialization IS '{COMMENT}'")
    op.execute(GRANTS)
