"""Changelogs that the maintenance folds into bases, beside the streams that write them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cairn.catalog.maintenance import folds
from cairn.catalog.maintenance.leased_files import LeaseRef, intend_leased_file
from cairn.catalog.maintenance.leases import require_lease, take_lease
from cairn.errors import CorruptSegmentError, FencedError, RefusedError, StorageError
from cairn.maintenance import fold as folding
from cairn.maintenance import leased_files
from cairn.maintenance.actions import apply_plan
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.verify import verification_of
from cairn.segments.fold import fold
from cairn.storage import ObjectStore, open_store
from tests.maintenance.folds import FoldedJob
from tests.runtime.tasks import BIG, read_back, remembered


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> FoldedJob:
    return FoldedJob(metastore_url, tmp_storage, str(tmp_path / "local"))


def state(job: FoldedJob) -> dict[bytes, bytes]:
    return remembered(job.batches) | BIG


def test_a_restore_reads_folded_bases_like_others(job: FoldedJob) -> None:
    job.run(4)
    result = job.fold()
    assert (result["folded"], result["refused"], result["unchanged"]) == (2, 0, 0)
    assert "keyed_full" not in job.kinds(4), "the checkpoint under way sees none"
    newest = job.run(2)
    assert job.kinds(newest).count("keyed_full") == 2
    assert read_back(job.plan, newest) == state(job)
    job.restart(parallelism=3)
    newest = job.run(2)
    assert read_back(job.plan, newest) == state(job)


def test_folds_follow_folds_and_what_they_replace_is_deleted(job: FoldedJob) -> None:
    for _ in range(3):
        job.run(3)
        assert job.fold()["folded"] == 2
    newest = job.run(3)
    assert job.kinds(newest).count("keyed_full") == 2
    assert read_back(job.plan, newest) == state(job)
    cleanup_job(job.catalog, job.plan.job)
    alive = "SELECT count(*) FROM cairn.physical_files WHERE scope = 'maintenance' AND status = "
    assert job.scalar(f"{alive} 'SEALED'") == 1  # both subtasks in one file
    assert job.scalar(f"{alive} 'DELETED'") == 2
    assert read_back(job.plan, newest) == state(job)
    assert list(verification_of(job.catalog, job.plan.job).compare()) == []


def test_increments_of_the_stream_are_folded_too(job: FoldedJob) -> None:
    job.run(3)
    job.fold()
    job.run(2)
    newest = job.run(1, materializes=True)
    newest = job.run(2)
    assert "keyed_increment" in job.kinds(newest)
    assert job.fold()["folded"] == 2
    newest = job.run(1)
    assert "keyed_increment" not in job.kinds(newest)
    assert read_back(job.plan, newest) == state(job)


def test_nothing_is_due_without_changelog_or_before_the_interval(job: FoldedJob) -> None:
    job.run(3)
    assert job.planned() is None
    job.fold()
    job.sql("UPDATE cairn.jobs SET materialize_interval_ms = 600000 WHERE job_id = :job")
    assert job.planned() is None


def test_a_plan_that_was_applied_changes_nothing_again(job: FoldedJob) -> None:
    job.run(3)
    job.make_due()
    one, two = job.planned(), job.planned()
    assert one is not None
    assert two is not None
    first = apply_plan(job.catalog, one.run_id)
    assert apply_plan(job.catalog, one.run_id) == first
    second = apply_plan(job.catalog, two.run_id)
    assert (second["folded"], second["unchanged"]) == (0, 2)


def before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]
) -> None:
    """Makes something happen once before a function runs."""
    original, left = getattr(owner, name), [act]

    def replaced(*args: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return original(*args, **named)

    monkeypatch.setattr(owner, name, replaced)


def test_a_fold_whose_share_the_stream_has_materialized_is_refused_and_leaves_nothing(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(4)
    before(monkeypatch, folding, "install_folded", lambda: job.run(1, materializes=True))
    result = job.fold()
    assert (result["folded"], result["refused"]) == (0, 2)
    newest = job.run(2)
    assert read_back(job.plan, newest) == state(job)
    assert "maintenance" not in str(job.sql("SELECT scope FROM cairn.v_files WHERE size_bytes > 0"))
    condemned_and_deleted(job, "maintenance")
    assert read_back(job.plan, newest) == state(job)


def condemned_and_deleted(job: FoldedJob, scope: str) -> None:
    """Checks that a cleanup deletes the files of a scope, and the directory of their run."""
    job.sql("UPDATE cairn.physical_files SET created_at = created_at - INTERVAL '21 min'")
    sealed = job.sql("SELECT file_id FROM cairn.physical_files WHERE live_segments > 0")
    cleanup_job(job.catalog, job.plan.job)
    status = "SELECT DISTINCT status FROM cairn.physical_files WHERE scope = :scope"
    assert job.sql(status, scope=scope) == [("DELETED",)]
    kept = job.sql("SELECT file_id FROM cairn.physical_files WHERE live_segments > 0")
    assert kept == sealed, "nothing else is touched"
    assert job.sql("SELECT status FROM cairn.directories WHERE scope = :scope", scope=scope) == [
        ("DELETED",)
    ]
    assert list(verification_of(job.catalog, job.plan.job).compare()) == []


def test_a_lost_lease_installs_nothing_and_what_was_written_is_deleted(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(4)
    ended = "UPDATE cairn.maintenance_runs SET leased_until = now()"
    before(monkeypatch, folding, "install_folded", lambda: job.sql(ended))
    with pytest.raises(FencedError, match="its lease ended"):
        job.fold()
    newest = job.run(1)
    assert "keyed_full" not in job.kinds(newest)
    condemned_and_deleted(job, "maintenance")


def test_a_retry_is_another_holder_and_the_first_one_writes_no_more(job: FoldedJob) -> None:
    job.run(3)
    job.make_due()
    plan = job.planned()
    assert plan is not None
    late = LeaseRef(job.plan.job_id, plan.run_id, uuid4())
    job.catalog.run("", lambda c: take_lease(c, plan.run_id, late.holder))
    with pytest.raises(FencedError, match="another process applies"):
        apply_plan(job.catalog, plan.run_id)
    job.sql("UPDATE cairn.maintenance_runs SET leased_until = now()")
    assert apply_plan(job.catalog, plan.run_id)["folded"] == 2
    with pytest.raises(FencedError):
        job.catalog.run("", lambda c: intend_leased_file(c, late, uuid4()))


def test_a_restart_of_the_stream_does_not_fence_a_fold(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restart() -> None:
        job.restart(parallelism=2)
        job.run(1)
        job.sql("UPDATE cairn.physical_files SET created_at = created_at - INTERVAL '21 min'")
        cleanup_job(job.catalog, job.plan.job)

    job.run(4)
    before(monkeypatch, folding, "install_folded", restart)
    assert job.fold()["folded"] == 2
    newest = job.run(2)
    assert job.kinds(newest).count("keyed_full") == 2
    assert read_back(job.plan, newest) == state(job)


def test_files_of_a_leased_run_are_never_condemned_and_its_directory_stays(
    job: FoldedJob,
) -> None:
    job.run(3)
    job.make_due()
    plan = job.planned()
    assert plan is not None
    lease = LeaseRef(job.plan.job_id, plan.run_id, uuid4())
    job.catalog.run("", lambda c: take_lease(c, plan.run_id, lease.holder))
    file_id = uuid4()
    for _ in range(2):  # the second time after a lost answer
        path = job.catalog.run("", lambda c: intend_leased_file(c, lease, file_id))
    assert path == f"{job.plan.job_id}/maintenance/{plan.run_id}/{file_id}.seg"
    job.restart()
    job.run(1)
    job.sql("UPDATE cairn.physical_files SET created_at = created_at - INTERVAL '21 min'")
    job.sql("UPDATE cairn.runs SET ended_at = now()")
    cleanup_job(job.catalog, job.plan.job)
    status = "SELECT status FROM cairn.{} WHERE scope = 'maintenance'"
    assert job.scalar(status.format("physical_files")) == "WRITING"
    assert job.scalar(status.format("directories")) == "CLAIMED"
    job.catalog.run("", lambda c: require_lease(c, lease.run_id, lease.holder))
    job.sql("UPDATE cairn.maintenance_runs SET leased_until = now()")
    reason = "SELECT reason FROM cairn.v_unneeded_files WHERE path LIKE '%/maintenance/%'"
    assert job.scalar(reason) == "its maintenance run is over, or has lost its lease"
    condemned_and_deleted(job, "maintenance")


def test_a_write_that_fails_is_tried_again_under_an_id_of_its_own(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StorageError("the store said no")

    monkeypatch.setattr(leased_files, "_PAUSE_S", 0)
    before(monkeypatch, leased_files, "put_in_time", fail)
    job.run(3)
    assert job.fold()["folded"] == 2
    files = "SELECT status FROM cairn.physical_files WHERE scope = 'maintenance' ORDER BY status"
    assert job.sql(files) == [("SEALED",), ("WRITING",)]
    assert read_back(job.plan, job.run(1)) == state(job)


def test_a_damaged_segment_is_named_and_nothing_is_installed(job: FoldedJob) -> None:
    job.run(3)
    path = Path(job.plan.storage.removeprefix("file://")) / job.scalar(
        "SELECT path FROM cairn.physical_files ORDER BY created_at LIMIT 1"
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match="is not what was written"):
        job.fold()
    assert job.sql("SELECT 1 FROM cairn.placed_segments WHERE kind = 'keyed_full'") == []


def test_a_root_of_another_owner_is_neither_read_nor_written(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(3)
    monkeypatch.setenv("CAIRN_STORAGES", "file:///elsewhere")
    with pytest.raises(RefusedError, match="is not below file:///elsewhere"):
        job.fold()
    assert job.sql("SELECT 1 FROM cairn.maintenance_runs") == []
    store: ObjectStore = open_store(job.plan.storage)
    assert list(store.list(f"{job.plan.job_id}/maintenance")) == []


def test_an_answer_that_was_lost_installs_nothing_twice(job: FoldedJob) -> None:
    job.run(3)
    job.make_due()
    plan = job.planned()
    assert plan is not None
    seen: list[Any] = []

    def twice(connection: Any, lease: LeaseRef, made: Any) -> Any:
        seen.append((lease, made))
        return folds.install_folded(connection, lease, made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "install_folded", twice)
        apply_plan(job.catalog, plan.run_id)
    # The lease is given back, as it was when the first answer was lost.
    [(lease, made)] = seen
    job.sql("ALTER TABLE cairn.maintenance_runs DISABLE TRIGGER USER")
    job.sql(
        "UPDATE cairn.maintenance_runs SET status = 'RUNNING',"
        " leased_until = now() + INTERVAL '1 min'"
    )
    tables = ("placed_segments", "physical_files", "materializations")
    before_ = [job.sql(f"SELECT to_jsonb(t) FROM cairn.{table} AS t") for table in tables]  # noqa: S608
    assert job.catalog.run("", lambda c: folds.install_folded(c, lease, made)) == []
    assert [job.sql(f"SELECT to_jsonb(t) FROM cairn.{table} AS t") for table in tables] == before_  # noqa: S608


def test_metrics_show_folds_like_the_streams_own(job: FoldedJob) -> None:
    job.run(3)
    job.fold()
    rows = job.sql(
        "SELECT subtask, started, completed, failed, last_full_bytes > 0, last_duration_ms >= 0,"
        " changelog_segments FROM cairn.v_materialization ORDER BY subtask"
    )
    assert rows == [(0, 1, 1, 0, True, True, 1), (1, 1, 1, 0, True, True, 1)]


def test_a_large_share_is_written_to_several_files(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "FILE_BYTES", 1)
    monkeypatch.setattr("cairn.segments.fold.CHUNK_BYTES", 1)
    job.run(3)
    job.fold()
    files = "SELECT count(*) FROM cairn.physical_files WHERE scope = 'maintenance'"
    assert job.scalar(files) >= 2
    assert read_back(job.plan, job.run(1)) == state(job)


def test_bases_are_made_while_the_file_before_them_is_written(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(3)
    made = [threading.Event(), threading.Event()]
    write = leased_files.write_leased_file
    written: list[bool] = []

    def folded(*given: Any, subtask: int, **named: Any) -> Any:
        for base in fold(*given, subtask=subtask, **named):
            made[subtask].set()
            yield base

    def wait_and_write(*given: Any) -> leased_files.LeasedFile:
        written.append(made[1].wait(20))
        return write(*given)

    monkeypatch.setattr(folding, "FILE_BYTES", 1)
    monkeypatch.setattr(folding, "fold", folded)
    monkeypatch.setattr(folding, "write_leased_file", wait_and_write)
    assert job.fold()["folded"] == 2
    assert written == [True, True]
    newest = job.run(1)
    assert read_back(job.plan, newest) == state(job)


def test_a_fold_whose_file_cannot_be_written_installs_nothing(
    job: FoldedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(3)

    def fail(*_: object) -> leased_files.LeasedFile:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(folding, "FILE_BYTES", 1)
        patch.setattr(folding, "write_leased_file", fail)
        with pytest.raises(StorageError, match="no room"):
            job.fold()
    assert "keyed_full" not in job.kinds(job.run(2))
    assert job.fold()["folded"] == 2


def test_two_maintainers_of_two_plans_fold_once(job: FoldedJob) -> None:
    job.run(4)
    job.make_due()
    plans = [job.planned() for _ in range(2)]
    results: list[Any] = []

    def apply(run_id: UUID) -> None:
        results.append(apply_plan(job.catalog, run_id))

    threads = [threading.Thread(target=apply, args=(plan.run_id,)) for plan in plans if plan]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result["folded"] for result in results) == 2
    newest = job.run(2)
    assert job.kinds(newest).count("keyed_full") == 2
    assert read_back(job.plan, newest) == state(job)
