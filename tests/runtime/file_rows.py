"""What the metastore and the storage say of a plan's files and directories."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from cairn.layout import generation_of
from cairn.runtime.executor.run_context import RunContext
from cairn.storage import open_store


def rows(plan: RunContext, statement: str, **values: Any) -> list[Any]:
    """Returns the rows of a statement, of which each has one column or is a tuple."""
    bound = {"job": plan.job_id, **values}
    needed = {name: value for name, value in bound.items() if f":{name}" in statement}
    with plan.catalog.begin() as connection:
        found = [tuple(row) for row in connection.execute(text(statement), needed)]
    return [row[0] if len(row) == 1 else row for row in found]


def files(plan: RunContext, status: str = "SEALED") -> list[tuple[str, int, int]]:
    """Returns path below the job's root, size and live segments of files, oldest first.

    The size of one that was never sealed is given as -1.
    """
    found = rows(
        plan,
        "SELECT path, coalesce(size_bytes, -1), live_segments FROM cairn.physical_files"
        " WHERE job_id = :job AND status = :status ORDER BY created_at, path",
        status=status,
    )
    return [(path.removeprefix(f"{plan.job_id}/"), size, live) for path, size, live in found]


def objects(plan: RunContext) -> dict[str, int]:
    """Returns the sizes of the job's objects by path below the job's root."""
    prefix = f"{plan.job_id}/"
    found = open_store(plan.storage).list(prefix)
    return {
        stored.path.removeprefix(prefix): stored.size_bytes
        for stored in found
        if generation_of(stored.path) is None
    }


def directories(plan: RunContext) -> dict[str, str]:
    """Returns the status of the job's directories by path below the job's root."""
    found = rows(plan, "SELECT path, status FROM cairn.directories WHERE job_id = :job")
    return {path.removeprefix(f"{plan.job_id}/"): status for path, status in found}
