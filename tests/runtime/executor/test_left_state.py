"""Local state of other parallelisms and dropped jobs goes; that of other applications stays."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cairn.errors import MetastoreError
from cairn.locks import try_lock
from cairn.runtime.executor import left_state
from cairn.runtime.executor.left_state import remove_left_state
from cairn.runtime.executor.run_context import RunContext
from tests.runtime.tasks import Task, new_run, read_back, remember, remembered


def batch(plan: RunContext, number: int) -> None:
    for subtask in range(plan.parallelism):
        Task(plan, "one", number, subtask, number, remember(number)).run()


def states(local: Path, plan: RunContext) -> set[str]:
    return {path.name for path in (local / plan.job_id).glob("subtask-*") if path.is_dir()}


def drop(plan: RunContext) -> None:
    """Drops a job as the first step of `cairn drop` does."""
    with plan.catalog.begin() as connection:
        connection.execute(
            text("UPDATE cairn.runs SET ended_at = now() WHERE job_id = :job"),
            {"job": plan.job_id},
        )
        connection.execute(
            text(
                "UPDATE cairn.jobs SET dropped_at = now(), former_name = name, name = job_id,"
                " current_epoch = 100 WHERE job_id = :job"
            ),
            {"job": plan.job_id},
        )


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


def run(url: str, storage: str, local: Path, **changes: Any) -> RunContext:
    return new_run(url, storage, str(local), **changes)


def test_state_of_another_parallelism_goes_once_a_checkpoint_of_this_one_is_confirmed(
    metastore_url: str, tmp_storage: str, local: Path
) -> None:
    wide = run(metastore_url, tmp_storage, local, parallelism=2)
    for number in range(3):
        batch(wide, number)
    both = {"subtask-0-2", "subtask-1-2", "subtask-0-1"}
    narrow = run(metastore_url, tmp_storage, local, parallelism=1)
    batch(narrow, 3)
    assert states(local, narrow) == both, "its first batch may fail"
    batch(narrow, 4)
    assert states(local, narrow) == {"subtask-0-1"}
    batch(narrow, 5)
    with narrow.catalog.begin() as connection:
        newest = connection.scalar(text("SELECT max(checkpoint_id) FROM cairn.checkpoints"))
    assert read_back(narrow, newest or 0) == remembered(6)


def test_state_that_somebody_opens_at_this_moment_stays(
    metastore_url: str, tmp_storage: str, local: Path
) -> None:
    wide = run(metastore_url, tmp_storage, local, parallelism=2)
    for number in range(3):
        batch(wide, number)
    narrow = run(metastore_url, tmp_storage, local, parallelism=1)
    with ExitStack() as held:
        assert try_lock(local / wide.job_id / "subtask-1-2.lock", held) is not None
        for number in (3, 4):
            batch(narrow, number)
    assert states(local, narrow) == {"subtask-1-2", "subtask-0-1"}


def test_a_process_that_has_removed_state_open_restores_it(
    metastore_url: str, tmp_storage: str, local: Path
) -> None:
    plan = run(metastore_url, tmp_storage, local, parallelism=2)
    for number in range(3):
        batch(plan, number)
    older = run(metastore_url, tmp_storage, local, parallelism=1)
    # As of a run that was overtaken between its begin and this.
    remove_left_state(older, local / plan.job_id)
    assert states(local, plan) == set()
    batch(plan, 3)
    with plan.catalog.begin() as connection:
        newest = connection.scalar(text("SELECT max(checkpoint_id) FROM cairn.checkpoints"))
    assert read_back(plan, newest or 0) == remembered(4)


def test_state_of_a_dropped_job_goes_and_that_of_others_stays(
    metastore_url: str, other_url: str, tmp_storage: str, local: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = (tmp_path / "elsewhere").as_uri()
    dropped = run(metastore_url, tmp_storage, local, job="dropped", parallelism=1)
    living = run(metastore_url, tmp_storage, local, job="living", parallelism=1)
    foreign = run(other_url, elsewhere, local, job="foreign", parallelism=1)
    for plan in (dropped, living, foreign):
        for number in range(3):
            batch(plan, number)
    strangers = [local / "notes", local / "nobody-0123abcd"]
    for stranger in strangers:
        stranger.mkdir()
    drop(dropped)
    mine = run(metastore_url, tmp_storage, local, job="mine", parallelism=1)
    batch(mine, 0)
    assert (local / dropped.job_id).exists()
    batch(mine, 1)
    assert not (local / dropped.job_id).exists()
    for plan in (living, foreign, mine):
        assert states(local, plan) == {"subtask-0-1"}
    assert all(stranger.exists() for stranger in strangers)
    for plan in (living, foreign):
        batch(plan, 3)


def test_a_login_that_does_not_see_a_job_does_not_remove_its_state(
    metastore_url: str, tmp_storage: str, local: Path
) -> None:
    other = run(metastore_url, tmp_storage, local, job="other", parallelism=1)
    for number in range(2):
        batch(other, number)
    asker = local / other.job_id / "metastore"
    asker.write_text(asker.read_text().replace("postgres", "somebody"))
    drop(other)
    mine = run(metastore_url, tmp_storage, local, job="mine", parallelism=1)
    for number in range(2):
        batch(mine, number)
    assert states(local, other) == {"subtask-0-1"}


def test_killed_while_it_removes_a_job_the_next_run_removes_the_rest(
    metastore_url: str, tmp_storage: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = run(metastore_url, tmp_storage, local, job="dropped", parallelism=1)
    mine = run(metastore_url, tmp_storage, local, job="mine", parallelism=1)
    for plan in (dropped, mine):
        for number in range(2):
            batch(plan, number)
    drop(dropped)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", _killed)
        with pytest.raises(KeyboardInterrupt):
            remove_left_state(mine, local / mine.job_id)
    assert states(local, dropped) == {"subtask-0-1"}
    assert remove_left_state(mine, local / mine.job_id)
    assert not (local / dropped.job_id).exists()


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_metastore_that_cannot_be_asked_fails_no_batch(
    metastore_url: str, tmp_storage: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = run(metastore_url, tmp_storage, local, parallelism=1)
    batch(plan, 0)

    def fail(*_: object) -> None:
        raise MetastoreError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(left_state, "known_jobs", fail)
        batch(plan, 1)
    asker = local / plan.job_id / "metastore"
    assert not asker.exists()
    batch(plan, 2)
    assert asker.exists()
