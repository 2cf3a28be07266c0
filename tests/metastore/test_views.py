from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from cairn.catalog.catalog import Catalog
from metastore.definitions import VIEWS
from metastore.enums import Scope
from metastore.models import Deletion, Job, PhysicalFile
from tests.metastore.rows import Rows

FILES = {path.stem: path for path in VIEWS}
COLUMNS = (
    "SELECT column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'cairn' AND table_name = :name ORDER BY ordinal_position"
)


@pytest.mark.parametrize("name", FILES)
def test_view_says_its_grain_and_its_columns(shared_metastore_url: str, name: str) -> None:
    header = "\n".join(
        line for line in FILES[name].read_text().splitlines() if line.startswith("--")
    )
    assert header.startswith("-- Grain: one row per ")
    assert "\n-- Read by: " in header
    comment = text("SELECT obj_description(to_regclass(:name))")
    with Catalog(shared_metastore_url).begin() as connection:
        described = connection.scalar(comment, {"name": f"cairn.{name}"})
        assert described is not None
        assert described.startswith("One row per ")
        for column in connection.execute(text(COLUMNS), {"name": name}).scalars():
            assert column in header, column


def test_jobs_shows_the_newest_run_and_whole_checkpoint(rows: Rows) -> None:
    rows.run(2, parallelism=4)
    rows.checkpoint(1, "SUBSUMED")
    rows.checkpoint(2, "CONFIRMED")
    rows.checkpoint(3, "COMPLETED", epoch=2, parallelism=4)
    rows.checkpoint(4, epoch=2, parallelism=4)
    [job] = rows.view("v_jobs")
    assert (job["job_name"], job["epoch"], job["parallelism"]) == (rows.job_id, 2, 4)
    assert (job["checkpoints"], job["last_checkpoint"]) == (2, 3)


def test_checkpoint_history_counts_acks_rows_and_what_is_new(rows: Rows) -> None:
    rows.checkpoint(1, "COMPLETED")
    rows.checkpoint(2)
    rows.ack(1, 0, input_rows=5)
    rows.ack(1, 1, input_rows=7)
    rows.ack(2, 0, input_rows=1)
    one, other = rows.file(), rows.file()
    rows.segment(one, 10, first_checkpoint=1)
    rows.segment(one, 20, first_checkpoint=1)
    rows.segment(other, 30, first_checkpoint=1)
    rows.execute(
        text(
            "UPDATE cairn.checkpoints SET completed_at = began_at + interval '1.5 s' "
            "WHERE checkpoint_id = 1 AND job_id = :job_id"
        ).bindparams(job_id=rows.job_id)
    )
    first, second = sorted(rows.view("v_checkpoint_history"), key=lambda r: r["checkpoint_id"])
    assert (first["status"], first["acks"], first["parallelism"]) == ("COMPLETED", 2, 2)
    assert (first["duration_ms"], first["restore_ms"], first["input_rows"]) == (1500, 10, 12)
    assert (first["new_segments"], first["new_bytes"], first["new_files"]) == (3, 60, 2)
    assert (second["status"], second["acks"], second["duration_ms"]) == ("IN_PROGRESS", 1, None)
    assert (second["new_segments"], second["new_bytes"], second["new_files"]) == (0, 0, 0)


def test_files_say_why_they_are_kept(rows: Rows) -> None:
    rows.checkpoint(1, "SUBSUMED")
    rows.checkpoint(2, "CONFIRMED")
    rows.checkpoint(3, "COMPLETED")
    one, several, future, past = (rows.file() for _ in range(4))
    rows.segment(one, first_checkpoint=1, released_checkpoint=3)
    rows.segment(several, first_checkpoint=1)
    rows.segment(future, first_checkpoint=4)
    rows.segment(past, first_checkpoint=1, released_checkpoint=2)
    empty, deleted = rows.file(), rows.file("DELETED")
    intent, condemned, failing = (
        rows.file("WRITING"),
        rows.file("CONDEMNED"),
        rows.file("CONDEMNED"),
    )
    rows.deletion(failing)
    rows.execute(
        update(Deletion).where(rows.own(Deletion)).values(attempts=2, last_error="SlowDown")
    )
    waiting, due = rows.file("CONDEMNED"), rows.file("CONDEMNED")
    for file, at in ((waiting, "2200-01-01 12:00:00+00"), (due, "2020-01-01 12:00:00+00")):
        rows.deletion(file)
        rows.execute(update(Deletion).where(Deletion.file_id == file).values(requested_at=at))
    because = {row["file_id"]: row["kept_because"] for row in rows.view("v_files")}
    assert because == {
        one: "needed by checkpoint 2",
        several: "needed by checkpoints 2 to 3",
        future: "needed from checkpoint 4 on",
        past: "no retained checkpoint needs it: the next cleanup releases it",
        empty: "nothing in it is live: the next cleanup condemns it",
        deleted: "not kept: deleted",
        intent: "write intent of run 1: not sealed yet",
        condemned: "condemned: the next cleanup asks for its deletion",
        failing: "condemned: deletion asked for, tried 2 times, last error: SlowDown",
        waiting: "condemned: waits for its deletion until 2200-01-01 13:00:00 UTC",
        due: "condemned: deletion asked for, tried 0 times",
    }


def test_space_amplification_is_physical_over_live_bytes_without_what_waits(
    rows: Rows,
) -> None:
    merged = rows.file(size_bytes=1000)
    rows.segment(merged, 300)
    rows.segment(merged, 100, status="DEAD")
    rows.segment(rows.file(size_bytes=600, scope=Scope.SHARED), 100)
    condemned = rows.file("CONDEMNED", size_bytes=400)
    rows.file("DELETED", size_bytes=9000)
    rows.file("WRITING")
    [job] = rows.view("v_space_amplification")
    assert job["files"] == 3
    assert (job["physical_bytes"], job["live_bytes"], job["dead_bytes"]) == (2000, 400, 1600)
    assert (job["waiting_bytes"], job["ratio"]) == (0, 5.0)
    rows.execute(
        update(PhysicalFile)
        .where(PhysicalFile.file_id == condemned)
        .values(condemned_at=text("now() - interval '59 min'"))
    )
    [job] = rows.view("v_space_amplification")
    assert (job["waiting_bytes"], job["ratio"]) == (400, 4.0)
    assert (job["shared_physical_bytes"], job["shared_live_bytes"]) == (600, 100)
    assert (job["taskmanager_physical_bytes"], job["taskmanager_live_bytes"]) == (1400, 300)


def test_space_amplification_of_a_job_without_files_is_unknown(rows: Rows) -> None:
    [job] = rows.view("v_space_amplification")
    assert (job["files"], job["physical_bytes"], job["ratio"]) == (0, 0, None)


def test_native_comparison_counts_whole_batches_at_their_own_parallelism(rows: Rows) -> None:
    rows.run(2, parallelism=32)
    rows.checkpoint(1, "SUBSUMED")
    rows.checkpoint(2, "ABORTED")
    rows.checkpoint(3, "CONFIRMED", epoch=2, parallelism=32)
    rows.checkpoint(4, "IN_PROGRESS", epoch=2, parallelism=32)
    rows.file()
    rows.file("DELETED")
    rows.file("WRITING")
    [job] = rows.view("v_native_comparison")
    assert (job["batches"], job["parallelism"], job["cairn_files"]) == (2, 32, 2)
    assert job["native_files"] == 2 * 2 + 2 * 32 + 4
    assert job["native_files_at_200"] == 2 * 400 + 4


def test_changelog_storage_has_flinks_metrics_of_each_group_commit(rows: Rows) -> None:
    rows.checkpoint(1)
    rows.upload(1, requests=3, retries=1, hedges=1, upload_ms=459, winning_attempt=2, segments=5)
    rows.upload(1, size_bytes=7000, failed_uploads=2, queue_size=4, wait_ms=12, pool_wait_ms=34)
    slow, large = sorted(rows.view("v_changelog_storage"), key=lambda row: row["upload_sizes"])
    assert (slow["job_name"], slow["checkpoint_id"], slow["tm_id"]) == (rows.job_id, 1, "tm")
    assert slow["number_of_upload_requests"] == slow["total_attempts_per_upload"] == 3
    assert (slow["retries"], slow["hedges"], slow["attempts_per_upload"]) == (1, 1, 2)
    assert slow["upload_latencies_nanos"] == 459_000_000
    assert slow["upload_batch_sizes"] == 5
    assert (large["upload_sizes"], large["number_of_upload_failures"]) == (7000, 2)
    assert (large["upload_queue_size"], large["wait_ms"], large["pool_wait_ms"]) == (4, 12, 34)


def test_lost_uploads_are_the_unsealed_files_of_uploads_that_another_request_won(
    rows: Rows,
) -> None:
    first = rows.file("WRITING")
    hedge = rows.file(retry_of=first)
    retry = rows.file("WRITING", retry_of=first)
    quick = rows.file()
    late = rows.file("WRITING", retry_of=quick)
    hopeless = rows.file("WRITING")
    rows.file("WRITING", retry_of=hopeless)
    lost = {row["file_id"]: row["lost_to"] for row in rows.view("v_lost_uploads")}
    assert lost == {first: hedge, retry: hedge, late: quick}


def test_unneeded_files_say_why_and_whether_the_next_cleanup_condemns_them(rows: Rows) -> None:
    empty, holding, condemned = rows.file(), rows.file(), rows.file("CONDEMNED")
    rows.segment(holding, first_checkpoint=1)
    rows.file("DELETED")
    lost, old = rows.file("WRITING", retry_of=empty), rows.file("WRITING")
    because = "nobody may seal it any more: its batch is over, or another request has won"
    expected = {
        empty: ("sealed, and holds no live segment", True),
        condemned: ("condemned, waits for its deletion", False),
        lost: (because, False),
        old: (because, False),
    }

    def found() -> dict[Any, tuple[str, bool]]:
        files = rows.view("v_unneeded_files")
        return {file["file_id"]: (file["reason"], file["is_condemnable"]) for file in files}

    assert found() == expected
    rows.execute(
        update(PhysicalFile)
        .where(PhysicalFile.file_id == old)
        .values(created_at=datetime.now(UTC) - timedelta(hours=1))
    )
    rows.execute(update(Job).where(rows.own(Job)).values(current_epoch=2))
    because = "its writer, run 1, was replaced and can never seal it"
    assert found() == expected | {lost: (because, False), old: (because, True)}


def test_materialization_shows_what_was_begun_and_written_last(rows: Rows) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made: list[dict[str, Any]] = [
        {"kind": "keyed_full", "size_bytes": 900},
        {"kind": "keyed_increment", "size_bytes": 40},
        {"error": "the store said no"},
        {"kind": "keyed_increment", "size_bytes": 70},
    ]
    for minute, columns in enumerate(made):
        began = start + timedelta(minutes=minute)
        ended = began + timedelta(seconds=minute + 1)
        rows.materialization(1, started_at=began, finished_at=ended, **columns)
    rows.materialization(1, started_at=start + timedelta(minutes=9))
    rows.segment(rows.file(), 30, subtask=1)
    [found] = rows.view("v_materialization")
    assert (found["started"], found["completed"], found["failed"]) == (5, 3, 1)
    assert (found["last_full_bytes"], found["last_increment_bytes"]) == (900, 70)
    assert found["last_duration_ms"] == 4000
    assert (found["changelog_segments"], found["changelog_bytes"]) == (1, 30)
    assert found["last_error"] == "the store said no"
