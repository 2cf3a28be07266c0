"""Sequence numbers: a subtask may have several changelog segments in one checkpoint.

Their attempt and checkpoint say which ack they belong to, so the ack no longer names one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

IDENTITY = (
    "segment_id",
    "job_id",
    "file_id",
    "kind",
    "subtask",
    "key_groups",
    "offset_bytes",
    "size_bytes",
    "sha256",
    "entries",
    "first_checkpoint",
    "as_of_checkpoint",
    "sequence_number",
)


def upgrade() -> None:
    op.add_column(
        "segments",
        sa.Column("sequence_number", sa.SmallInteger(), server_default="0", nullable=False),
        schema="cairn",
    )
    op.create_index(
        op.f("uq_segments__sequence_number"),
        "segments",
        ["job_id", "first_checkpoint", "subtask", "sequence_number"],
        unique=True,
        postgresql_where=sa.text("kind = 'changelog' AND status = 'LIVE'"),
        schema="cairn",
    )
    op.drop_column("subtask_acks", "segment_id", schema="cairn")
    old, new = (", ".join(f"{row}.{name}" for name in IDENTITY) for row in ("OLD", "NEW"))
    op.execute(
        "DROP TRIGGER guard_identity ON cairn.segments;"
        " CREATE TRIGGER guard_identity BEFORE UPDATE ON cairn.segments FOR EACH ROW"
        f" WHEN (({old}) IS DISTINCT FROM ({new}))"
        f" EXECUTE FUNCTION cairn.refuse_identity('{', '.join(IDENTITY)}')"
    )
