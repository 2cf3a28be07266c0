"""Steps of the maintenance that are measured in a process which has imported nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.compaction import plan_job
from cairn.maintenance.compaction_plan import CompactionOptions
from metastore.enums import MaintenanceAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """One fold of all subtasks; `size_bytes` is the mean of those read and written."""

    seconds: float
    cpu_s: float
    size_bytes: float


def fold(url: str, name: str, subtasks: int) -> Folded:
    """Folds all subtasks of a job.

    Raises:
        RuntimeError: not all of them had something to fold.
    """
    catalog = Catalog(url)
    statement = text("UPDATE cairn.jobs SET materialize_interval_ms = 1 WHERE name = :name")
    catalog.run("making folds due", lambda c: c.execute(statement, {"name": name}))
    plan = plan_action(catalog, MaintenanceAction.MATERIALIZATION, name)
    if plan is None:
        raise RuntimeError(f"nothing to fold of {name}")
    began_s, cpu_s = time.monotonic(), time.process_time()
    done = apply_plan(catalog, plan.run_id)
    if (done["folded"], done["refused"]) != (subtasks, 0):
        raise RuntimeError(f"the fold did {dict(done)}")
    return Folded(
        seconds=time.monotonic() - began_s,
        cpu_s=time.process_time() - cpu_s,
        size_bytes=(done["read_bytes"] + done["written_bytes"]) / 2,
    )


def compact(url: str, name: str) -> tuple[float, dict[str, Any]]:
    """Plans a compaction and applies it; returns how long applying took, in s, and what it did.

    Raises:
        RuntimeError: there was nothing to compact.
    """
    catalog = Catalog(url)
    planned = plan_job(catalog, name, CompactionOptions())
    if planned.plan_id is None:
        raise RuntimeError(f"nothing to compact: {planned.plan}")
    began_s = time.monotonic()
    done = apply_plan(catalog, planned.plan_id)
    return time.monotonic() - began_s, dict(done)
