"""Which rows can be deleted from the metastore, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from cairn.errors import RefusedError
from metastore.models import Checkpoint
from tests.metastore.ageing import let_time_pass
from tests.metastore.rows import Rows, unguarded

Make = Callable[[Rows], object]


def delete(rows: Rows, table: str, role: str = "cairn_maintainer") -> int:
    """Deletes all of the job's rows in a table; returns how many there were."""

    def work(connection: Connection) -> int:
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        statement = f"DELETE FROM cairn.{table} WHERE job_id = :job"  # noqa: S608 - fixed names
        return connection.execute(text(statement), {"job": rows.job_id}).rowcount

    return rows.catalog.run("deleting", work)


def change(rows: Rows, table: str, assignments: str, which: str = "true") -> int:
    """Changes rows of the job; returns how many."""
    statement = f"UPDATE cairn.{table} SET {assignments} WHERE job_id = :job AND {which}"  # noqa: S608

    def work(connection: Connection) -> int:
        with unguarded(connection, table):
            return connection.execute(text(statement), {"job": rows.job_id}).rowcount

    return rows.catalog.run("changing", work)


def assert_refused(rows: Rows, table: str, because: str, role: str = "cairn_maintainer") -> None:
    with pytest.raises(RefusedError, match=f"^{table}: .*{because}") as no:
        delete(rows, table, role)
    assert isinstance(no.value.__cause__, DBAPIError)
    assert getattr(no.value.__cause__.orig, "pgcode", None) == "CA007"


def delete_checkpoint(rows: Rows, checkpoint_id: int) -> int:
    statement = "DELETE FROM cairn.checkpoints WHERE job_id = :job AND checkpoint_id = :id"
    facts = {"job": rows.job_id, "id": checkpoint_id}
    return rows.catalog.run("deleting", lambda c: c.execute(text(statement), facts).rowcount)


def end(rows: Rows, checkpoint_id: int, status: str) -> None:
    """Makes a checkpoint that has ended just now."""
    rows.checkpoint(checkpoint_id, status)
    change(rows, "checkpoints", "ended_at = now()", f"checkpoint_id = {checkpoint_id}")


def delete_object(rows: Rows, which: str = "true") -> None:
    """Takes files to their end, just now."""
    change(rows, "physical_files", "status = 'CONDEMNED'", f"status <> 'CONDEMNED' AND {which}")
    change(rows, "physical_files", "status = 'DELETED', deleted_at = now()", which)


def file(rows: Rows, status: str, **columns: Any) -> UUID:
    """Makes a file that got to a status just now; returns its id."""
    if status != "DELETED":
        return rows.file(status, **columns)
    file_id = rows.file("SEALED", **columns)
    delete_object(rows, f"file_id = '{file_id}'")
    return file_id


@pytest.mark.parametrize("status", ["IN_PROGRESS", "COMPLETED", "CONFIRMED"])
def test_a_checkpoint_that_has_not_ended_is_not_deleted(rows: Rows, status: str) -> None:
    rows.checkpoint(1, status)
    rows.checkpoint(2, "CONFIRMED")
    let_time_pass(rows.url, rows.job_id, "1 year")
    with pytest.raises(RefusedError, match="only one that ended"):
        delete_checkpoint(rows, 1)


@pytest.mark.parametrize("status", ["SUBSUMED", "ABORTED"])
def test_a_checkpoint_is_deleted_an_hour_after_its_end_and_no_sooner(
    rows: Rows, status: str
) -> None:
    end(rows, 1, status)
    rows.checkpoint(2, "CONFIRMED")
    let_time_pass(rows.url, rows.job_id, "59 min")
    with pytest.raises(RefusedError, match="more than an hour ago"):
        delete_checkpoint(rows, 1)
    let_time_pass(rows.url, rows.job_id, "2 min")
    assert delete_checkpoint(rows, 1) == 1


def test_the_newest_checkpoints_stay_although_they_have_ended(rows: Rows) -> None:
    rows.checkpoint(1, "CONFIRMED")
    end(rows, 2, "ABORTED")
    let_time_pass(rows.url, rows.job_id, "1 year")
    with pytest.raises(RefusedError, match="older than a CONFIRMED one"):
        delete_checkpoint(rows, 2)


def test_the_checkpoints_of_a_job_that_never_confirmed_one_stay(rows: Rows) -> None:
    end(rows, 1, "ABORTED")
    let_time_pass(rows.url, rows.job_id, "1 year")
    assert_refused(rows, "checkpoints", "older than a CONFIRMED one")


def test_a_checkpoint_with_a_group_commit_or_a_pin_is_not_deleted(rows: Rows) -> None:
    rows.checkpoint(1, "CONFIRMED")
    rows.pin(1)
    change(rows, "pins", "removed_at = now()")
    change(rows, "checkpoints", "status = 'SUBSUMED', ended_at = now() - interval '1 day'")
    rows.ack(1, 0, input_rows=1)
    rows.checkpoint(2, "CONFIRMED")
    with pytest.raises(IntegrityError, match="fk_pins__job_id_checkpoint_id"):
        delete_checkpoint(rows, 1)
    assert delete(rows, "pins") == 1
    with pytest.raises(IntegrityError, match="fk_group_commits__job_id_checkpoint_id"):
        delete_checkpoint(rows, 1)
    assert_refused(rows, "group_commits", "which is not LIVE")
    change(rows, "group_commits", "status = 'DEAD'")
    assert delete(rows, "group_commits") == 1
    assert delete_checkpoint(rows, 1) == 1


@pytest.mark.parametrize(
    ("checkpoint", "commit", "in_file", "is_deleted"),
    [
        ("SUBSUMED", "DEAD", "DELETED", True),
        ("ABORTED", "ABORTED", "DELETED", True),
        ("SUBSUMED", "LIVE", "SEALED", False),
        ("SUBSUMED", "DEAD", "SEALED", False),
        ("SUBSUMED", "DEAD", "CONDEMNED", False),
        ("CONFIRMED", "DEAD", "DELETED", False),
        ("IN_PROGRESS", "DEAD", "DELETED", False),
    ],
)
def test_a_group_commit_is_deleted_once_nothing_of_it_is_left(
    rows: Rows, checkpoint: str, commit: str, in_file: str, is_deleted: bool
) -> None:
    rows.checkpoint(1)
    rows.packed(rows.file(), 1, 0, 1)
    if checkpoint == "ABORTED":
        change(rows, "checkpoints", "status = 'ABORTED'")
    else:
        rows.walk(Checkpoint, Checkpoint.checkpoint_id == 1, checkpoint)
    if commit != "LIVE":
        change(rows, "group_commits", f"status = '{commit}'")
    if in_file == "CONDEMNED":
        change(rows, "physical_files", "status = 'CONDEMNED'")
    if in_file == "DELETED":
        delete_object(rows)
    if is_deleted:
        assert delete(rows, "group_commits") == 1
    else:
        assert_refused(rows, "group_commits", "only one of a checkpoint that has ended")


@pytest.mark.parametrize("status", ["WRITING", "SEALED", "CONDEMNED"])
def test_a_file_that_is_not_deleted_keeps_its_row(rows: Rows, status: str) -> None:
    file(rows, status)
    let_time_pass(rows.url, rows.job_id, "1 year")
    assert_refused(rows, "physical_files", "DELETED more than an hour ago")


def test_a_file_keeps_its_row_for_an_hour_after_it_was_deleted(rows: Rows) -> None:
    file(rows, "DELETED")
    let_time_pass(rows.url, rows.job_id, "59 min")
    assert_refused(rows, "physical_files", "DELETED more than an hour ago")
    let_time_pass(rows.url, rows.job_id, "2 min")
    assert delete(rows, "physical_files") == 1


@pytest.mark.parametrize("wins", ["first", "hedge"])
def test_the_request_that_counts_keeps_its_row_while_another_one_has_an_object(
    rows: Rows, wins: str
) -> None:
    first = file(rows, "DELETED" if wins == "first" else "WRITING")
    file(rows, "DELETED" if wins == "hedge" else "WRITING", retry_of=first)
    let_time_pass(rows.url, rows.job_id, "1 day")
    deleted = "DELETE FROM cairn.physical_files WHERE job_id = :job AND status = 'DELETED'"
    with pytest.raises(RefusedError, match="one whose upload has a file that is not DELETED"):
        rows.execute(text(deleted).bindparams(job=rows.job_id))


def test_all_requests_of_an_upload_are_deleted_at_once(rows: Rows) -> None:
    first = file(rows, "DELETED")
    file(rows, "DELETED", retry_of=first)
    let_time_pass(rows.url, rows.job_id, "1 day")
    assert delete(rows, "physical_files") == 2


def test_the_row_of_a_manifest_stays_as_long_as_its_checkpoint_may_get_one(rows: Rows) -> None:
    rows.checkpoint(1, "CONFIRMED")
    file(rows, "DELETED", path=f"{rows.job_id}/chk-1/_metadata")
    let_time_pass(rows.url, rows.job_id, "1 year")
    assert_refused(rows, "physical_files", "the manifest of a checkpoint that is retained")
    change(rows, "checkpoints", "status = 'SUBSUMED'")
    assert delete(rows, "physical_files") == 1


@pytest.mark.parametrize(
    ("segment", "in_file", "is_deleted"),
    [("LIVE", "SEALED", False), ("DEAD", "SEALED", False), ("DEAD", "DELETED", True)],
)
def test_a_placed_segment_is_deleted_with_its_file(
    rows: Rows, segment: str, in_file: str, is_deleted: bool
) -> None:
    rows.segment(rows.file(), status=segment)
    if in_file == "DELETED":
        delete_object(rows)
    if is_deleted:
        assert delete(rows, "placed_segments") == 1
    else:
        assert_refused(rows, "placed_segments", "only a DEAD one whose file is DELETED")


def deletion(rows: Rows) -> None:
    rows.deletion(rows.file("CONDEMNED"))


@pytest.mark.parametrize(
    ("table", "make", "because", "allow"),
    [
        ("deletions", deletion, "not done", ("deletions", "done_at = now()")),
        (
            "pins",
            lambda rows: (rows.checkpoint(1, "CONFIRMED"), rows.pin(1)),
            "not removed",
            ("pins", "removed_at = now()"),
        ),
        (
            "directories",
            lambda rows: rows.directory("UNCLAIMED"),
            "only a DELETED one",
            ("directories", "status = 'DELETED'"),
        ),
        (
            "maintenance_runs",
            lambda rows: rows.maintenance_run("PLANNED"),
            "of the last hour",
            ("maintenance_runs", "planned_at = now() - interval '61 min'"),
        ),
        (
            "materializations",
            lambda rows: rows.materialization(),
            "of a run that was not replaced",
            ("materializations", "finished_at = now()"),
        ),
        (
            "upload_totals",
            lambda rows: (rows.checkpoint(1), rows.upload(1)),
            "of a run that was not replaced",
            ("jobs", "current_epoch = 2"),
        ),
    ],
)
def test_other_rows_are_deleted_once_they_are_over(
    rows: Rows, table: str, make: Make, because: str, allow: tuple[str, str]
) -> None:
    make(rows)
    assert_refused(rows, table, because)
    change(rows, *allow)
    assert delete(rows, table) == 1


def test_runs_state_variables_and_sums_are_never_deleted(rows: Rows) -> None:
    rows.execute(
        text(
            "INSERT INTO cairn.state_variables (job_id, state_id, name, kind, value_schema)"
            " VALUES (:job, 1, 'count', 'value', '{}')"
        ).bindparams(job=rows.job_id)
    )
    rows.execute(
        text("INSERT INTO cairn.good_runs (job_id, action) VALUES (:job, 'scrub')").bindparams(
            job=rows.job_id
        )
    )
    rows.materialization(finished_at=text("now()"))
    assert delete(rows, "materializations") == 1
    for table in ("runs", "state_variables", "history_days", "good_runs", "materialization_totals"):
        assert_refused(rows, table, "with (its|their) job only", role="postgres")


def test_a_job_with_runs_is_not_deleted(rows: Rows) -> None:
    assert_refused(rows, "jobs", "only one that was dropped", role="postgres")
    dropped = "UPDATE cairn.jobs SET dropped_at = now(), current_epoch = 99, name = job_id"
    rows.execute(text("UPDATE cairn.runs SET ended_at = now()"))
    rows.execute(text(dropped))
    with pytest.raises(IntegrityError, match="fk_runs__job_id"):
        delete(rows, "jobs", role="postgres")


def test_a_file_with_a_segment_is_not_deleted(rows: Rows) -> None:
    rows.segment(rows.file(), status="DEAD")
    delete_object(rows)
    let_time_pass(rows.url, rows.job_id, "1 day")
    with pytest.raises(IntegrityError, match="fk_placed_segments__file_id"):
        delete(rows, "physical_files")
