"""Metrics of real group commits, materializations and cleanups, beside what is in storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out
from cairn.runtime.materialization.order import Order
from cairn.storage.posix import PosixStore
from tests.metastore.metric_values import histogram, metric
from tests.runtime.commit.one_upload import FaultyStore, fails
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.merging_stream import SUBTASKS, Stream
from tests.runtime.tasks import QUERY

LOST = StorageError("the connection was lost")


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.restart()
    return made


class TornStore(PosixStore):
    """Writes the first bytes and fails, as a store that has lost its disk."""

    def put(self, path: str, chunks: Any) -> None:
        super().put(path, [b"".join(chunks)[:10]])
        raise StorageError("the disk is full", file=path)


def of(stream: Stream, name: str) -> dict[object, float]:
    return metric(stream.url, stream.plan.job, name)


def materialize(stream: Stream, subtask: int) -> None:
    batch = stream.plan.batch(QUERY, stream.batches - 1)
    order = Order(batch=batch, subtask=subtask, now_ms=10_000_000, ordered_s=0)
    carry_out(TaskManager(stream.plan, "executor"), order)


@contextmanager
def unreachable(directory: Path) -> Iterator[None]:
    """Makes a directory a link to itself, so that nothing in it can be deleted."""
    away = directory.with_name("away")
    directory.rename(away)
    directory.symlink_to(directory.name)
    yield
    directory.unlink()
    away.rename(directory)


def test_file_and_upload_metrics_are_those_of_the_group_commits(stream: Stream) -> None:
    stream.batch()
    stream.batch()
    tm_id = TaskManager(stream.plan, "executor").tm_id
    sizes = sorted(objects(stream.plan).values())
    assert of(stream, "fileMerging.logicalFileCount") == {None: 2 * SUBTASKS}
    assert of(stream, "fileMerging.physicalFileCount") == {None: 2}
    for size in ("logicalFileSize", "physicalFileSize"):
        assert of(stream, f"fileMerging.{size}") == {None: sum(sizes)}
    assert of(stream, "Storage.spaceAmplification") == {None: 1}
    assert of(stream, "ChangelogStorage.numberOfUploadRequests") == {tm_id: 2}
    assert of(stream, "ChangelogStorage.numberOfUploadFailures") == {tm_id: 0}
    uploaded = histogram(stream.url, stream.plan.job, "ChangelogStorage.uploadSizes")[tm_id]
    assert (uploaded["sum"], uploaded["count"]) == (sum(sizes), 2)
    assert uploaded[0.5] == sum(sizes) / 2
    merged = histogram(stream.url, stream.plan.job, "ChangelogStorage.uploadBatchSizes")[tm_id]
    assert (merged["sum"], merged[0.999]) == (2 * SUBTASKS, SUBTASKS)
    waited = histogram(stream.url, stream.plan.job, "FilePool.waitMillis")[tm_id]
    assert (waited["sum"], waited["count"]) == (0, 2)


def test_a_retried_upload_counts_its_requests_and_the_one_that_counts(stream: Stream) -> None:
    settings = replace(
        stream.plan.settings, upload_retry_policy="fixed", upload_next_attempt_delay_ms=1
    )
    stream.plan = replace(stream.plan, settings=settings)
    stream.batch(store=FaultyStore(stream.storage, fails(LOST)))
    for name in ("attemptsPerUpload", "totalAttemptsPerUpload"):
        [found] = histogram(stream.url, stream.plan.job, f"ChangelogStorage.{name}").values()
        assert (found["sum"], found["count"], found[0.99]) == (2, 1, 2)
    [requests] = of(stream, "ChangelogStorage.numberOfUploadRequests").values()
    assert requests == 2


def test_materialization_metrics_are_those_of_what_was_written(stream: Stream) -> None:
    stream.batch()
    stream.batch()
    before = set(objects(stream.plan))
    materialize(stream, 0)
    written = {p: size for p, size in objects(stream.plan).items() if p not in before}
    assert written
    group = "ChangelogMaterialization"
    assert of(stream, f"{group}.startedMaterialization") == {0: 1}
    assert of(stream, f"{group}.completedMaterialization") == {0: 1}
    assert of(stream, "ChangelogStateBackend.lastFullSizeOfMaterialization") == {
        0: sum(written.values())
    }
    assert of(stream, "Storage.rewriteBytes") == {0: sum(written.values())}
    shared = Path(stream.storage.removeprefix("file://")) / stream.plan.job_id / "shared"
    with unreachable(shared):
        materialize(stream, 1)
    assert of(stream, f"{group}.startedMaterialization") == {0: 1, 1: 1}
    assert of(stream, f"{group}.failedMaterialization") == {0: 0, 1: 1}
    assert of(stream, "Storage.rewriteBytes") == {0: sum(written.values()), 1: 0}


def test_what_is_not_materialized_shrinks_with_a_base_of_an_older_state(stream: Stream) -> None:
    stream.batch()
    stream.batch()
    full = "ChangelogStateBackend.lastFullSizeOfNonMaterialization"
    newest = "ChangelogStateBackend.lastIncSizeOfNonMaterialization"
    by_batch = [
        dict(
            rows(
                stream.plan,
                "SELECT subtask, size_bytes FROM cairn.segments"
                " WHERE first_checkpoint = :checkpoint AND kind = 'changelog'",
                checkpoint=checkpoint_id,
            )
        )
        for checkpoint_id in (1, 2)
    ]
    assert of(stream, newest) == by_batch[1]
    assert of(stream, full) == {i: by_batch[0][i] + by_batch[1][i] for i in range(SUBTASKS)}
    materialize(stream, 0)
    stream.batch()
    assert of(stream, full)[0] == by_batch[1][0] + of(stream, newest)[0]
    assert of(stream, full)[1] == by_batch[0][1] + by_batch[1][1] + of(stream, newest)[1]


def test_a_cleanup_whose_deletes_fail_is_seen_until_they_succeed(
    stream: Stream,
) -> None:
    storage = Path(stream.storage.removeprefix("file://"))
    with pytest.raises(StorageError, match="the disk is full"):
        stream.batch(store=TornStore(storage))
    [(torn, _, _)] = files(stream.plan, "WRITING")
    for _ in range(5):
        stream.batch(materializes=True)
    stream.batch()
    assert of(stream, "Storage.orphanFiles") == {None: 1}
    assert of(stream, "Storage.failedDeletes") == {None: 0}
    stream.let_writes_end()
    with unreachable((storage / stream.plan.job_id / torn).parent):
        report = cleanup_job(stream.plan.catalog, stream.plan.job)
        assert report.failed_deletes > 1
        assert of(stream, "Storage.failedDeletes") == {None: report.failed_deletes}
        assert of(stream, "Storage.orphanFiles") == {None: 1}
        [amplification] = of(stream, "Storage.spaceAmplification").values()
        assert amplification > 1
    cleanup_job(stream.plan.catalog, stream.plan.job)
    assert of(stream, "Storage.failedDeletes") == {None: 0}
    assert of(stream, "Storage.orphanFiles") == {None: 0}
    assert of(stream, "fileMerging.physicalFileCount") == {None: len(objects(stream.plan))}
    assert of(stream, "fileMerging.physicalFileSize") == {None: sum(objects(stream.plan).values())}
