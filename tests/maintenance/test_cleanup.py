"""The whole cleanup on a real Postgres and real files: what goes, what stays, and under kill -9."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import PLAN_ROWS, JobFacts, read_snapshot
from cairn.catalog.jobs import job_names
from cairn.errors import BadInputError, RefusedError, StorageError
from cairn.maintenance.cleanup import CleanupReport, cleanup_job
from cairn.maintenance.deleter import delete_condemned
from cairn.storage.posix import PosixStore
from tests.forked import Forked
from tests.maintenance.killed import cleanup
from tests.maintenance.synthetic import SyntheticJob, dump


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def expected(job: SyntheticJob) -> CleanupReport:
    return CleanupReport(
        job=job.name,
        dry_run=False,
        subsumed_checkpoints=job.SUBSUMED,
        dead_segments=job.DEAD,
        condemned_files=job.DOOMED,
        deleted_files=job.DOOMED,
        freed_bytes=job.FREED_BYTES,
        failed_deletes=0,
        waiting_files=0,
        waiting_bytes=0,
        next_delete_at=None,
        trimmed_checkpoints=0,
        trimmed_files=0,
    )


def assert_clean(job: SyntheticJob) -> None:
    assert job.objects() == job.needed
    statuses = job.execute(
        "SELECT checkpoint_id, status FROM cairn.checkpoints WHERE job_id = :job ORDER BY 1"
    )
    assert [status for _, status in statuses] == ["SUBSUMED"] * 3 + ["CONFIRMED"] * 2 + [
        "IN_PROGRESS"
    ]
    files = job.execute("SELECT path, status FROM cairn.physical_files WHERE job_id = :job")
    assert {path for path, status in files if status == "DELETED"} == job.doomed
    assert {path for path, status in files if status in ("SEALED", "WRITING")} == job.needed
    done = job.execute(
        "SELECT path FROM cairn.deletions WHERE job_id = :job AND done_at IS NOT NULL"
    )
    assert {path for (path,) in done} == job.doomed


def assert_safe(job: SyntheticJob) -> None:
    """Nothing needed is gone, and whatever is gone has a delete intent."""
    assert job.needed <= job.objects()
    intents = {path for (path,) in job.execute("SELECT path FROM cairn.deletions")}
    files = job.execute(
        "SELECT path FROM cairn.physical_files WHERE job_id = :job AND status <> 'WRITING'"
    )
    assert {path for (path,) in files} - job.objects() <= intents


def start_cleanup(job: SyntheticJob, kill_at: tuple[str, int] | None = None) -> Forked:
    return Forked(cleanup, job.url, job.name, kill_at=kill_at)


def test_a_cleanup_deletes_exactly_what_no_checkpoint_needs(job: SyntheticJob) -> None:
    assert cleanup_job(job.catalog, job.name) == expected(job)
    assert_clean(job)


def test_a_cleanup_logs_its_plan_and_what_it_deleted(
    job: SyntheticJob, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="cairn.maintenance"):
        cleanup_job(job.catalog, job.name)
    plan, deleted = [vars(record) for record in caplog.records]
    assert (plan["message"], plan["job"]) == ("cleanup plan applied", job.name)
    assert (plan["dead_segments"], plan["condemned_files"]) == (job.DEAD, job.DOOMED)
    assert plan["planned_bytes"] == job.FREED_BYTES
    assert (deleted["files"], deleted["size_bytes"]) == (job.DOOMED, job.FREED_BYTES)


def test_a_second_cleanup_changes_nothing(job: SyntheticJob) -> None:
    cleanup_job(job.catalog, job.name)
    before = dump(job.url)
    again = cleanup_job(job.catalog, job.name)
    assert again == CleanupReport(
        job=job.name,
        dry_run=False,
        subsumed_checkpoints=0,
        dead_segments=0,
        condemned_files=0,
        deleted_files=0,
        freed_bytes=0,
        failed_deletes=0,
        waiting_files=0,
        waiting_bytes=0,
        next_delete_at=None,
        trimmed_checkpoints=0,
        trimmed_files=0,
    )
    after = dump(job.url)
    assert after == before | {"good_runs": after["good_runs"]}


def test_a_dry_run_changes_nothing_and_foretells_the_cleanup(job: SyntheticJob) -> None:
    rows, objects = dump(job.url), job.objects()
    forecast = cleanup_job(job.catalog, job.name, dry_run=True)
    assert dump(job.url) == rows
    assert job.objects() == objects
    assert forecast.dry_run
    assert replace(forecast, dry_run=False) == cleanup_job(job.catalog, job.name)


def test_only_the_named_job_is_cleaned(job: SyntheticJob) -> None:
    other = SyntheticJob(job.url, job.storage).create()
    objects = other.objects()
    cleanup_job(job.catalog, job.name)
    assert other.objects() == objects
    assert job.catalog.run("listing", job_names) == sorted([job.name, other.name])


def test_an_unknown_job_is_named(metastore_url: str) -> None:
    with pytest.raises(BadInputError, match="no job 'nobody'; there are none yet"):
        cleanup_job(Catalog(metastore_url), "nobody")


def test_the_plan_is_stored_with_a_reason_for_each_file(job: SyntheticJob) -> None:
    cleanup_job(job.catalog, job.name)
    [(action, status, plan, result)] = job.execute(
        "SELECT action, status, plan, result FROM cairn.maintenance_runs WHERE job_id = :job"
    )
    assert (action, status) == ("subsumption", "APPLIED")
    assert {file["path"] for file in plan["condemned_files"]} == job.doomed
    assert all(file["reason"] for file in plan["condemned_files"])
    assert result == {"subsumed_checkpoints": 3, "dead_segments": 6, "condemned_files": 6}


def test_killed_before_any_commit_the_next_cleanup_finishes(
    metastore_url: str, tmp_storage: str
) -> None:
    killed = 0
    while True:
        job = SyntheticJob(metastore_url, tmp_storage).create()
        is_over = start_cleanup(job, ("commit", killed + 1)).run()
        assert_safe(job)
        if is_over:
            break
        killed += 1
        cleanup_job(job.catalog, job.name)
        assert_clean(job)
    assert killed >= 6


@pytest.mark.parametrize("number", [1, 4])
def test_killed_between_two_deletes_the_next_cleanup_finishes(
    job: SyntheticJob, number: int
) -> None:
    assert not start_cleanup(job, ("unlink", number)).run()
    assert_safe(job)
    rest = cleanup_job(job.catalog, job.name)
    assert rest == replace(
        expected(job), subsumed_checkpoints=0, dead_segments=0, condemned_files=0
    )
    assert_clean(job)


def test_two_cleanups_at_once_share_the_work(job: SyntheticJob) -> None:
    processes = [start_cleanup(job) for _ in range(2)]
    for process in processes:
        process.go()
    assert [process.end() for process in processes] == [True, True]
    reports = [asdict(process.result) for process in processes]
    together = {
        name: sum(report[name] for report in reports) if type(value) is int else value
        for name, value in asdict(expected(job)).items()
    }
    assert together == asdict(expected(job))
    assert_clean(job)


WITHOUT_FORM = text("ALTER TABLE cairn.physical_files DROP CONSTRAINT ck_physical_files__path_form")


def test_an_object_outside_the_jobs_root_is_refused(job: SyntheticJob) -> None:
    foreign = "another-job/shared/precious.seg"

    def add(connection: Connection) -> None:
        connection.execute(WITHOUT_FORM)
        job.add_file(connection, foreign, segments=1)

    job.catalog.run("adding a foreign file", add)
    before = job.objects()
    with pytest.raises(RefusedError, match=rf"outside the job's root.*{job.name}.*{foreign}"):
        cleanup_job(job.catalog, job.name)
    assert [stored.path for stored in job.store.list("another-job/")] == [foreign]
    assert job.objects() == before


class FaultyStore(PosixStore):
    """Its first delete request fails: for one object, or half-way with no answer at all."""

    def __init__(self, root: Path, *, fails_for: str | None) -> None:
        super().__init__(root)
        self.fails_for = fails_for
        self.requests = 0

    def delete_many(self, paths: Sequence[str]) -> dict[str, str]:
        self.requests += 1
        if self.requests > 1:
            return super().delete_many(paths)
        if self.fails_for is None:
            super().delete_many(paths[: len(paths) // 2])
            raise StorageError("connection reset")
        super().delete_many([path for path in paths if path != self.fails_for])
        return {self.fails_for: "503 SlowDown"}


def condemn(job: SyntheticJob) -> JobFacts:
    """Plans and applies, and deletes nothing yet."""
    assert not start_cleanup(job, ("unlink", 1)).run()
    return job.catalog.run("reading", lambda c: read_snapshot(c, job.name)).job


def test_a_failed_delete_is_recorded_logged_and_tried_again(
    job: SyntheticJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = condemn(job)
    path = min(job.doomed & job.objects())
    store = FaultyStore(tmp_path / "storage", fails_for=path)
    query = (
        "SELECT attempts, last_error, done_at IS NOT NULL FROM cairn.deletions WHERE path = :path"
    )

    first = delete_condemned(job.catalog, facts, store)
    assert (first.files, first.failed) == (job.DOOMED - 1, 1)
    assert job.execute(query, path=path) == [(1, "503 SlowDown", False)]
    assert path in job.objects()
    [warning] = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    assert (warning["failed"], warning["file"]) == (1, path)

    again = delete_condemned(job.catalog, facts, store)
    assert (again.files, again.failed) == (1, 0)
    assert job.execute(query, path=path) == [(2, None, True)]
    assert_clean(job)


def test_after_a_delete_request_without_an_answer_the_next_cleanup_finishes(
    job: SyntheticJob, tmp_path: Path
) -> None:
    facts = condemn(job)
    store = FaultyStore(tmp_path / "storage", fails_for=None)
    with pytest.raises(StorageError, match="connection reset"):
        delete_condemned(job.catalog, facts, store)
    assert_safe(job)
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED
    assert_clean(job)


def test_a_storage_that_is_not_mounted_keeps_the_delete_intents(
    job: SyntheticJob, tmp_path: Path
) -> None:
    facts = condemn(job)
    root = tmp_path / "storage"
    root.rename(tmp_path / "unmounted")
    for delete in (
        lambda: cleanup_job(job.catalog, job.name),
        lambda: delete_condemned(job.catalog, facts, job.store),
    ):
        with pytest.raises(StorageError, match=r"cannot list: nothing is where .*mount the disk"):
            delete()
    [(still_open,)] = job.execute("SELECT count(*) FROM cairn.deletions WHERE done_at IS NULL")
    assert still_open == job.DOOMED
    (tmp_path / "unmounted").rename(root)
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED
    assert_clean(job)


def test_the_role_cairn_maintainer_may_do_all_of_it(job: SyntheticJob) -> None:
    maintainer = make_url(job.url).update_query_dict({"options": "-c role=cairn_maintainer"})
    url = maintainer.render_as_string(hide_password=False)
    assert cleanup_job(Catalog(url), job.name) == expected(job)
    assert_clean(job)


def add_confirmed(job: SyntheticJob, last: int) -> None:
    """Adds checkpoints 7 to `last`, which are CONFIRMED."""
    job.execute(
        "UPDATE cairn.jobs SET next_checkpoint_id = :last + 1 WHERE job_id = :job", last=last
    )
    job.execute(
        "INSERT INTO cairn.checkpoints (job_id, checkpoint_id, epoch, query_id, batch_id,"
        " parallelism) SELECT :job, n, 2, 'query', n, 2 FROM generate_series(7, :last) n",
        last=last,
    )
    for status in ("COMPLETED", "CONFIRMED"):
        job.execute(
            "UPDATE cairn.checkpoints SET status = :status"
            " WHERE job_id = :job AND checkpoint_id > 6",
            status=status,
        )


def test_more_pins_than_fit_one_plan_hide_nothing_that_can_go(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cairn.catalog.cleanup.snapshot.PLAN_ROWS", 200)
    last, pinned = 300, 250
    add_confirmed(job, last)
    job.execute(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind)"
        " SELECT gen_random_uuid(), :job, n, 'pin' FROM generate_series(7, :pinned) n",
        pinned=pinned,
    )
    report = cleanup_job(job.catalog, job.name)
    assert report.subsumed_checkpoints == 5 + (last - 2) - pinned
    assert report.deleted_files >= job.DOOMED


def test_a_backlog_larger_than_one_plan_is_deleted_in_one_cleanup(job: SyntheticJob) -> None:
    number = PLAN_ROWS + 200
    add_confirmed(job, number)
    job.execute(
        "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope)"
        " SELECT md5(:job || n)::uuid, :job, 2, :job || '/shared/subtask-0-2/'"
        " || md5(:job || n)::uuid || '.seg', 'shared'"
        " FROM generate_series(7, :last) n",
        last=number,
    )
    job.execute(
        "UPDATE cairn.physical_files SET status = 'SEALED', size_bytes = 100"
        " WHERE job_id = :job AND path LIKE :job || '/shared/%' AND status = 'WRITING'"
    )
    job.execute(
        "INSERT INTO cairn.placed_segments (segment_id, job_id, file_id, kind, subtask, key_groups,"
        " offset_bytes, size_bytes, sha256, entries, first_checkpoint, as_of_checkpoint,"
        " released_checkpoint) SELECT gen_random_uuid(), :job, md5(:job || n)::uuid,"
        " 'changelog', 0, '[0,64)', 0, 100, '', 1, n, n, n + 1 FROM generate_series(7, :last) n",
        last=number,
    )
    report = cleanup_job(job.catalog, job.name)
    # Kept: the newest two and the one in progress, and the files of the newest two.
    assert report.subsumed_checkpoints == number - 3
    assert report.deleted_files == job.DOOMED + (number - 6) - 2
    [(retained,)] = job.execute(
        "SELECT array_agg(checkpoint_id ORDER BY 1) FROM cairn.checkpoints"
        " WHERE job_id = :job AND status <> 'SUBSUMED'"
    )
    assert retained == [6, number - 1, number]
    assert job.needed == job.objects()


def test_a_plan_has_all_that_the_view_would_condemn(metastore_url: str, tmp_storage: str) -> None:
    job = SyntheticJob(metastore_url, tmp_storage).create()
    in_view = "SELECT file_id FROM cairn.v_unneeded_files WHERE is_condemnable AND job_id = :job"
    snapshot = job.catalog.run("reading", lambda c: read_snapshot(c, job.name))
    assert {(file.file_id,) for file in snapshot.unneeded_files} == set(job.execute(in_view))
    assert {file.reason[:6] for file in snapshot.unneeded_files} == {"sealed", "its wr"}
