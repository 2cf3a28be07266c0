"""Roles `cairn_writer`, `cairn_maintainer` and `cairn_reader`, with no more than each needs."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ROLES = ("cairn_writer", "cairn_maintainer", "cairn_reader")

# Two metastores of one server may be migrated at once, and roles belong to the server.
CREATE_ROLE = """
DO $$
BEGIN
    CREATE ROLE {role} NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""

# SELECT ... FOR UPDATE, which maintenance needs on jobs, takes the right to update some column;
# created_at is the one that means nothing.
GRANTS = """
GRANT USAGE ON SCHEMA cairn TO cairn_writer, cairn_maintainer, cairn_reader;
GRANT SELECT ON
    cairn.alembic_version, cairn.v_jobs, cairn.v_checkpoint_history, cairn.v_files,
    cairn.v_space_amplification, cairn.v_native_comparison
    TO cairn_writer, cairn_maintainer, cairn_reader;

GRANT SELECT, INSERT, UPDATE ON
    cairn.jobs, cairn.runs, cairn.state_variables, cairn.checkpoints, cairn.subtask_acks,
    cairn.segments
    TO cairn_writer;
GRANT SELECT, INSERT, UPDATE (status, size_bytes, sealed_at, condemned_at)
    ON cairn.physical_files TO cairn_writer;

GRANT SELECT ON
    cairn.jobs, cairn.runs, cairn.state_variables, cairn.checkpoints, cairn.subtask_acks,
    cairn.physical_files, cairn.segments, cairn.maintenance_runs, cairn.deletions
    TO cairn_maintainer;
GRANT UPDATE (created_at) ON cairn.jobs TO cairn_maintainer;
GRANT UPDATE (status, ended_at) ON cairn.checkpoints TO cairn_maintainer;
GRANT UPDATE (status, condemned_at, deleted_at) ON cairn.physical_files TO cairn_maintainer;
GRANT UPDATE (status, released_checkpoint) ON cairn.segments TO cairn_maintainer;
GRANT INSERT, UPDATE ON cairn.maintenance_runs, cairn.deletions TO cairn_maintainer;
"""


def upgrade() -> None:
    connection = op.get_bind()
    found = set(connection.scalars(text("SELECT rolname FROM pg_roles")))
    missing = [role for role in ROLES if role not in found]
    if missing and not connection.scalar(
        text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
    ):
        statements = "; ".join(f"CREATE ROLE {role} NOLOGIN" for role in missing)
        raise PermissionError(
            f"the roles {', '.join(missing)} are missing and this user may not create them: "
            f"have an administrator run `{statements}`, then migrate again"
        )
    for role in missing:
        op.execute(CREATE_ROLE.format(role=role))
    op.execute(GRANTS)
