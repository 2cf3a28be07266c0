"""What processes of their own do in tests that kill them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup import history
from cairn.maintenance.actions import apply_plan
from cairn.maintenance.cleanup import CleanupReport, cleanup_job
from cairn.maintenance.sweep import SweepReport, sweep_job
from tests.maintenance.sweeping import ANY_AGE


def cleanup(url: str, job: str) -> CleanupReport:
    """Cleans a job."""
    return cleanup_job(Catalog(url), job)


def sweep(url: str, job: str) -> SweepReport:
    """Sweeps a job."""
    return sweep_job(Catalog(url), job, unsafe_min_age=ANY_AGE)


def housekeep(url: str, run_id: UUID) -> Mapping[str, Any]:
    """Applies a stored plan of housekeeping, in many steps."""
    history.TRIM_ROWS = 2
    return apply_plan(Catalog(url), run_id)


def apply(url: str, run_id: UUID) -> Mapping[str, Any]:
    """Applies a stored plan."""
    return apply_plan(Catalog(url), run_id)
