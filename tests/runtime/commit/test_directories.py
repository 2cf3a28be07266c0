"""Directory handles: claimed on first use, kept, migrated, given up whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from cairn.catalog.cleanup.snapshot import read_snapshot
from cairn.catalog.job.directories import given_up_directories, record_removed
from cairn.cli import main
from cairn.errors import RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.deleter import delete_directories
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage.posix import PosixStore
from tests.runtime.file_rows import directories, files, objects, rows
from tests.runtime.merging_stream import Stream


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.restart(parallelism=2)
    return made


def owned(plan: RunContext) -> str:
    return f"taskmanager-owned/{TaskManager(plan, 'executor').tm_id}"


def on_disk(stream: Stream) -> set[str]:
    """Returns the directories of subtasks and task managers below the job's root."""
    root = Path(stream.storage.removeprefix("file://")) / stream.plan.job_id
    return {
        f"{scope}/{found.name}"
        for scope in ("shared", "taskmanager-owned")
        for found in (root / scope).glob("*")
    }


def clean(stream: Stream) -> None:
    cleanup_job(stream.plan.catalog, stream.plan.job)


def test_a_directory_is_claimed_with_the_first_write_intent_in_it(stream: Stream) -> None:
    assert directories(stream.plan) == {}
    stream.batch()
    assert directories(stream.plan) == {owned(stream.plan): "CLAIMED"}
    stream.batch(materializes=True)
    assert directories(stream.plan) == {
        owned(stream.plan): "CLAIMED",
        "shared/subtask-0-2": "CLAIMED",
        "shared/subtask-1-2": "CLAIMED",
    }
    assert rows(
        stream.plan, "SELECT subtask, parallelism, tm_id FROM cairn.directories ORDER BY path"
    ) == [(0, 2, None), (1, 2, None), (None, None, TaskManager(stream.plan, "executor").tm_id)]


def test_a_claim_is_made_once_a_run(stream: Stream) -> None:
    claims: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "cairn.directories" in statement:
            claims.append(statement.split(maxsplit=1)[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        stream.batch(materializes=True)
        stream.batch(materializes=True)
        made = len(claims)
        for _ in range(3):
            stream.batch(materializes=True)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert claims == ["INSERT"] * 3
    assert made == len(claims)


def test_files_without_merging_are_in_nobodys_directory(stream: Stream) -> None:
    stream.restart(parallelism=2, enabled=False)
    stream.batch()
    stream.batch(materializes=True)
    assert directories(stream.plan) == {}


def test_subtasks_keep_their_directories_over_a_failover_and_executors_do_not(
    stream: Stream,
) -> None:
    stream.batch()
    stream.batch(materializes=True)
    first = owned(stream.plan)
    stream.restart(parallelism=2)
    assert set(directories(stream.plan).values()) == {"CLAIMED"}, "the new run has not begun"
    stream.batch()
    assert directories(stream.plan) == {
        first: "UNCLAIMED",
        owned(stream.plan): "CLAIMED",
        "shared/subtask-0-2": "CLAIMED",
        "shared/subtask-1-2": "CLAIMED",
    }
    stream.batch(materializes=True)
    shared = "SELECT DISTINCT epoch FROM cairn.directories WHERE scope = 'shared'"
    assert rows(stream.plan, shared) == [2]


def test_another_parallelism_moves_subtasks_to_other_directories_and_the_old_go_whole(
    stream: Stream,
) -> None:
    stream.batch()
    stream.batch(materializes=True)
    old = {owned(stream.plan), "shared/subtask-0-2", "shared/subtask-1-2"}
    stream.restart(parallelism=1)
    stream.batch()
    assert {path for path, s in directories(stream.plan).items() if s == "UNCLAIMED"} == old
    clean(stream)
    assert on_disk(stream) == old | {owned(stream.plan)}, "their files are needed still"
    for _ in range(4):
        stream.batch(materializes=True)
    clean(stream)
    claimed = {owned(stream.plan), "shared/subtask-0-1"}
    assert directories(stream.plan) == {
        **dict.fromkeys(old, "DELETED"),
        **dict.fromkeys(claimed, "CLAIMED"),
    }
    assert on_disk(stream) == claimed
    stream.assert_whole()


def go_to_parallelism(stream: Stream, parallelism: int) -> None:
    stream.restart(parallelism=parallelism)
    for _ in range(4):
        stream.batch(materializes=True)


def test_a_directory_is_claimed_again_when_a_run_comes_back_to_its_parallelism(
    stream: Stream,
) -> None:
    go_to_parallelism(stream, 2)
    go_to_parallelism(stream, 1)
    assert directories(stream.plan)["shared/subtask-0-2"] == "UNCLAIMED"
    stream.restart(parallelism=2)
    stream.batch(materializes=True)
    assert directories(stream.plan)["shared/subtask-0-2"] == "CLAIMED"
    go_to_parallelism(stream, 1)
    clean(stream)
    assert directories(stream.plan)["shared/subtask-0-2"] == "DELETED"
    assert "shared/subtask-0-2" not in on_disk(stream)
    go_to_parallelism(stream, 2)
    assert directories(stream.plan)["shared/subtask-0-2"] == "CLAIMED"
    assert [path for path in objects(stream.plan) if path.startswith("shared/subtask-0-2/")]
    stream.assert_whole()


def given_up(stream: Stream) -> str:
    """Gives up an executor's directory whose files are all deleted; returns its path."""
    stream.batch()
    old = owned(stream.plan)
    go_to_parallelism(stream, 2)
    return old


def test_what_killed_writes_left_in_a_directory_is_deleted_with_it(stream: Stream) -> None:
    old = given_up(stream)
    root = Path(stream.storage.removeprefix("file://")) / stream.plan.job_id
    (root / old / ".tmp-left-behind").write_bytes(b"half")
    clean(stream)
    assert directories(stream.plan)[old] == "DELETED"
    assert not (root / old).exists()


def test_a_directory_with_an_object_that_nobody_knows_is_kept(stream: Stream) -> None:
    old = given_up(stream)
    root = Path(stream.storage.removeprefix("file://")) / stream.plan.job_id
    (root / old / "unknown.seg").write_bytes(b"whose is it?")
    clean(stream)
    assert directories(stream.plan)[old] == "UNCLAIMED"
    assert (root / old / "unknown.seg").exists()
    (root / old / "unknown.seg").unlink()
    clean(stream)
    assert directories(stream.plan)[old] == "DELETED"


def test_a_directory_that_a_cleanup_removed_and_did_not_record_is_recorded_by_the_next(
    stream: Stream,
) -> None:
    old = given_up(stream)
    clean_files_only(stream)
    store = PosixStore(Path(stream.storage.removeprefix("file://")))
    assert store.remove_directory(f"{stream.plan.job_id}/{old}")
    assert directories(stream.plan)[old] == "UNCLAIMED"
    clean(stream)
    assert directories(stream.plan)[old] == "DELETED"


def clean_files_only(stream: Stream) -> None:
    """Does what a cleanup does that is killed before it comes to directories."""
    execute(stream, "UPDATE cairn.directories SET status = 'CLAIMED'")
    clean(stream)
    give_up = "UPDATE cairn.directories SET status = 'UNCLAIMED' WHERE epoch < :epoch"
    execute(stream, give_up, epoch=stream.plan.epoch)


def execute(stream: Stream, statement: str, **values: Any) -> None:
    with stream.plan.catalog.begin() as connection:
        connection.execute(text(statement), values)


def test_a_directory_claimed_again_while_it_is_removed_stays_claimed(stream: Stream) -> None:
    """The removal is recorded last, and only of what is still given up."""
    old = given_up(stream)
    clean_files_only(stream)
    path = f"{stream.plan.job_id}/{old}"
    assert path in stream.plan.catalog.run(
        "reading", lambda c: given_up_directories(c, stream.plan.job_id, limit=9)
    )
    execute(stream, "UPDATE cairn.directories SET status = 'CLAIMED' WHERE path = :p", p=path)
    stream.plan.catalog.run("recording", lambda c: record_removed(c, stream.plan.job_id, [path]))
    assert directories(stream.plan)[old] == "CLAIMED"


def test_a_directory_that_was_given_up_stays_for_the_retention(stream: Stream) -> None:
    old = given_up(stream)
    clean_files_only(stream)
    execute(stream, "UPDATE cairn.jobs SET file_retention_ms = 3600000")
    clean(stream)
    assert (directories(stream.plan)[old], old in on_disk(stream)) == ("UNCLAIMED", True)
    age = "UPDATE cairn.directories SET unclaimed_at = unclaimed_at - interval '1 hour'"
    execute(stream, age)
    clean(stream)
    assert (directories(stream.plan)[old], old in on_disk(stream)) == ("DELETED", False)


def test_a_directory_outside_the_jobs_root_is_refused(stream: Stream) -> None:
    stream.batch()
    execute(stream, "ALTER TABLE cairn.directories DROP CONSTRAINT ck_directories__path_form")
    execute(
        stream,
        "INSERT INTO cairn.directories (job_id, path, scope, epoch)"
        " VALUES (:job, 'another-job/shared', 'shared', 1)",
        job=stream.plan.job_id,
    )
    execute(
        stream,
        "UPDATE cairn.directories SET status = 'UNCLAIMED', unclaimed_at = now()"
        " WHERE scope = 'shared'",
    )
    job = stream.plan.catalog.run("reading", lambda c: read_snapshot(c, stream.plan.job)).job
    store = PosixStore(Path(stream.storage.removeprefix("file://")))
    with pytest.raises(RefusedError, match="outside the job's root"):
        delete_directories(stream.plan.catalog, job, store)


def test_executors_that_claim_the_same_directories_at_once_do_not_deadlock(
    stream: Stream,
) -> None:
    """Two executors run attempts of the same subtasks."""
    stream.batch()
    others = [replace(task, executor="other") for task in stream.tasks(materializes=True)]
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(task.run) for task in [*others, *stream.tasks()]]:
            done.result(timeout=60)
    stream.batches += 1
    stream.assert_whole()
    assert directories(stream.plan)["shared/subtask-0-2"] == "CLAIMED"


def test_directories_are_listed(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    stream.batch()
    stream.batch(materializes=True)
    plan = stream.plan
    assert main(["directories", plan.job, "--metastore", stream.url]) == 0
    shown = capsys.readouterr().out
    assert f"{plan.job_id}/shared/subtask-1-2" in shown
    assert f"{plan.job_id}/{owned(plan)}" in shown
    assert "CLAIMED" in shown
    [(count, size_bytes)] = rows(
        plan, "SELECT files, size_bytes FROM cairn.v_directories WHERE tm_id IS NOT NULL"
    )
    mine = [size for path, size, _ in files(plan) if path.startswith("taskmanager-owned/")]
    assert (count, size_bytes) == (len(mine), sum(mine))
