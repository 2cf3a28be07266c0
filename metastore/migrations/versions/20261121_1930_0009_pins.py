"""Pins, which keep checkpoints beyond those retained, and segments that hold a manifest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

KNOWN_KINDS = "kind IN ('changelog', 'keyed_full', 'keyed_increment', 'manifest')"

V_PINS = """
SELECT
    p.job_id,
    j.name AS job_name,
    p.pin_id,
    p.checkpoint_id,
    c.query_id,
    c.batch_id,
    p.kind,
    p.name,
    j.storage || '/' || m.path AS manifest,
    p.created_at,
    p.removed_at
FROM cairn.pins AS p
JOIN cairn.jobs AS j ON j.job_id = p.job_id
JOIN cairn.checkpoints AS c ON c.job_id = p.job_id AND c.checkpoint_id = p.checkpoint_id
LEFT JOIN LATERAL (
    SELECT physical_files.path
    FROM cairn.segments
    JOIN cairn.physical_files ON physical_files.file_id = segments.file_id
    WHERE segments.job_id = p.job_id
      AND segments.first_checkpoint = p.checkpoint_id
      AND segments.kind = 'manifest'
      AND segments.status = 'LIVE'
    LIMIT 1
) AS m ON TRUE
"""

COMMENT = (
    "One row per pin or savepoint, removed ones too: its checkpoint, Spark''s names for it, and "
    "the URL of its manifest."
)

# A checkpoint is locked by whoever pins it and by whoever subsumes it, so one of the two waits for
# the other and then sees what it did, whether or not both hold the lock of the job.
GUARDS = """
CREATE FUNCTION cairn.refuse_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found text;
BEGIN
    SELECT status INTO found FROM cairn.checkpoints
    WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) FOR SHARE;
    IF found IS DISTINCT FROM 'CONFIRMED' THEN
        RAISE EXCEPTION USING ERRCODE = 'CA005', MESSAGE =
            'pins: only a CONFIRMED checkpoint can be pinned [' || cairn.about(to_jsonb(NEW))
            || ', ' || coalesce(found, 'no such checkpoint') || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION cairn.refuse_pinned() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.pins
        WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) AND removed_at IS NULL
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA005', MESSAGE =
            'checkpoints: a pinned checkpoint cannot be subsumed ['
            || cairn.about(to_jsonb(NEW)) || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER guard_confirmed BEFORE INSERT ON cairn.pins FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_pin();

CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.pins FOR EACH ROW
WHEN (
    (OLD.pin_id, OLD.job_id, OLD.checkpoint_id, OLD.kind, OLD.name)
    IS DISTINCT FROM
    (NEW.pin_id, NEW.job_id, NEW.checkpoint_id, NEW.kind, NEW.name)
)
EXECUTE FUNCTION cairn.refuse_identity('pin_id, job_id, checkpoint_id, kind, name');

CREATE TRIGGER guard_removed BEFORE UPDATE ON cairn.pins FOR EACH ROW
WHEN (OLD.removed_at IS NOT NULL AND NEW.removed_at IS DISTINCT FROM OLD.removed_at)
EXECUTE FUNCTION cairn.refuse_identity('removed_at, once set,');

CREATE TRIGGER guard_pinned BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (OLD.status <> 'SUBSUMED' AND NEW.status = 'SUBSUMED')
EXECUTE FUNCTION cairn.refuse_pinned();
"""

GRANTS = """
GRANT SELECT ON cairn.v_pins TO cairn_writer, cairn_maintainer, cairn_reader;
GRANT SELECT, INSERT, UPDATE (removed_at) ON cairn.pins TO cairn_writer;
GRANT SELECT ON cairn.pins TO cairn_maintainer;
"""


def upgrade() -> None:
    _pins()
    for table in ("segments", "materializations"):
        known = op.f(f"ck_{table}__kind_known")
        op.drop_constraint(known, table, schema="cairn", type_="check")
        op.create_check_constraint(known, table, KNOWN_KINDS, schema="cairn")
    op.execute(GUARDS)
    op.execute(f"CREATE VIEW cairn.v_pins AS {V_PINS}")
    op.execute(f"COMMENT ON VIEW cairn.v_pins IS '{COMMENT}'")
    op.execute(GRANTS)


def _pins() -> None:
    op.create_table(
        "pins",
        sa.Column("pin_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("kind IN ('pin', 'savepoint')", name=op.f("ck_pins__kind_known")),
        sa.ForeignKeyConstraint(
            ["job_id", "checkpoint_id"],
            ["cairn.checkpoints.job_id", "cairn.checkpoints.checkpoint_id"],
            name=op.f("fk_pins__job_id_checkpoint_id"),
        ),
        sa.PrimaryKeyConstraint("pin_id", name=op.f("pk_pins")),
        schema="cairn",
    )
    op.create_index(
        op.f("ix_pins__job_id_checkpoint_id"),
        "pins",
        ["job_id", "checkpoint_id"],
        schema="cairn",
        postgresql_where=sa.text("removed_at IS NULL"),
    )
