"""Dropping a job: what is deleted, what stays, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from cairn.catalog.cleanup.drop import DELETED_ROWS, TABLES
from cairn.catalog.job.run_ends import renew_lease
from cairn.catalog.savepoints.pins import remove_pins
from cairn.cli import main
from cairn.errors import BadInputError, FencedError, RefusedError, StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.drop import drop_job, find_job_to_drop
from cairn.ownership.objects import newest_generation, read_owner, write_owner
from cairn.savepoints.write_manifest import pin
from cairn.storage import open_store
from cairn.storage.posix import PosixStore
from metastore.enums import PinKind
from metastore.models import Base
from tests.maintenance.dropping import (
    as_role,
    drop,
    end,
    ended_stream,
    everything,
    rename,
    root,
    rows_of_job,
    sql,
)
from tests.runtime.file_rows import objects, rows
from tests.runtime.merging_stream import Stream
from tests.runtime.tasks import new_run


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return ended_stream(metastore_url, tmp_storage, tmp_path / "local")


class Dies(PosixStore):
    """A store whose writer dies once its bytes are there."""

    def put(self, path: str, chunks: Any) -> None:
        super().put(path, chunks)
        raise InterruptedError


def test_a_dropped_job_leaves_no_object_no_directory_and_no_row(stream: Stream) -> None:
    files = len(objects(stream.plan))
    report = drop(stream)
    assert report.is_gone
    assert (report.files, report.left_files) == (files, 0)
    assert report.rows > files
    assert rows_of_job(stream) == {}
    assert not root(stream).exists()


def test_every_table_with_rows_of_a_job_is_deleted_from() -> None:
    of_job = {t.name for t in Base.metadata.sorted_tables if "job_id" in t.columns}
    assert set(TABLES) == of_job
    assert TABLES[-1] == "jobs"


def test_another_job_keeps_everything(stream: Stream, tmp_path: Path) -> None:
    plan = new_run(stream.url, stream.storage, str(tmp_path / "other"), job="other")
    other = Stream(stream.url, stream.storage, str(tmp_path / "other"))
    other.plan = plan
    other.batch()
    before = objects(plan), rows_of_job(other)
    drop(stream)
    assert (objects(plan), rows_of_job(other)) == before
    other.batch()
    other.assert_whole()


def test_a_dry_run_counts_and_changes_nothing(stream: Stream) -> None:
    before = everything(stream), objects(stream.plan)
    report = drop(stream, dry_run=True)
    assert (everything(stream), objects(stream.plan)) == before
    assert (report.dry_run, report.is_gone) == (True, False)
    assert report.files == len(objects(stream.plan))
    assert report.size_bytes == sum(objects(stream.plan).values())
    assert report.rows == sum(rows_of_job(stream).values())


def test_a_job_with_a_run_that_is_alive_is_neither_dropped_nor_renamed(stream: Stream) -> None:
    stream.restart(parallelism=2)  # a plan that is built, and may be started
    before = everything(stream)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=r"run 2 is alive.*Stop its query.*after .* UTC"):
            drop(stream, dry_run=dry_run)
    with pytest.raises(RefusedError, match="run 2 is alive, so the job is not renamed"):
        rename(stream, "words", "letters")
    assert everything(stream) == before
    end(stream)
    assert drop(stream).is_gone


def test_a_job_whose_run_was_lost_is_dropped_after_its_lease(stream: Stream) -> None:
    stream.restart(parallelism=2)
    stream.batch()
    sql(stream, "UPDATE cairn.runs SET seen_at = seen_at - interval '61 min'")
    assert drop(stream).is_gone


def test_a_job_whose_root_is_another_metastores_is_not_even_marked(stream: Stream) -> None:
    store = open_store(stream.storage)
    job_id = stream.plan.job_id
    mine = read_owner(store, job_id, newest_generation(store, job_id))
    taken = replace(
        mine, metastore_id=str(uuid4()), ownership_id=str(uuid4()), generation=mine.generation + 1
    )
    write_owner(store, job_id, taken)
    before = everything(stream), objects(stream.plan)
    with pytest.raises(RefusedError, match=f"belongs to metastore {taken.metastore_id}"):
        drop(stream)
    assert (everything(stream), objects(stream.plan)) == before


def test_a_storage_that_is_not_mounted_keeps_the_job(stream: Stream) -> None:
    wait_for_retention(stream)
    drop(stream)
    sql(stream, "UPDATE cairn.jobs SET file_retention_ms = 0 WHERE job_id = :job")
    there = Path(stream.storage.removeprefix("file://"))
    there.rename(there.with_name("unmounted"))
    there.mkdir()
    with pytest.raises(StorageError, match="not mounted"):
        drop(stream)
    assert rows_of_job(stream)
    there.rmdir()
    there.with_name("unmounted").rename(there)
    assert drop(stream).is_gone
    assert not root(stream).exists()


def test_a_pinned_job_is_dropped_once_its_pins_are_removed(stream: Stream) -> None:
    catalog = stream.plan.catalog
    pinned = pin(catalog, "words", None, kind=PinKind.SAVEPOINT, name="keep")
    with pytest.raises(RefusedError, match=f"checkpoints {pinned.checkpoint_id} are pinned"):
        drop(stream)
    assert rows_of_job(stream)
    catalog.run("testing", lambda c: remove_pins(c, "words", [pinned.pin_id]))
    assert drop(stream).is_gone
    assert not root(stream).exists()


def test_whoever_asks_a_living_or_pinned_job_is_not_dropped(stream: Stream) -> None:
    dropped = "UPDATE cairn.jobs SET dropped_at = now(), current_epoch = 9 WHERE job_id = :job"
    stream.restart(parallelism=2)
    with pytest.raises(Exception, match="a run that is not over"):
        sql(stream, dropped)
    end(stream)
    with pytest.raises(Exception, match="above all of its runs"):
        sql(stream, dropped.replace("9", "2"))
    sql(
        stream,
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind) SELECT"
        " gen_random_uuid(), job_id, max(checkpoint_id), 'pin' FROM cairn.checkpoints"
        " WHERE status = 'CONFIRMED' GROUP BY job_id",
    )
    with pytest.raises(Exception, match="a pinned checkpoint cannot be dropped"):
        sql(stream, dropped)


def test_nobody_pins_or_takes_back_what_was_dropped(stream: Stream) -> None:
    wait_for_retention(stream)
    drop(stream)
    with pytest.raises(Exception, match="of a dropped job"):
        sql(
            stream,
            "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind) SELECT"
            " gen_random_uuid(), job_id, max(checkpoint_id), 'pin' FROM cairn.checkpoints"
            " WHERE status = 'CONFIRMED' GROUP BY job_id",
        )
    with pytest.raises(Exception, match="of a dropped job never change"):
        sql(stream, "UPDATE cairn.jobs SET dropped_at = NULL WHERE job_id = :job")


def test_the_rows_of_a_job_that_was_not_dropped_stay(stream: Stream) -> None:
    for table, said in (
        ("jobs", "only one that was dropped"),
        ("runs", "with its job only"),
        ("group_commits", "of a checkpoint that has ended"),
    ):
        with pytest.raises(Exception, match=said):
            sql(stream, f"DELETE FROM cairn.{table}")  # noqa: S608 - fixed names


# ------------------------------------------------------------------ what waits


def wait_for_retention(stream: Stream) -> None:
    """Makes condemned files of the job wait, as they do by default."""
    sql(stream, "UPDATE cairn.jobs SET file_retention_ms = 3600000 WHERE job_id = :job")


def test_objects_wait_for_their_retention_and_any_cleanup_ends_the_drop(stream: Stream) -> None:
    wait_for_retention(stream)
    files = objects(stream.plan)
    report = drop(stream)
    assert not report.is_gone
    assert (report.left_files, report.waiting_files) == (len(files), len(files))
    assert report.next_delete_at is not None
    assert objects(stream.plan) == files
    assert not drop(stream).is_gone, "asked for by the name that it had"
    sql(stream, "UPDATE cairn.jobs SET file_retention_ms = 0 WHERE job_id = :job")
    cleanup_job(stream.plan.catalog, stream.plan.job_id)
    assert rows_of_job(stream) == {}
    assert not root(stream).exists()


def test_the_name_is_free_at_once_for_a_job_of_its_own(stream: Stream, tmp_path: Path) -> None:
    wait_for_retention(stream)
    drop(stream)
    first = stream.plan
    again = Stream(stream.url, stream.storage, str(tmp_path / "again"))
    again.restart(parallelism=2)
    assert again.plan.job_id != first.job_id
    again.batch()
    with pytest.raises(RefusedError, match="run 1 is alive"):
        drop(stream)
    assert drop(stream, first.job_id).job == "words"
    sql(stream, "UPDATE cairn.jobs SET file_retention_ms = 0 WHERE job_id = :job")
    assert drop(stream, first.job_id).is_gone
    again.batch()
    again.assert_whole()


def test_no_job_is_registered_under_the_id_of_a_dropped_one(stream: Stream, tmp_path: Path) -> None:
    wait_for_retention(stream)
    drop(stream)
    with pytest.raises(RefusedError, match="was dropped, and its state is being deleted"):
        new_run(stream.url, stream.storage, str(tmp_path), job=stream.plan.job_id)


def test_a_run_that_goes_on_after_its_job_was_dropped_writes_nothing(stream: Stream) -> None:
    stream.restart(parallelism=2)
    late = [task.steps() for task in stream.tasks()]
    for steps in late:
        while next(steps) != "asked":
            pass
    sql(stream, "UPDATE cairn.runs SET seen_at = seen_at - interval '2 h'")
    wait_for_retention(stream)
    drop(stream)
    with pytest.raises(FencedError, match="the job was dropped at"):
        list(late[1])
    assert stream.plan.catalog.run("x", lambda c: renew_lease(c, stream.plan.ref)) is None
    sql(stream, "UPDATE cairn.jobs SET file_retention_ms = 0 WHERE job_id = :job")
    assert drop(stream).is_gone
    with pytest.raises(FencedError, match="has no job with the id"):
        stream.batch()
    assert objects(stream.plan) == {}


def test_an_intent_that_is_young_keeps_the_job_until_its_object_cannot_appear(
    stream: Stream,
) -> None:
    stream.restart(parallelism=2)
    with pytest.raises(InterruptedError):
        stream.task(0, store=Dies(Path(stream.storage.removeprefix("file://")))).run()
    end(stream)
    # As it is before the store has it.
    [path] = rows(stream.plan, "SELECT path FROM cairn.physical_files WHERE status = 'WRITING'")
    (root(stream).parent / path).unlink()
    report = drop(stream)
    assert (report.is_gone, report.left_files, report.waiting_files) == (False, 1, 0)
    stream.let_writes_end()
    assert drop(stream).is_gone


def test_an_object_that_no_row_knows_keeps_the_job_and_is_kept(stream: Stream) -> None:
    strange = root(stream) / "shared" / "strange.seg"
    strange.parent.mkdir(exist_ok=True)
    strange.write_bytes(b"?")
    report = drop(stream)
    assert (report.is_gone, report.left_files, report.unknown_objects) == (False, 0, 1)
    assert strange.read_bytes() == b"?"
    strange.unlink()
    assert drop(stream).is_gone


def test_the_maintainers_role_drops_and_renames_and_the_writers_does_not(stream: Stream) -> None:
    rename(stream, "words", "letters", role="cairn_maintainer")
    job = find_job_to_drop(stream.plan.catalog, "letters")
    with pytest.raises(BadInputError, match="permission denied"):
        drop_job(as_role(stream, "cairn_writer"), job)
    assert drop_job(as_role(stream, "cairn_maintainer"), job).is_gone
    assert rows_of_job(stream) == {}


def test_the_maintainer_moves_no_epoch_but_to_drop_a_job(stream: Stream) -> None:
    moves = text("UPDATE cairn.jobs SET current_epoch = 99")
    with pytest.raises(RefusedError, match="current_epoch"):
        as_role(stream, "cairn_maintainer").run("testing", lambda c: c.execute(moves))


def test_a_large_job_is_deleted_in_steps(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cairn.catalog.cleanup.drop.DELETED_ROWS", 2)
    told: dict[str, int] = {}

    def progress(what: str, count: int) -> None:
        told[what] = told.get(what, 0) + count

    catalog = stream.plan.catalog
    report = drop_job(catalog, find_job_to_drop(catalog, "words"), progress=progress)
    assert report.is_gone
    assert told["files condemned"] == told["files deleted"] == report.files
    assert told["rows deleted"] >= report.rows
    assert DELETED_ROWS > 2


# ------------------------------------------------------------------ the commands


def test_the_command_drops_a_job_and_says_what_is_left_on_executors(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--metastore", stream.url, "--json"]
    assert main(["drop", "words", "--dry-run", *arguments]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert (report["dry_run"], report["is_gone"]) == (True, False)
    assert main(["drop", "words", *arguments]) == 0
    captured = capsys.readouterr()
    [report] = json.loads(captured.out)
    assert report["is_gone"]
    assert f"remove {stream.plan.job_id}/ below their cairn.local-dir" in captured.err
    assert main(["drop", "words", *arguments]) == 2
    assert "no job 'words'" in capsys.readouterr().err


def test_the_command_says_what_waits(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    wait_for_retention(stream)
    assert main(["drop", "words", "--metastore", stream.url]) == 0
    assert "files wait until they have been condemned" in capsys.readouterr().err
    assert main(["jobs", "--metastore", stream.url]) == 0
    assert "dropped" in capsys.readouterr().out
