"""What each role can do, and that it can do no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import resolve_url
from cairn.catalog.migrate import migrate, require_current
from cairn.errors import BadInputError, RefusedError
from metastore.definitions import VIEWS
from metastore.models import Base, PhysicalFile
from tests.metastore.rows import Rows

TABLES = [table.name for table in Base.metadata.sorted_tables]
WRITTEN_BY_JOBS = {
    "jobs",
    "runs",
    "state_variables",
    "checkpoints",
    "pins",
    "group_commits",
    "physical_files",
    "placed_segments",
    "directories",
    "materializations",
    "ownerships",
}
TRIMMED = {
    "checkpoints",
    "pins",
    "group_commits",
    "physical_files",
    "placed_segments",
    "directories",
    "materializations",
    "upload_totals",
    "maintenance_runs",
    "maintenance_decisions",
    "deletions",
    "quarantined_objects",
    "damaged_segments",
}
"""Whose rows leave the metastore when nothing needs them any more."""
DROPPED = {
    "run_requests",
    "jobs",
    "runs",
    "state_variables",
    "history_days",
    "materialization_totals",
    "good_runs",
    "ownerships",
}
"""Whose rows leave it with their job only."""
ROLES = ["cairn_writer", "cairn_maintainer", "cairn_reader"]


def may(rows: Rows, role: str, privilege: str, table: str) -> bool:
    [row] = rows.execute(
        text("SELECT has_table_privilege(:role, :table, :privilege) AS may").bindparams(
            role=role, table=f"cairn.{table}", privilege=privilege
        )
    )
    return bool(row["may"])


def updatable(rows: Rows, role: str, table: str) -> set[str]:
    found = rows.execute(
        text(
            "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) "
            "AND attnum > 0 AND has_column_privilege(:role, attrelid, attnum, 'UPDATE')"
        ).bindparams(role=role, table=f"cairn.{table}")
    )
    return {row["attname"] for row in found}


def run(url: str, statement: str) -> None:
    Catalog(url).run("testing", lambda connection: connection.execute(text(statement)))


@pytest.mark.parametrize("table", TABLES)
def test_writer_reads_and_writes_what_a_job_does_and_deletes_nothing(
    rows: Rows, table: str
) -> None:
    ours = table in WRITTEN_BY_JOBS
    answered = table == "run_requests"
    read_only = ("metastore", "damaged_segments")
    assert may(rows, "cairn_writer", "SELECT", table) is (ours or answered or table in read_only)
    assert may(rows, "cairn_writer", "INSERT", table) is ours
    assert bool(updatable(rows, "cairn_writer", table)) is (ours or answered)
    assert not may(rows, "cairn_writer", "DELETE, TRUNCATE, TRIGGER", table)


MAINTAINER_CHANGES = {
    "jobs": {"name", "former_name", "dropped_at", "current_epoch"},
    "checkpoints": {"status", "ended_at"},
    "pins": {"removed_at"},
    "runs": {"ended_at"},
    "good_runs": {"finished_at"},
    "physical_files": {
        "status",
        "size_bytes",
        "sealed_at",
        "condemned_at",
        "deleted_at",
        "verified_at",
    },
    "placed_segments": {"status", "released_checkpoint"},
    "group_commits": {"status"},
    "directories": {"status", "epoch", "claimed_at", "unclaimed_at", "deleted_at"},
    "maintenance_runs": {
        "status",
        "result",
        "finished_at",
        "holder",
        "leased_until",
        "breakers",
        "passed_by",
        "passed_at",
    },
    "maintenance_decisions": {"objects"},
    "deletions": {"attempts", "last_error", "done_at"},
    "damaged_segments": {"damage", "seen_at", "resolved_at"},
    "ownerships": {"confirmed_at"},
    "run_requests": {"status", "ended_at", "message"},
    "quarantined_objects": {
        "status",
        "condemned_at",
        "restored_at",
        "released_at",
        "deleted_at",
        "last_error",
    },
}
MAINTAINER_ADDS = {
    "maintenance_runs",
    "maintenance_decisions",
    "deletions",
    "quarantined_objects",
    "damaged_segments",
    "good_runs",
    # Of folds and compactions.
    "physical_files",
    "directories",
    "placed_segments",
    "materializations",
}


@pytest.mark.parametrize("table", TABLES)
def test_maintainer_reads_all_changes_states_and_trims_history(rows: Rows, table: str) -> None:
    assert may(rows, "cairn_maintainer", "SELECT", table)
    assert updatable(rows, "cairn_maintainer", table) == MAINTAINER_CHANGES.get(table, set())
    its_own = table in MAINTAINER_ADDS
    assert may(rows, "cairn_maintainer", "INSERT", table) is its_own
    assert may(rows, "cairn_maintainer", "DELETE", table) is (table in TRIMMED | DROPPED)
    assert not may(rows, "cairn_maintainer", "TRUNCATE, TRIGGER", table)


@pytest.mark.parametrize("table", TABLES)
def test_reader_sees_no_table(rows: Rows, table: str) -> None:
    with pytest.raises(BadInputError, match="permission denied"):
        rows.execute(text(f"SELECT * FROM cairn.{table}"), role="cairn_reader")  # noqa: S608


@pytest.mark.parametrize("view", [path.stem for path in VIEWS])
@pytest.mark.parametrize("role", ROLES)
def test_every_role_reads_the_views(rows: Rows, role: str, view: str) -> None:
    rows.directory()
    first = rows.file("WRITING")
    file_id = rows.file(retry_of=first)
    rows.damage(file_id, rows.segment(file_id))
    rows.checkpoint(1, "CONFIRMED")
    rows.pin(1)
    rows.upload(1)
    rows.ack(1, 0, input_rows=1)
    rows.materialization()
    rows.decision(rows.maintenance_run())
    rows.request()
    assert rows.execute(text(f"SELECT * FROM cairn.{view}"), role=role)  # noqa: S608


def test_writer_commits_a_checkpoint_and_the_counters_follow(metastore_url: str) -> None:
    rows = Rows(metastore_url, role="cairn_writer")
    rows.job()
    rows.checkpoint(1)
    rows.ack(1, 0, input_rows=1)
    file_id = rows.file()
    replaced = rows.segment(file_id, 100)
    rows.segment(file_id, 50, released_checkpoint=1)
    assert rows.counters(file_id) == (2, 150)
    with pytest.raises(BadInputError, match="permission denied"):
        rows.execute(text("UPDATE cairn.placed_segments SET status = 'DEAD'"))
    with pytest.raises(BadInputError, match="permission denied"):
        rows.execute(text("UPDATE cairn.physical_files SET live_bytes = 0"))
    with pytest.raises(BadInputError, match="permission denied"):
        rows.execute(text("DELETE FROM cairn.placed_segments"))
    with pytest.raises(BadInputError, match="permission denied"):
        rows.execute(text("SELECT * FROM cairn.deletions"))
    assert replaced


def test_maintainer_releases_condemns_and_records_deletions(metastore_url: str) -> None:
    rows = Rows(metastore_url)
    rows.job()
    file_id = rows.file()
    segment_id = rows.segment(file_id, released_checkpoint=2)
    for checkpoint_id in (1, 2, 3, 4):
        rows.checkpoint(checkpoint_id, "CONFIRMED")
    rows.role = "cairn_maintainer"
    steps: list[Any] = [
        "UPDATE cairn.checkpoints SET status = 'SUBSUMED', ended_at = now()"
        " WHERE checkpoint_id = 1",
        f"UPDATE cairn.placed_segments SET status = 'DEAD' WHERE segment_id = '{segment_id}'",  # noqa: S608
        "UPDATE cairn.physical_files SET status = 'CONDEMNED', condemned_at = now()",
    ]
    for step in steps:
        rows.execute(text(step))
    rows.deletion(file_id)
    rows.execute(text("UPDATE cairn.deletions SET attempts = attempts + 1, done_at = now()"))
    rows.execute(text("UPDATE cairn.physical_files SET status = 'DELETED', deleted_at = now()"))
    [row] = rows.execute(select(PhysicalFile.status, PhysicalFile.live_segments))
    assert (row["status"], row["live_segments"]) == ("DELETED", 0)
    with pytest.raises(RefusedError, match="may write files of maintenance runs only"):
        rows.file()


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_check_the_revision(shared_metastore_url: str, role: str) -> None:
    url = shared_metastore_url
    user = f"someone_{role}"
    create = f"CREATE ROLE {user} LOGIN IN ROLE {role}"
    drop = f"DROP ROLE IF EXISTS {user}"
    for statement in (drop, create):
        run(url, statement)
    require_current(Catalog(url.replace("postgres@", f"{user}@")))


def test_user_who_may_not_create_roles_is_told_what_to_run(directory: Path) -> None:
    url = resolve_url(f"embedded:{directory}")
    for statement in ("CREATE ROLE plain LOGIN", "GRANT CREATE ON DATABASE cairn TO plain"):
        run(url, statement)
    as_plain = url.replace("postgres@", "plain@")
    with pytest.raises(RefusedError, match="CREATE ROLE cairn_writer NOLOGIN; CREATE ROLE"):
        migrate(Catalog(as_plain))
    for role in (*ROLES, "cairn_operator"):
        run(url, f"CREATE ROLE {role} NOLOGIN")
    migrate(Catalog(as_plain))
    require_current(Catalog(as_plain))
