"""Compaction on a real PostgreSQL and real files: what moves, what stays, and under kill -9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog.maintenance.wasteful_files import wasteful_files
from cairn.catalog.savepoints.pins import pin_checkpoint, remove_pins
from cairn.errors import FencedError, RefusedError, StorageError
from cairn.maintenance import leased_files
from cairn.maintenance.actions import apply_plan
from cairn.maintenance.compaction import apply_compaction, compact_job, plan_job
from cairn.maintenance.compaction_plan import CompactionOptions
from cairn.maintenance.plans import read
from metastore.enums import HeldBy, PinKind, SegmentKind
from tests.maintenance.wasteful_job import WastefulJob

OPTIONS = CompactionOptions()


@pytest.fixture
def job(shared_metastore_url: str, tmp_storage: str) -> WastefulJob:
    return WastefulJob(shared_metastore_url, tmp_storage).create()


def held(job: WastefulJob) -> dict[str, HeldBy | None]:
    return {one.path: one.held_by for one in wasteful_files(job.catalog, job.job_id, 1.0)}


def test_a_file_that_is_mostly_dead_is_rewritten_and_goes(job: WastefulJob) -> None:
    path = job.waste()
    assert held(job) == {path: None}
    before, live = job.retained(), job.content(job.confirmed)
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.done is not None
    assert report.done.rewritten_files == 1
    assert (report.done.copied_bytes, report.done.freed_bytes) == (1000, 3000)
    assert job.retained() == before, "checkpoints that there are keep what they had"
    first = job.next_checkpoint
    job.go_on(2)
    assert job.content(first) == live
    assert path not in {one.path for one in job.placed(first)}
    assert path in job.objects(), "older checkpoints need it"
    job.subsume()
    assert path not in job.objects()
    assert job.content(job.confirmed) == live
    assert job.objects() == job.known()
    assert held(job) == {}


def test_a_second_compaction_finds_nothing(job: WastefulJob) -> None:
    path = job.waste()
    compact_job(job.catalog, job.name, OPTIONS)
    assert held(job) == {path: HeldBy.RETAINED}
    before = job.dump()
    assert compact_job(job.catalog, job.name, OPTIONS).plan_id is None
    assert job.dump() == before


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(job: WastefulJob) -> None:
    path = job.waste()
    before = job.dump(), job.objects(), job.sql("SELECT * FROM cairn.maintenance_runs")
    report = compact_job(job.catalog, job.name, OPTIONS, dry_run=True)
    assert (report.plan_id, report.done) == (None, None)
    assert [one.path for one in report.plan.files] == [path]
    assert (report.plan.copied_bytes, report.plan.freed_bytes) == (1000, 3000)
    after = job.dump(), job.objects(), job.sql("SELECT * FROM cairn.maintenance_runs")
    assert after == before


def test_increments_move_and_the_next_increment_replaces_their_copies(job: WastefulJob) -> None:
    job.materialize(0, [(0, 4)])
    job.materialize(1, [(4, 8)])
    job.go_on()
    made = job.materialize(0, [(0, 1), (1, 2), (2, 4)], SegmentKind.KEYED_INCREMENT)
    job.go_on()
    job.materialize(0, [(0, 2)], SegmentKind.KEYED_INCREMENT)
    job.subsume()
    live = job.content(job.confirmed)
    assert compact_job(job.catalog, job.name, OPTIONS).plan.files[0].path == made[0].path
    first = job.next_checkpoint
    job.go_on()
    assert job.content(first) == live
    [copy] = [one for one in job.placed(first) if "/maintenance/" in one.path]
    job.materialize(0, [(0, 4)], SegmentKind.KEYED_INCREMENT)
    job.go_on(2)
    assert copy.segment_id not in {one.segment_id for one in job.placed(job.confirmed)}


# ------------------------------------------------------------------------- what holds


def test_what_a_pin_keeps_is_not_rewritten_until_it_is_removed(job: WastefulJob) -> None:
    path = job.waste()
    pinned, pin_id = job.confirmed, uuid4()
    job.run(
        lambda c: pin_checkpoint(c, job.name, pinned, pin_id=pin_id, kind=PinKind.PIN, name=None)
    )
    assert held(job) == {path: HeldBy.PIN}
    job.go_on(4)
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.plan_id is None
    assert "pinned checkpoints need all" in str(report.plan.pointless_because)
    job.run(lambda c: remove_pins(c, job.name, [pin_id]))
    assert held(job) == {path: None}


def test_a_job_that_has_ended_is_not_rewritten(job: WastefulJob) -> None:
    job.waste()
    job.sql("UPDATE cairn.runs SET ended_at = now() WHERE job_id = :job")
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert "no run of the job is alive" in str(report.plan.pointless_because)


def test_changelog_is_never_moved_and_its_file_is_left_to_the_fold(job: WastefulJob) -> None:
    path = job.waste()
    job.adopt(path, "changelog")
    assert held(job) == {path: HeldBy.CHANGELOG}
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.plan_id is None
    assert report.plan.held[HeldBy.CHANGELOG].paths == [path]
    assert all("/maintenance/" not in path for path in job.objects())


def test_changelog_that_came_after_the_plan_is_left_where_it_is(job: WastefulJob) -> None:
    path = job.waste()
    planned = plan_job(job.catalog, job.name, OPTIONS)
    assert planned.plan_id is not None
    job.adopt(path, "changelog")
    apply_compaction(job.catalog, read(job.catalog, planned.plan_id))
    [(moved,)] = job.sql(
        "SELECT count(*) FROM cairn.placed_segments AS s JOIN cairn.physical_files AS f"
        " USING (file_id) WHERE s.job_id = :job AND s.kind = 'changelog'"
        " AND (f.path <> :path OR s.released_checkpoint IS NOT NULL)",
        path=path,
    )
    assert moved == 0


def test_what_a_scrub_finds_damaged_after_the_plan_is_left_where_it_is(job: WastefulJob) -> None:
    """A copy would be known as damaged to nobody, and what it could be made from would go."""
    path = job.waste()
    planned = plan_job(job.catalog, job.name, OPTIONS)
    assert planned.plan_id is not None
    job.find_damage(path)
    before = job.placed(job.next_checkpoint)
    done = apply_compaction(job.catalog, read(job.catalog, planned.plan_id))
    assert (done["rewritten_files"], done["copied_bytes"]) == (0, 0)
    assert job.placed(job.next_checkpoint) == before
    assert all("/maintenance/" not in path for path in job.objects())


# --------------------------------------------------------------------------- open files


def test_a_copy_is_never_open(shared_metastore_url: str, tmp_storage: str) -> None:
    job = WastefulJob(shared_metastore_url, tmp_storage).create(open_file_bytes=3000)
    job.materialize(0, [(0, 1), (1, 2), (2, 3), (3, 4)])
    job.go_on()
    job.materialize(0, [(0, 1), (1, 2)])
    job.subsume()
    compact_job(
        job.catalog, job.name, CompactionOptions(start_amplification=1.4, stop_amplification=1.4)
    )
    job.go_on()
    job.materialize(0, [(2, 3)])
    job.subsume()
    [(path, is_held)] = held(job).items()
    assert "/maintenance/" in path
    assert is_held is None


# ------------------------------------------------------------------------- who is faster


def after_each_copy(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Has something happen between the bytes of a copy and its swap."""

    def copy(*given: Any) -> object:
        copied = leased_files.copy_leased_file(*given)
        work()
        return copied

    monkeypatch.setattr("cairn.maintenance.copies.copy_leased_file", copy)


def test_what_the_job_replaces_meanwhile_is_given_up_whole(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.waste()
    after_each_copy(monkeypatch, lambda: job.materialize(0, [(0, 4)]))
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.done is not None
    assert (report.done.outpaced_files, report.done.rewritten_files) == (1, 0)
    [(status, segments)] = job.sql(
        "SELECT status, live_segments FROM cairn.physical_files"
        " WHERE job_id = :job AND path LIKE '%/maintenance/%'"
    )
    assert (status, segments) == ("WRITING", 0)
    assert all("/maintenance/" not in one.path for one in job.placed(job.next_checkpoint))
    job.let_writes_end()
    job.subsume()
    assert job.objects() == job.known()
    assert all("/maintenance/" not in path for path in job.objects()), "the loser's own is gone"


def test_what_a_scrub_finds_damaged_while_it_is_copied_is_not_replaced(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job.waste()
    before = job.placed(job.next_checkpoint)
    after_each_copy(monkeypatch, lambda: job.find_damage(path))
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.done is not None
    assert (report.done.outpaced_files, report.done.rewritten_files) == (1, 0)
    assert job.placed(job.next_checkpoint) == before


def test_who_lost_the_lease_swaps_nothing_in(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.waste()
    after_each_copy(monkeypatch, job.end_leases)
    before = job.retained()
    with pytest.raises(FencedError, match="does not hold maintenance run"):
        compact_job(job.catalog, job.name, OPTIONS)
    assert all("/maintenance/" not in one.path for one in job.placed(job.next_checkpoint))
    assert job.retained() == before


def test_a_plan_is_applied_once(job: WastefulJob) -> None:
    job.waste()
    planned = plan_job(job.catalog, job.name, OPTIONS)
    assert planned.plan_id is not None
    stored = read(job.catalog, planned.plan_id)
    done = apply_compaction(job.catalog, stored)
    before = job.dump()
    assert apply_plan(job.catalog, planned.plan_id) == done
    with pytest.raises(RefusedError, match="is APPLIED"):
        apply_compaction(job.catalog, stored)
    assert job.dump() == before


def test_a_copy_that_fails_is_made_again_by_a_retry(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job.waste()
    live = job.content(job.confirmed)
    planned = plan_job(job.catalog, job.name, OPTIONS)
    assert planned.plan_id is not None
    root = Path(job.storage.removeprefix("file://"))
    (root / path).rename(root / "away")
    monkeypatch.setattr("cairn.maintenance.leased_files._PAUSE_S", 0)
    with pytest.raises(StorageError, match="no such object"):
        apply_compaction(job.catalog, read(job.catalog, planned.plan_id))
    (root / "away").rename(root / path)
    done = apply_compaction(job.catalog, read(job.catalog, planned.plan_id))
    assert done["rewritten_files"] == 1
    job.let_writes_end()
    job.subsume()
    assert job.content(job.confirmed) == live
    assert job.objects() == job.known()


def test_another_storage_than_the_allowed_is_not_written_to(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.waste()
    before = job.dump(), job.objects()
    monkeypatch.setenv("CAIRN_STORAGES", "file:///elsewhere")
    with pytest.raises(RefusedError, match="not below"):
        compact_job(job.catalog, job.name, OPTIONS)
    assert (job.dump(), job.objects()) == before


# ---------------------------------------------------------------------------- draining


def test_a_drain_empties_the_directories_of_an_old_parallelism(job: WastefulJob) -> None:
    for subtask in (0, 1):
        job.materialize(subtask, [(4 * subtask, 4 * subtask + 4)])
    job.go_on()
    job.register(parallelism=4)
    job.go_on(3)
    live = job.content(job.confirmed)
    drain = replace(OPTIONS, drain_parallelism=2)
    report = compact_job(job.catalog, job.name, drain)
    assert report.done is not None
    assert report.done.rewritten_files == 2
    job.subsume()
    job.clean()
    assert job.content(job.confirmed) == live
    assert all("/subtask-0-2/" not in path for path in job.objects())
    left = job.sql(
        "SELECT path FROM cairn.directories WHERE job_id = :job AND parallelism = 2"
        " AND status <> 'DELETED'"
    )
    assert left == []


def test_of_two_that_copy_the_same_files_one_swaps_in_and_the_other_leaves_nothing(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job.waste()
    live = job.content(job.confirmed)
    other = plan_job(job.catalog, job.name, OPTIONS)
    assert other.plan_id is not None
    plans = [other.plan_id]

    def also() -> None:
        if plans:
            apply_plan(job.catalog, plans.pop())

    after_each_copy(monkeypatch, also)
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.done is not None
    assert (report.done.rewritten_files, report.done.outpaced_files) == (0, 1)
    job.let_writes_end()
    job.subsume()
    assert job.content(job.confirmed) == live
    assert path not in job.objects()
    assert job.objects() == job.known()
