"""Directory handles, and sealed files that grow.

Code of the release before must run on this schema, and locks must be short: add first, take away
a release later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# A sealed file is whole up to its size, and may be continued: its size grows, and nothing else.
GROWTH = """
DROP TRIGGER guard_size ON cairn.physical_files;
CREATE TRIGGER guard_size BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (
    OLD.size_bytes IS NOT NULL AND NEW.size_bytes IS DISTINCT FROM OLD.size_bytes
    AND NOT coalesce(
        OLD.status = 'SEALED' AND NEW.status = 'SEALED' AND NEW.size_bytes > OLD.size_bytes, FALSE
    )
)
EXECUTE FUNCTION cairn.refuse_identity('size_bytes (but for sealed files that grow)');
"""

LEGAL = (
    ("CLAIMED", "UNCLAIMED"),
    ("UNCLAIMED", "DELETED"),
    ("UNCLAIMED", "CLAIMED"),
    ("DELETED", "CLAIMED"),
)
IDENTITY = ("job_id", "path", "scope", "subtask", "parallelism", "tm_id")

DIRECTORIES = """
CREATE TRIGGER guard_new_status BEFORE INSERT ON cairn.directories FOR EACH ROW
WHEN (NEW.status <> 'CLAIMED') EXECUTE FUNCTION cairn.refuse_status();

CREATE TRIGGER guard_status BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN ({legal}))
EXECUTE FUNCTION cairn.refuse_status();

CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (({old}) IS DISTINCT FROM ({new}))
EXECUTE FUNCTION cairn.refuse_identity('{columns}');

CREATE FUNCTION cairn.refuse_removal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found text := (
        SELECT path FROM cairn.physical_files
        WHERE job_id = NEW.job_id AND status <> 'DELETED' AND starts_with(path, NEW.path || '/')
        LIMIT 1
    );
BEGIN
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'directories: one with a file cannot be deleted ['
            || cairn.about(to_jsonb(NEW)) || ', ' || found || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER guard_removal BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (OLD.status <> 'DELETED' AND NEW.status = 'DELETED')
EXECUTE FUNCTION cairn.refuse_removal();
"""

V_DIRECTORIES = """
SELECT
    d.job_id,
    j.name AS job_name,
    d.path,
    d.scope,
    d.subtask,
    d.parallelism,
    d.tm_id,
    d.status,
    d.epoch,
    f.files,
    f.size_bytes,
    f.live_bytes,
    d.claimed_at,
    d.unclaimed_at,
    d.deleted_at
FROM cairn.directories AS d
JOIN cairn.jobs AS j ON j.job_id = d.job_id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS files,
        CAST(coalesce(sum(physical_files.size_bytes), 0) AS bigint) AS size_bytes,
        CAST(coalesce(sum(physical_files.live_bytes), 0) AS bigint) AS live_bytes
    FROM cairn.physical_files
    WHERE physical_files.job_id = d.job_id
      AND physical_files.status <> 'DELETED'
      AND starts_with(physical_files.path, d.path || '/')
) AS f
"""

COMMENT = (
    "One row per directory of a job: whose it is, whether a run claims it, and the files that are "
    "not deleted."
)

GRANTS = """
GRANT SELECT ON cairn.v_directories TO cairn_writer, cairn_maintainer, cairn_reader;
GRANT SELECT, INSERT, UPDATE (status, epoch, claimed_at, unclaimed_at, deleted_at)
    ON cairn.directories TO cairn_writer;
GRANT SELECT, UPDATE (status, deleted_at) ON cairn.directories TO cairn_maintainer;
"""


def upgrade() -> None:
    op.execute(GROWTH)
    _directories()
    op.execute(
        DIRECTORIES.format(
            legal=", ".join(str(step) for step in LEGAL),
            old=", ".join(f"OLD.{column}" for column in IDENTITY),
            new=", ".join(f"NEW.{column}" for column in IDENTITY),
            columns=", ".join(IDENTITY),
        )
    )
    op.execute(f"CREATE VIEW cairn.v_directories AS {V_DIRECTORIES}")
    op.execute(f"COMMENT ON VIEW cairn.v_directories IS '{COMMENT}'")
    op.execute(GRANTS)


def _directories() -> None:
    op.create_table(
        "directories",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("subtask", sa.BigInteger()),
        sa.Column("parallelism", sa.BigInteger()),
        sa.Column("tm_id", sa.Text()),
        sa.Column("status", sa.String(16), server_default="CLAIMED", nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("unclaimed_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "status IN ('CLAIMED', 'UNCLAIMED', 'DELETED')",
            name=op.f("ck_directories__status_known"),
        ),
        sa.CheckConstraint(
            "scope IN ('shared', 'taskmanager')", name=op.f("ck_directories__scope_known")
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["cairn.runs.job_id", "cairn.runs.epoch"],
            name=op.f("fk_directories__job_id_epoch"),
        ),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f("pk_directories")),
        schema="cairn",
    )
