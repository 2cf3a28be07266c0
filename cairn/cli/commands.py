"""The commands that read the metastore's views, migrate it, and clean up."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, text

from cairn.catalog import migrate as migrations
from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import unknown_job
from cairn.cli.output import fail, print_error, print_json, print_table, progress_bars
from cairn.errors import CairnError
from cairn.maintenance.cleanup import CleanupReport, cleanup_job
from metastore.enums import CheckpointStatus

_CHANGES_TIMEOUT_MS = 60_000
"""How long a command that changes much waits for the metastore."""

_STORE_FAILED = 3
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The watermark before any event time, and of jobs without."""

_JOB_COLUMNS = {
    "job_name": "job",
    "parallelism": "parallelism",
    "epoch": "run",
    "run_state": "is",
    "checkpoints": "checkpoints",
    "last_checkpoint": "last",
    "last_completed_at": "completed (UTC)",
    "storage": "storage",
}
_CHECKPOINT_COLUMNS = {
    "checkpoint_id": "checkpoint",
    "batch_id": "batch",
    "status": "status",
    "epoch": "run",
    "acks": "acks",
    "parallelism": "of",
    "duration_ms": "ms",
    "input_rows": "rows",
    "late_rows": "late",
    "new_segments": "segments",
    "new_bytes": "size",
    "new_files": "files",
    "watermark": "watermark (UTC)",
    "began_at": "began (UTC)",
}
_FILE_COLUMNS = {
    "path": "file",
    "scope": "scope",
    "status": "status",
    "size_bytes": "size",
    "live_bytes": "live",
    "live_segments": "segments",
    "amplification": "amplification",
    "kept_because": "kept because",
}
_DIRECTORY_COLUMNS = {
    "path": "directory",
    "scope": "scope",
    "status": "status",
    "epoch": "run",
    "files": "files",
    "size_bytes": "size",
    "live_bytes": "live",
    "claimed_at": "claimed (UTC)",
    "unclaimed_at": "given up (UTC)",
}
_REPORT_COLUMNS = {
    "job": "job",
    "subsumed_checkpoints": "checkpoints subsumed",
    "dead_segments": "segments dead",
    "condemned_files": "files condemned",
    "deleted_files": "files deleted",
    "freed_bytes": "freed",
    "failed_deletes": "deletes failed",
    "waiting_files": "files waiting",
    "waiting_bytes": "waiting",
    "next_delete_at": "next delete (UTC)",
    "trimmed_checkpoints": "checkpoints trimmed",
}


def migrate(catalog: Catalog, arguments: Namespace) -> int:
    """Brings the schema up to date."""
    applied = migrations.migrate(replace(catalog, timeout_ms=_CHANGES_TIMEOUT_MS))
    if arguments.json:
        print_json([{"revision": revision} for revision in applied])
    elif applied:
        print(f"applied {', '.join(applied)}")
    else:
        print(f"nothing to do: at revision {migrations.head_revision()}")
    return 0


def jobs(catalog: Catalog, arguments: Namespace) -> int:
    """Lists the jobs."""
    rows = read_view(catalog, "SELECT * FROM cairn.v_jobs ORDER BY job_name")
    return print_rows(rows, _JOB_COLUMNS, arguments)


def checkpoints(catalog: Catalog, arguments: Namespace) -> int:
    """Lists a job's checkpoints, newest first."""
    query = (
        "SELECT * FROM cairn.v_checkpoint_history WHERE job_id = :job_id "
        "AND status = ANY(:statuses) AND began_at >= :since "
        "ORDER BY checkpoint_id DESC LIMIT :limit"
    )
    values = {
        "statuses": [arguments.status] if arguments.status else list(CheckpointStatus),
        "since": arguments.since,
        "limit": arguments.limit + 1,
    }
    rows = read_view(catalog, query, arguments.job, **values)
    shown = [
        row if row["watermark"] != _NO_TIME else {**row, "watermark": None}
        for row in rows[: arguments.limit]
    ]
    # A column that is there only when it says something.
    is_damaged = any(row["damaged_segments"] for row in shown)
    damaged = {"damaged_segments": "damaged"} if is_damaged else {}
    code = print_rows(shown, _CHECKPOINT_COLUMNS | damaged, arguments)
    if len(rows) > len(shown):
        print(f"the newest {arguments.limit}; --limit prints more", file=sys.stderr)
    return code


def files(catalog: Catalog, arguments: Namespace) -> int:
    """Lists a job's files that are not deleted, oldest first."""
    query = (
        "SELECT * FROM cairn.v_files WHERE job_id = :job_id AND status <> 'DELETED' "
        "ORDER BY created_at, path"
    )
    return print_rows(read_view(catalog, query, arguments.job), _FILE_COLUMNS, arguments)


def directories(catalog: Catalog, arguments: Namespace) -> int:
    """Lists a job's directories that are not deleted, those of subtasks first."""
    query = (
        "SELECT * FROM cairn.v_directories WHERE job_id = :job_id AND status <> 'DELETED' "
        "ORDER BY scope, parallelism, subtask, claimed_at, path"
    )
    return print_rows(read_view(catalog, query, arguments.job), _DIRECTORY_COLUMNS, arguments)


def cleanup(catalog: Catalog, arguments: Namespace) -> int:
    """Cleans up one job or all; continues with the next when one fails."""
    listed = read_view(catalog, "SELECT * FROM cairn.v_jobs ORDER BY job_name")
    known = [row["job_name"] for row in listed]
    if arguments.job is not None and arguments.job not in known:
        raise unknown_job(arguments.job, known)
    chosen = known if arguments.job is None else [arguments.job]
    reports, code = _cleanup_each(catalog, chosen, dry_run=arguments.dry_run)
    print_rows([asdict(report) for report in reports], _REPORT_COLUMNS, arguments)
    for report in reports:
        if report.failed_deletes:
            print_error(
                f"{report.failed_deletes} files of job {report.job} could not be deleted; "
                "`cairn files` says why, the next cleanup tries again"
            )
            code = code or _STORE_FAILED
    return code


def _cleanup_each(
    catalog: Catalog, chosen: list[str], *, dry_run: bool
) -> tuple[list[CleanupReport], int]:
    catalog = replace(catalog, timeout_ms=_CHANGES_TIMEOUT_MS)
    reports: list[CleanupReport] = []
    code = 0
    with progress_bars() as progress:
        task = progress.add_task("cleaning up", total=len(chosen))
        for job in chosen:
            progress.update(task, description=job)
            try:
                reports.append(cleanup_job(catalog, job, dry_run=dry_run))
            except CairnError as error:
                code = code or fail(error)
            progress.advance(task)
    return reports, code


def read_view(
    catalog: Catalog,
    query: str,
    job: str | None = None,
    **values: object,
) -> list[Mapping[str, Any]]:
    """Returns the rows of a query on a view; `:job_id` in it is that of the job, given by name."""
    # Views of another revision may lack columns, or mean others by their names.
    migrations.require_current(catalog)

    def work(connection: Connection) -> list[Mapping[str, Any]]:
        bound = values if job is None else values | {"job_id": _job_id(connection, job)}
        return [dict(row) for row in connection.execute(text(query), bound).mappings()]

    return catalog.run("reading the metastore", work)


def _job_id(connection: Connection, job: str) -> str:
    rows = connection.execute(text("SELECT job_name, job_id FROM cairn.v_jobs ORDER BY job_name"))
    ids = {row.job_name: row.job_id for row in rows}
    if job not in ids:
        raise unknown_job(job, list(ids))
    return str(ids[job])


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], arguments: Namespace
) -> int:
    """Prints rows as JSON if asked to, else as a table; returns the exit code 0."""
    if arguments.json:
        print_json(rows)
    else:
        print_table(rows, columns)
    return 0
