"""Uploads: requests that lost, what each group commit's uploads were like, and views of both.

Code of the release before must run on this schema, and locks must be short: add first, take away
a release later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COUNTS = (
    "files",
    "segments",
    "size_bytes",
    "requests",
    "retries",
    "hedges",
    "hedge_wins",
    "failed_attempts",
    "winning_attempt",
    "failed_uploads",
    "queue_size",
    "wait_ms",
    "upload_ms",
    "longest_request_ms",
)

GUARDS = """
CREATE TRIGGER guard_attempt BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN ((OLD.batch_id, OLD.retry_of) IS DISTINCT FROM (NEW.batch_id, NEW.retry_of))
EXECUTE FUNCTION cairn.refuse_identity('batch_id, retry_of');

CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.upload_stats FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_identity('commit_id, job_id, checkpoint_id, tm_id, {counts}');
"""

V_CHANGELOG_STORAGE = """
SELECT
    u.job_id,
    j.name AS job_name,
    u.checkpoint_id,
    u.tm_id,
    u.recorded_at,
    u.requests AS number_of_upload_requests,
    u.failed_uploads AS number_of_upload_failures,
    u.size_bytes AS upload_sizes,
    u.upload_ms * 1000000 AS upload_latencies_nanos,
    u.winning_attempt AS attempts_per_upload,
    u.requests AS total_attempts_per_upload,
    u.segments AS upload_batch_sizes,
    u.queue_size AS upload_queue_size,
    u.files,
    u.retries,
    u.hedges,
    u.hedge_wins,
    u.failed_attempts,
    u.wait_ms,
    u.longest_request_ms
FROM cairn.upload_stats AS u
JOIN cairn.jobs AS j ON j.job_id = u.job_id
"""

V_LOST_UPLOADS = """
SELECT
    f.job_id,
    j.name AS job_name,
    f.file_id,
    f.path,
    w.file_id AS lost_to,
    f.batch_id,
    f.status,
    f.created_at,
    f.deleted_at
FROM (
    SELECT DISTINCT physical_files.retry_of AS file_id
    FROM cairn.physical_files
    WHERE physical_files.retry_of IS NOT NULL
) AS u
JOIN cairn.physical_files AS w
    ON (w.file_id = u.file_id OR w.retry_of = u.file_id)
    AND w.sealed_at IS NOT NULL
JOIN cairn.physical_files AS f
    ON (f.file_id = u.file_id OR f.retry_of = u.file_id)
    AND f.sealed_at IS NULL
JOIN cairn.jobs AS j ON j.job_id = f.job_id
"""

VIEWS = {
    "v_changelog_storage": (
        V_CHANGELOG_STORAGE,
        "One row per group commit that uploaded something: the values of the ChangelogStorage "
        "metrics of Flink, and what Flink lacks.",
    ),
    "v_lost_uploads": (
        V_LOST_UPLOADS,
        "One row per physical file whose request lost to another one for the same bytes: a hedge, "
        "a retry, or the first.",
    ),
}

GRANTS = """
GRANT SELECT, INSERT ON cairn.upload_stats TO cairn_writer;
GRANT SELECT ON cairn.upload_stats TO cairn_maintainer;
GRANT SELECT ON cairn.v_changelog_storage, cairn.v_lost_uploads
    TO cairn_writer, cairn_maintainer, cairn_reader;
"""


def upgrade() -> None:
    _physical_files()
    _upload_stats()
    op.execute(GUARDS.format(counts=", ".join(COUNTS)))
    for name, (query, comment) in VIEWS.items():
        op.execute(f"CREATE VIEW cairn.{name} AS {query}")
        op.execute(f"COMMENT ON VIEW cairn.{name} IS '{comment}'")
    op.execute(GRANTS)


def _physical_files() -> None:
    op.add_column("physical_files", sa.Column("batch_id", sa.BigInteger), schema="cairn")
    op.add_column("physical_files", sa.Column("retry_of", sa.Uuid()), schema="cairn")
    op.create_foreign_key(
        "fk_physical_files__retry_of",
        "physical_files",
        "physical_files",
        ["retry_of"],
        ["file_id"],
        source_schema="cairn",
        referent_schema="cairn",
    )
    op.create_index(
        "ix_physical_files__retry_of",
        "physical_files",
        ["retry_of"],
        postgresql_where=sa.text("retry_of IS NOT NULL"),
        schema="cairn",
    )


def _upload_stats() -> None:
    op.create_table(
        "upload_stats",
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger, nullable=False),
        sa.Column("tm_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("commit_id", name="pk_upload_stats"),
        sa.ForeignKeyConstraint(
            ["job_id", "checkpoint_id"],
            ["cairn.checkpoints.job_id", "cairn.checkpoints.checkpoint_id"],
            name="fk_upload_stats__job_id_checkpoint_id",
        ),
        schema="cairn",
    )
    op.create_index(
        "ix_upload_stats__job_id_checkpoint_id",
        "upload_stats",
        ["job_id", "checkpoint_id"],
        schema="cairn",
    )
