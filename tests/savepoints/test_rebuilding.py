"""A metastore from manifests alone: what comes back, who is fenced, and what is refused."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import migrate
from cairn.catalog.savepoints.rebuilt_job import FoundManifest
from cairn.errors import FencedError, RefusedError, StorageError
from cairn.layout import manifest_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.manifest import Manifest, ManifestFile, encode
from cairn.runtime.executor.task_manager import TaskManager
from cairn.savepoints.rebuild import RebuildReport, plan_job, rebuild
from metastore.enums import Scope
from tests.runtime.tasks import QUERY, remembered
from tests.savepoints.jobs import EXECUTOR, Query
from tests.savepoints.test_manifest_format import MANIFEST, SEGMENT

LIVE = (
    "SELECT path, live_segments, live_bytes, size_bytes FROM cairn.physical_files"
    " WHERE status = 'SEALED' AND live_segments > 0 ORDER BY path"
)


@pytest.fixture
def lost(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    """A query with a manifest of every checkpoint up to 6, of batch 5; batch 6 is not confirmed."""
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=1).start()
    for batch_id in range(7):
        query.batch(batch_id, materializes=[batch_id % 2] if batch_id > 1 else [])
        if batch_id == 3:
            query.start(parallelism=3)
    return query


def rebuilt(lost: Query, url: str) -> Query:
    """Returns the query with a metastore rebuilt at `url`; its executors have their local state."""
    rebuild(Catalog(url), lost.storage, takes_over=True)
    return unstarted(lost, url)


def test_every_checkpoint_with_a_manifest_comes_back_with_its_state(
    lost: Query, other_url: str
) -> None:
    report = rebuild(Catalog(other_url), lost.storage)
    [job] = report.jobs
    assert (job.job, job.checkpoints, job.newest_checkpoint, job.batch_id) == ("words", 6, 6, 5)
    assert (job.query_id, report.problems) == (QUERY, ())
    back = moved(lost, other_url)
    for checkpoint_id in range(1, 7):
        assert back.state(checkpoint_id) == remembered(checkpoint_id)
    names = back.sql("SELECT checkpoint_id, name FROM cairn.v_pins ORDER BY 1")
    assert names == [(n, "rebuilt") for n in range(1, 7)]
    assert back.sql("SELECT run_state FROM cairn.v_jobs") == [("ended",)]


def test_a_renamed_job_comes_back_by_the_name_in_its_newest_manifest(
    lost: Query, other_url: str
) -> None:
    lost.sql("UPDATE cairn.runs SET ended_at = now()")
    lost.sql("UPDATE cairn.jobs SET name = 'letters'")
    for batch_id in (7, 8):
        lost.batch(batch_id)
    [job] = rebuild(Catalog(other_url), lost.storage).jobs
    assert (job.job, job.checkpoints) == ("letters", 8)


def test_live_bytes_are_those_that_the_lost_metastore_counted(lost: Query, other_url: str) -> None:
    for table in ("placed_segments", "group_commits"):
        lost.sql(f"ALTER TABLE cairn.{table} DISABLE TRIGGER guard_needed")
    lost.sql("UPDATE cairn.placed_segments SET status = 'DEAD' WHERE first_checkpoint > 6")
    lost.sql("UPDATE cairn.group_commits SET status = 'DEAD' WHERE checkpoint_id > 6")
    before = lost.sql(LIVE)
    rebuild(Catalog(other_url), lost.storage)
    assert moved(lost, other_url).sql(LIVE) == before


@pytest.mark.parametrize("parallelism", [3, 2])
@pytest.mark.parametrize("has_local_state", [True, False])
def test_the_query_continues_with_the_batch_after_the_newest_manifest(
    lost: Query, other_url: str, parallelism: int, has_local_state: bool
) -> None:
    if not has_local_state:
        shutil.rmtree(lost.local_dir)
    query = rebuilt(lost, other_url).start(parallelism)
    assert query.run.has_state
    last = [query.batch(batch_id, materializes=[0]) for batch_id in range(6, 10)][-1]
    assert query.state(last) == remembered(10)
    cleanup_job(Catalog(other_url), "words")
    assert query.state(last) == remembered(10)
    assert query.state(3) == remembered(3), "it is pinned"
    query.sql("UPDATE cairn.pins SET removed_at = now()")
    cleanup_job(Catalog(other_url), "words")
    assert query.state(last) == remembered(10)
    [(open_checkpoints,)] = query.sql(
        "SELECT count(*) FROM cairn.checkpoints WHERE status IN ('CONFIRMED', 'COMPLETED')"
    )
    assert open_checkpoints == 3


def test_a_query_that_spark_has_taken_further_is_told_where_to_roll_back(
    lost: Query, other_url: str
) -> None:
    query = rebuilt(lost, other_url).start(3)
    with pytest.raises(
        RefusedError,
        match=r"begins batch 8.*newest is of batch 5.*above 5 in .*commits and above 6 in its "
        r"offsets.*restore_from",
    ):
        query.batch(8)
    query.batch(6)


def test_ids_and_epochs_are_never_given_again(lost: Query, other_url: str) -> None:
    query = rebuilt(lost, other_url).start(3)
    first = query.batch(6)
    assert first >= 6 + 1_000_000
    assert query.plan.epoch > 1_000_000_000, "seconds since 1970"


def test_whoever_still_runs_on_the_lost_metastores_epochs_is_fenced(
    lost: Query, other_url: str
) -> None:
    zombie = replace(lost.plan, catalog=Catalog(other_url), epoch=999)
    query = rebuilt(lost, other_url)
    query.plan = zombie
    with pytest.raises(FencedError, match="run 999 was replaced by run"):
        query.batch(6)
    query.plan = replace(lost.plan, catalog=Catalog(other_url))
    begun = TaskManager(query.plan, EXECUTOR).begin(query.plan.batch(QUERY, 6))
    with pytest.raises(FencedError, match="was replaced by run"):
        query.task(6, 0).run()
    assert begun.checkpoint_id == 7, "as it was begun before the loss"


def test_epochs_that_only_a_task_managers_path_tells_of_count(lost: Query, other_url: str) -> None:
    path = f"{lost.plan.job_id}/taskmanager-owned/4000000000-abc/x.seg"
    lost.store.put(path, [b"x"])
    query = rebuilt(lost, other_url).start(3)
    assert query.plan.epoch == 4_000_000_002


def test_a_manifest_whose_bytes_are_gone_or_damaged_is_not_used(
    lost: Query, other_url: str
) -> None:
    newest = lost.origin(6).manifest
    only = {f.path for f in newest.files} - {f.path for f in lost.origin(5).manifest.files}
    (lost.root.parent / min(only)).unlink()
    (lost.root / "chk-2" / "_metadata").write_bytes(b"x")
    report = rebuild(Catalog(other_url), lost.storage, takes_over=True)
    assert [job.newest_checkpoint for job in report.jobs] == [5]
    assert "chk-2/_metadata: the object is not a manifest" in report.problems[0]
    assert f"its file {min(only)} is missing" in report.problems[1]
    back = moved(lost, other_url)
    assert back.state(5) == remembered(5)
    query = unstarted(lost, other_url).start(3)
    assert query.batch(5) >= 1_000_006, "chk-6 is there, so 6 is not given again"
    query.batch(6)
    assert query.state(query.batch(7)) == remembered(8)


def test_a_checkpoint_that_the_query_was_rolled_back_behind_does_not_come_back(
    lost: Query, other_url: str
) -> None:
    newest = lost.root / "chk-6" / "_metadata"
    whole = newest.read_bytes()
    newest.write_bytes(b"x")
    query = rebuilt(lost, other_url).start(3)
    query.batch(5)
    second = query.batch(6)
    newest.write_bytes(whole)
    with Catalog(other_url).begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA cairn CASCADE")
    migrate(Catalog(other_url))
    report = rebuild(Catalog(other_url), lost.storage, takes_over=True)
    [job] = report.jobs
    assert (job.newest_checkpoint, job.batch_id) == (second - 1, 5)
    assert report.problems == (
        f"{lost.plan.job_id}/chk-6/_metadata: the query was rolled back behind its batch 5",
    )
    query = unstarted(lost, other_url).start(2)
    assert query.state(query.batch(6)) == remembered(7)


def test_a_dry_run_tells_the_same_and_changes_nothing(lost: Query, other_url: str) -> None:
    told = rebuild(Catalog(other_url), lost.storage, dry_run=True)
    assert moved(lost, other_url).sql("SELECT FROM cairn.jobs") == []
    assert rebuild(Catalog(other_url), lost.storage) == told


def test_a_metastore_that_has_the_job_is_refused_and_kept(lost: Query, other_url: str) -> None:
    before = lost.sql("SELECT * FROM cairn.jobs")
    with pytest.raises(RefusedError, match="has a job 'words', with the root words-"):
        rebuild(lost.catalog, lost.storage)
    assert lost.sql("SELECT * FROM cairn.jobs") == before
    rebuild(Catalog(other_url), lost.storage)
    with pytest.raises(RefusedError, match="has a job 'words'"):
        rebuild(Catalog(other_url), lost.storage)


def test_all_jobs_of_a_storage_come_back(lost: Query, other_url: str) -> None:
    other = Query(lost.url, lost.storage, lost.local_dir, job="other", interval=1).start()
    for batch_id in range(2):
        other.batch(batch_id)
    report = rebuild(Catalog(other_url), lost.storage)
    assert [job.job for job in report.jobs] == ["other", "words"]
    [(jobs,)] = moved(lost, other_url).sql("SELECT count(*) FROM cairn.jobs")
    assert jobs == 2


def test_two_roots_of_one_name_are_not_used(lost: Query, other_url: str) -> None:
    other = unstarted(lost, other_url).start()
    for batch_id in range(2):
        other.batch(batch_id)
    with Catalog(other_url).begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA cairn CASCADE")
    migrate(Catalog(other_url))
    with pytest.raises(RefusedError, match=r"words-\w+ and words-\w+ are of one job, 'words', and"):
        rebuild(Catalog(other_url), lost.storage)


def forge(lost: Query, job_id: str, checkpoint_id: int = 6, **changes: Any) -> None:
    """Adds another job, with a copy of a manifest and its files, and a right checksum."""
    without = shutil.ignore_patterns("chk-*")
    shutil.copytree(lost.root, lost.root.parent / job_id, ignore=without, dirs_exist_ok=True)
    of = lost.origin(6).manifest
    files = [replace(f, path=f.path.replace(of.job_id, job_id)) for f in of.files]
    changes = {"files": tuple(files), **changes}
    manifest = replace(of, job_id=job_id, checkpoint_id=checkpoint_id, **changes)
    lost.store.put(manifest_file(job_id, checkpoint_id), [encode(manifest)])


def test_what_is_wrong_with_one_job_is_in_no_others_way(lost: Query, other_url: str) -> None:
    forge(lost, "zz-00000001", job="its run is of the other job")
    forge(lost, "zz-00000002", job="its segments too", run_id=str(uuid4()))
    forge(lost, "zz-00000003", job="too late", checkpoint_id=10**30)
    forge(lost, "zz-00000004", job="\0")
    forge(lost, "zz-00000006", query_id="\0")
    forge(lost, "zz-00000007", query_id="q" * 20_000)
    more = ManifestFile(str(uuid4()), "zz-00000009/shared/none.seg", Scope.SHARED)
    forge(lost, "zz-00000009", files=(more,))
    alone: dict[str, Any] = {"files": (), "segments": (), "run_id": str(uuid4())}
    forge(lost, "zz-8", job="its root is no job's", **alone)
    for n in (5, 6):
        forge(lost, "zz-00000005", n, job="one run, two epochs", epoch=n, batch_id=n - 1, **alone)
    high = "9" * 20
    for path in (f"chk-{high}/_metadata", f"taskmanager-owned/{high}-x/y"):
        lost.store.put(f"{lost.plan.job_id}/{path}", [b"x"])
    for name in (b"\x1b[2J", b"\xff", "\u202e".encode()):
        odd = Path(os.fsdecode(bytes(lost.root.parent) + b"/" + name + b"/chk-6"))
        odd.mkdir(parents=True)
        (odd / "_metadata").touch()
    report = rebuild(Catalog(other_url), lost.storage)
    assert [job.job for job in report.jobs] == ["words"], report.problems
    assert moved(lost, other_url).state(6) == remembered(6)
    told = "\n".join(report.problems)
    for job_id in ("zz-00000001", "zz-00000002"):
        assert (
            f"{job_id}: its manifests name runs, files or segments of {lost.plan.job_id}/" in told
        )
    assert "zz-00000005: the metastore does not take its manifests: duplicate key" in told
    assert "zz-8: the metastore does not take its manifests" in told
    assert "zz-00000003: no manifest" in told
    assert told.count("is no path of an object") == 3
    for job_id in ("zz-00000004", "zz-00000006", "zz-00000007"):
        assert f"{job_id}/chk-6/_metadata: the manifest cannot be read: Expected `str`" in told
    assert (
        "zz-00000009/chk-6/_metadata: the manifest names a file that none of its segments" in told
    )


def test_a_storage_that_is_not_there_is_not_an_empty_one(lost: Query, other_url: str) -> None:
    shutil.rmtree(lost.root.parent)
    with pytest.raises(StorageError, match="mount the disk"):
        rebuild(Catalog(other_url), lost.storage)


def test_a_storage_without_manifests_says_what_it_has(lost: Query, other_url: str) -> None:
    for path in lost.root.glob("chk-*"):
        shutil.rmtree(path)
    assert rebuild(Catalog(other_url), lost.storage) == RebuildReport(
        (), (f"{lost.plan.job_id}: no manifest from which it could be rebuilt",)
    )


def test_the_role_cairn_writer_may_rebuild(lost: Query, other_url: str) -> None:
    writer = make_url(other_url).update_query_dict({"options": "-c role=cairn_writer"})
    report = rebuild(Catalog(writer.render_as_string(hide_password=False)), lost.storage)
    assert [job.checkpoints for job in report.jobs] == [6]


def test_progress_counts_the_manifests(lost: Query, other_url: str) -> None:
    seen: list[tuple[int, int]] = []
    rebuild(
        Catalog(other_url),
        lost.storage,
        dry_run=True,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(n, 6) for n in range(1, 7)]


intervals = st.lists(
    st.tuples(st.integers(1, 9), st.none() | st.integers(1, 9)).filter(
        lambda pair: pair[1] is None or pair[0] < pair[1]
    ),
    max_size=8,
)


@given(intervals, st.sets(st.integers(1, 9), min_size=1))
def test_each_segment_is_part_of_the_checkpoints_whose_manifests_name_it(
    segments: list[tuple[int, int | None]], checkpoints: set[int]
) -> None:
    def holds(interval: tuple[int, int | None], checkpoint_id: int) -> bool:
        first, released = interval
        return first <= checkpoint_id and (released is None or checkpoint_id < released)

    def manifest(checkpoint_id: int) -> Manifest:
        held = [
            replace(SEGMENT, segment_id=str(UUID(int=n)), first_checkpoint=interval[0])
            for n, interval in enumerate(segments)
            if holds(interval, checkpoint_id)
        ]
        return replace(MANIFEST, checkpoint_id=checkpoint_id, segments=tuple(held))

    found = [FoundManifest(manifest(c), f"job-1/chk-{c}/_metadata", b"") for c in checkpoints]
    job = plan_job("/s", found, {one.path: 1 for one in found})
    handles = {handle.segment_id: handle for _, _, handle in job.segments()}
    for checkpoint_id in checkpoints:
        for n, interval in enumerate(segments):
            handle = handles.get(str(UUID(int=n)))
            is_part = handle is not None and holds(
                (handle.first_checkpoint, handle.released_checkpoint), checkpoint_id
            )
            assert is_part == holds(interval, checkpoint_id)


def moved(query: Query, url: str) -> Query:
    """Returns the query as it was started, with another metastore."""
    other = unstarted(query, url)
    other.plan = replace(query.plan, catalog=Catalog(url))
    return other


def unstarted(query: Query, url: str) -> Query:
    """Returns the query with another metastore, before any run of it there."""
    return Query(url, query.storage, query.local_dir, job=query.job, interval=1)
