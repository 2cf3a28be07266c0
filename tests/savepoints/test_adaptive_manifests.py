"""With the default interval: a manifest a minute at most, at 1 % of the time, and one always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from cairn.catalog.catalog import Catalog
from cairn.catalog.savepoints.manifest_rows import NewestManifest, newest_manifest
from cairn.errors import StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.task import periodic_manifest
from cairn.runtime.task.periodic_manifest import write_manifest_if_due
from cairn.savepoints.rebuild import rebuild
from cairn.storage.posix import PosixStore
from tests.runtime.tasks import QUERY, remembered
from tests.savepoints.jobs import EXECUTOR, Query


@pytest.fixture
def query(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    return Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=None).start()


def manifests(query: Query) -> list[int]:
    """Returns the checkpoints whose manifest is in storage."""
    return sorted(
        int(path.parent.name.removeprefix("chk-")) for path in query.root.glob("*/_metadata")
    )


def statuses(query: Query) -> dict[int, str]:
    return dict(query.sql("SELECT checkpoint_id, status FROM cairn.checkpoints"))


def let_pass(query: Query, seconds: int) -> None:
    """Makes the newest manifest older, and the executor forget when that was."""
    query.sql(
        "UPDATE cairn.placed_segments SET created_at = created_at - make_interval(secs => :seconds)"
        " WHERE kind = 'manifest'",
        seconds=seconds,
    )
    (TaskManager(query.plan, EXECUTOR).directory / "newest-manifest").unlink()


def test_the_first_confirmed_checkpoint_has_a_manifest_and_the_next_a_minute_later(
    query: Query,
) -> None:
    for batch_id in range(5):
        query.batch(batch_id)
    assert manifests(query) == [1]
    let_pass(query, 59)
    query.batch(5)
    assert manifests(query) == [1]
    let_pass(query, 1)
    query.batch(6)
    assert manifests(query) == [1, 6]


def test_a_restart_writes_no_manifest_before_it_is_due(query: Query) -> None:
    query.batch(0)
    query.batch(1)
    query.start()
    query.batch(2)
    assert manifests(query) == [1]


@pytest.mark.parametrize(
    ("since_ms", "cost_ms", "is_due"),
    [
        (59_999, 0, False),
        (60_000, 600, True),
        (60_000, 601, False),
        (60_100, 601, True),
        (599_999, 6_000, False),
        (600_000, 6_000, True),
    ],
)
def test_a_manifest_is_due_when_the_last_one_took_a_hundredth_of_the_time_since(
    query: Query, since_ms: int, cost_ms: int, is_due: bool
) -> None:
    query.batch(0)
    start = TaskManager(query.plan, EXECUTOR).begin(query.plan.batch(QUERY, 1))
    newest = periodic_manifest._Newest(
        checkpoint_id=0, tried_ms=start.clock.now_ms - since_ms, cost_ms=cost_ms
    )
    assert periodic_manifest._is_due(newest, None, 1, start) == is_due


def test_what_a_manifest_of_an_earlier_run_has_cost_is_estimated_by_its_segments(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(connection: Connection, job_id: str) -> NewestManifest | None:
        found = newest_manifest(connection, job_id)
        return found and replace(found, segments=60_000)

    monkeypatch.setattr(periodic_manifest, "newest_manifest", look_up)
    query.batch(0)
    query.batch(1)
    let_pass(query, 590)
    query.batch(2)
    assert manifests(query) == [1]
    let_pass(query, 15)
    query.batch(3)
    assert manifests(query) == [1, 3]


class BrokenStore(PosixStore):
    """Manifests cannot be written; counts the tries."""

    tries = 0

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        self.tries += 1
        raise StorageError("disk full")


def test_a_manifest_that_fails_is_not_tried_again_in_every_batch(
    query: Query, tmp_path: Path
) -> None:
    broken = BrokenStore(tmp_path / "storage")
    query.interval = 0
    for batch_id in range(4):
        query.batch(batch_id)
        manager = TaskManager(query.plan, EXECUTOR)
        write_manifest_if_due(manager, broken, manager.begin(query.plan.batch(QUERY, batch_id)))
    assert broken.tries == 1


def test_the_newest_checkpoint_with_a_manifest_stays_until_there_is_a_newer_one(
    query: Query,
) -> None:
    for batch_id in range(8):
        query.batch(batch_id, materializes=[0, 1])
    cleanup_job(query.catalog, query.job)
    kept = {number for number, status in statuses(query).items() if status != "SUBSUMED"}
    assert kept == {1, 6, 7, 8}
    assert query.state(1) == remembered(1)
    let_pass(query, 60)
    query.batch(8)
    cleanup_job(query.catalog, query.job)
    kept = {number for number, status in statuses(query).items() if status != "SUBSUMED"}
    assert kept == {7, 8, 9}
    assert manifests(query) == [8]


def test_a_manifest_keeps_nothing_in_a_job_that_writes_none(query: Query) -> None:
    query.batch(0)
    query.batch(1)
    query.interval = 0
    query.start()
    for batch_id in range(2, 8):
        query.batch(batch_id)
    cleanup_job(query.catalog, query.job)
    assert statuses(query)[1] == "SUBSUMED"


def test_with_the_defaults_a_lost_metastore_is_rebuilt_whatever_cleanups_have_deleted(
    query: Query, other_url: str
) -> None:
    for batch_id in range(12):
        query.batch(batch_id, materializes=[0, 1])
        cleanup_job(query.catalog, query.job)
    report = rebuild(Catalog(other_url), query.storage)
    assert [job.newest_checkpoint for job in report.jobs] == [1]
    assert report.problems == ()
    back = replace(query, url=other_url)
    back.plan, back.run = query.plan, query.run
    assert back.state(1) == remembered(1)
