"""Stored plans of maintenance actions: the rows that appliers, also in other processes, start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from metastore.enums import MaintenanceAction
from metastore.models import MaintenanceRun

PLAN_LIFE_MIN = 60
"""A plan older than this, by the database's clock, is refused."""


def store_plan(
    connection: Connection,
    run_id: UUID,
    job_id: str,
    action: MaintenanceAction,
    plan: Mapping[str, Any],
    plan_sha256: str,
) -> None:
    """Stores a plan as PLANNED, under the id of its maintenance run."""
    connection.execute(
        insert(MaintenanceRun)
        .values(
            maintenance_run_id=run_id,
            job_id=job_id,
            action=action,
            plan=dict(plan),
            plan_sha256=plan_sha256,
        )
        # The transaction again, after its answer was lost.
        .on_conflict_do_nothing(index_elements=[MaintenanceRun.maintenance_run_id])
    )
