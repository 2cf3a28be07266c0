"""Baseline: the tables. Every migration ends by installing triggers, views and roles from files."""

from __future__ import annotations

from pathlib import Path

from alembic import op

from metastore.definitions import run_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(op.get_bind(), Path(__file__).with_name("0001_tables.sql"))
