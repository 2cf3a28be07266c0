"""Segments of operator lists and of channel state, which are part of one checkpoint each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

KNOWN_SEGMENTS = (
    "kind IN ('changelog', 'keyed_full', 'keyed_increment', 'operator', 'channel', 'manifest')"
)
KNOWN_STATES = "kind IN ('value', 'list', 'map', 'operator_list', 'operator_union')"
KNOWN_KINDS = {
    "segments": KNOWN_SEGMENTS,
    "materializations": KNOWN_SEGMENTS,
    "state_variables": KNOWN_STATES,
}


def upgrade() -> None:
    for table, kinds in KNOWN_KINDS.items():
        known = op.f(f"ck_{table}__kind_known")
        op.drop_constraint(known, table, schema="cairn", type_="check")
        op.create_check_constraint(known, table, kinds, schema="cairn")
    op.create_check_constraint(
        op.f("ck_segments__exclusive_to_one"),
        "segments",
        "kind NOT IN ('operator', 'channel', 'manifest') OR (released_checkpoint IS NOT NULL"
        " AND released_checkpoint <= first_checkpoint + 1)",
        schema="cairn",
    )
    op.create_index(
        op.f("uq_segments__operator"),
        "segments",
        ["job_id", "first_checkpoint", "subtask"],
        unique=True,
        postgresql_where=sa.text("kind = 'operator' AND status = 'LIVE'"),
        schema="cairn",
    )
