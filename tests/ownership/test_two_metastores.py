"""Two metastores over one storage: only the one that owns a job's root runs it and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts, read_snapshot
from cairn.errors import RefusedError, StorageError
from cairn.maintenance.cleanup import apply_stored, cleanup_job, record_plan
from cairn.maintenance.deleter import delete_condemned, delete_directories
from cairn.maintenance.subsumption import plan_subsumption
from cairn.owner import Owner
from cairn.ownership.objects import write_owner
from cairn.ownership.take import own_root, take_over
from cairn.savepoints.rebuild import rebuild
from cairn.storage.posix import PosixStore
from tests.databases import connect
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.runtime.tasks import remembered
from tests.savepoints.jobs import Query


@pytest.fixture
def live(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    """A query with a manifest of every checkpoint, and much that a cleanup could delete."""
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=1).start()
    for batch_id in range(6):
        query.batch(batch_id, materializes=[0, 1] if batch_id == 3 else [])
    return query


@pytest.fixture
def rehearsal(live: Query, other_url: str) -> Query:
    """The same job in another metastore, rebuilt beside the live one."""
    rebuild(Catalog(other_url), live.storage)
    query = Query(other_url, live.storage, live.local_dir, interval=1)
    query.plan = live.plan
    return query


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def objects(query: Query) -> set[str]:
    return {stored.path for stored in query.store.list("")}


def condemn(job: SyntheticJob) -> JobFacts:
    """Does all of a cleanup that comes before the first delete."""
    snapshot = job.catalog.run("reading", lambda c: read_snapshot(c, job.name))
    plan = plan_subsumption(snapshot)
    apply_stored(job.catalog, snapshot.job, record_plan(job.catalog, snapshot.job, plan))
    return snapshot.job


def another(generation: int) -> Owner:
    """Returns what another metastore writes when it takes a root over."""
    return Owner(
        metastore_id=str(uuid4()),
        database_id="1-2-3",
        timeline=1,
        generation=generation,
        ownership_id=str(uuid4()),
        since=datetime.now(UTC),
    )


def test_a_rehearsed_recovery_reads_all_and_deletes_nothing(live: Query, rehearsal: Query) -> None:
    before = objects(live)
    rehearsal.sql("UPDATE cairn.pins SET removed_at = now()")
    rehearsal.age_intents()
    rows = dump(rehearsal.url)
    assert rehearsal.state(5) == remembered(5)
    with pytest.raises(RefusedError, match=r"belongs to metastore .*take-over words"):
        cleanup_job(rehearsal.catalog, "words")
    assert dump(rehearsal.url) == rows
    with pytest.raises(RefusedError, match="belongs to metastore"):
        rehearsal.start()
    assert objects(live) == before
    live.start()
    assert live.state(live.batch(6)) == remembered(7)
    cleanup_job(live.catalog, "words")


def test_a_rehearsal_makes_no_savepoint(live: Query, rehearsal: Query) -> None:
    before, pins = objects(live), rehearsal.sql("SELECT count(*) FROM cairn.pins")
    with pytest.raises(RefusedError, match="belongs to metastore"):
        rehearsal.savepoint(name="mine")
    assert rehearsal.sql("SELECT count(*) FROM cairn.pins WHERE removed_at IS NULL") == pins
    assert objects(live) == before


def test_the_refusal_names_both_metastores(live: Query, rehearsal: Query) -> None:
    [(ours,)] = live.sql("SELECT metastore_id FROM cairn.metastore")
    [(theirs,)] = rehearsal.sql("SELECT metastore_id FROM cairn.metastore")
    assert ours != theirs
    with pytest.raises(RefusedError, match=rf"metastore {ours} .*this one, {theirs} "):
        cleanup_job(rehearsal.catalog, "words")


def test_a_rebuild_that_takes_over_fences_the_runs_and_cleanups_of_the_other(
    live: Query, other_url: str
) -> None:
    report = rebuild(Catalog(other_url), live.storage, takes_over=True)
    assert report.problems == ()
    before, rows = objects(live), dump(live.url)
    live.age_intents()
    with pytest.raises(RefusedError, match=r"generation 2 .*is another one"):
        cleanup_job(live.catalog, "words")
    with pytest.raises(RefusedError, match="is another one"):
        live.start()
    assert objects(live) == before
    assert len(dump(live.url)["checkpoints"]) == len(rows["checkpoints"])
    back = Query(other_url, live.storage, live.local_dir, interval=1).start()
    assert back.state(back.batch(5)) == remembered(6)
    cleanup_job(back.catalog, "words")


def test_the_first_one_takes_it_back(live: Query, other_url: str) -> None:
    rebuild(Catalog(other_url), live.storage, takes_over=True)
    taken = take_over(live.catalog, live.store, live.plan.job_id)
    assert taken.generation == 3
    live.start()
    cleanup_job(live.catalog, "words")
    with pytest.raises(RefusedError, match="generation 3"):
        cleanup_job(Catalog(other_url), "words")


class TakenOverStore(PosixStore):
    """Another metastore takes the job's root over while the first delete request is answered."""

    def __init__(self, root: Path, job_id: str) -> None:
        super().__init__(root)
        self.job_id = job_id
        self.requests: list[int] = []

    def delete_many(self, paths: Sequence[str]) -> dict[str, str]:
        self.requests.append(len(paths))
        write_owner(self, self.job_id, another(2))
        return super().delete_many(paths)


def test_a_root_that_is_taken_over_after_the_plan_was_applied_is_left_alone(
    job: SyntheticJob,
) -> None:
    facts, before = condemn(job), job.objects()
    write_owner(job.store, job.job_id, another(2))
    with pytest.raises(RefusedError, match=r"generation 2 .*is another one"):
        delete_condemned(job.catalog, facts, job.store)
    assert job.objects() == before


def test_a_root_that_is_taken_over_between_two_requests_loses_one_at_most(
    job: SyntheticJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cairn.maintenance.deleter.BATCH_OBJECTS", 2)
    monkeypatch.setattr("cairn.maintenance.deleter._REQUESTS", 1)  # else either may be the first
    facts = condemn(job)
    store = TakenOverStore(tmp_path / "storage", job.job_id)
    with pytest.raises(RefusedError, match="is another one"):
        delete_condemned(job.catalog, facts, store)
    assert store.requests == [2]
    done = "SELECT count(*) FROM cairn.deletions WHERE done_at IS NOT NULL"
    assert job.execute(done) == [(2,)]


def test_an_emptied_storage_is_not_taken_for_one_whose_objects_are_deleted(
    job: SyntheticJob, tmp_path: Path
) -> None:
    facts, root = condemn(job), tmp_path / "storage"
    rows = dump(job.url)
    root.rename(tmp_path / "unmounted")
    root.mkdir()
    for delete in (
        lambda: cleanup_job(job.catalog, job.name),
        lambda: delete_condemned(job.catalog, facts, job.store),
        lambda: take_over(job.catalog, job.store, job.job_id),
        lambda: own_root(job.catalog, job.store, job.job_id),
    ):
        with pytest.raises(StorageError, match=r"has no owner object of generation 1.*not mounted"):
            delete()
    assert dump(job.url) == rows
    assert not list(root.iterdir())
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED


def test_a_directory_on_an_empty_mount_point_is_not_taken_for_removed(
    job: SyntheticJob, tmp_path: Path
) -> None:
    job.execute(
        "INSERT INTO cairn.directories (job_id, path, scope, tm_id, epoch)"
        " VALUES (:job, :job || '/taskmanager-owned/tm-9', 'taskmanager', 'tm-9', 1)"
    )
    job.execute("UPDATE cairn.directories SET status = 'UNCLAIMED', unclaimed_at = now()")
    facts = condemn(job)
    (tmp_path / "storage").rename(tmp_path / "unmounted")
    (tmp_path / "storage").mkdir()
    with pytest.raises(StorageError, match="has no owner object"):
        delete_directories(job.catalog, facts, job.store)
    assert job.execute("SELECT status FROM cairn.directories") == [("UNCLAIMED",)]


def test_a_job_that_nobody_owns_yet_deletes_nothing(job: SyntheticJob) -> None:
    for stored in job.store.list(f"{job.job_id}/owner/"):
        job.store.delete_many([stored.path])
    with connect(job.url) as connection:
        connection.exec_driver_sql("SET session_replication_role = replica")
        connection.exec_driver_sql("DELETE FROM cairn.ownerships")
    before = job.objects()
    with pytest.raises(RefusedError, match=r"no metastore owns .*Start the job, or"):
        cleanup_job(job.catalog, job.name)
    assert job.objects() == before
