"""The files that are worth rewriting, as SQL ranks them, and what holds the others."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.maintenance.wasteful_files import (
    WastefulFile,
    files_of_parallelism,
    wasteful_files,
)
from cairn.catalog.savepoints.pins import pin_checkpoint, remove_pins
from cairn.errors import RefusedError
from metastore.enums import HeldBy, PinKind
from tests.maintenance.wasteful_job import WastefulJob


@pytest.fixture
def job(shared_metastore_url: str, tmp_storage: str) -> WastefulJob:
    return WastefulJob(shared_metastore_url, tmp_storage).create()


def found(job: WastefulJob, least_ratio: float = 1.0) -> list[WastefulFile]:
    return list(wasteful_files(job.catalog, job.job_id, least_ratio))


def held(job: WastefulJob) -> dict[str, HeldBy | None]:
    return {one.path: one.held_by for one in found(job)}


def test_a_file_with_dead_bytes_beside_live_ones_is_found_with_what_a_rewrite_frees(
    job: WastefulJob,
) -> None:
    job.materialize(1, [(4, 8)])
    path = job.waste()
    [file] = found(job)
    assert (file.path, file.size_bytes, file.live_bytes) == (path, 4000, 1000)
    assert (file.movable_segments, file.movable_bytes, file.freed_bytes) == (1, 1000, 3000)
    assert file.amplification == 4
    assert found(job, 3.9) == [file]
    assert found(job, 4) == []


def test_dead_bytes_are_counted_where_a_file_stays_and_cannot_be_set(job: WastefulJob) -> None:
    path = job.waste()
    assert job.dead_bytes(path) == 3000
    with pytest.raises(RefusedError, match="follow the segments"):
        job.sql("UPDATE cairn.physical_files SET dead_bytes = 0 WHERE path = :path", path=path)
    job.materialize(0, [(3, 4)])
    job.subsume()
    assert job.dead_bytes(path) == 3000, "one that dies whole is not in the index any more"


def test_files_are_read_in_pages_the_worst_first_and_none_is_lost(
    job: WastefulJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for groups in ([(0, 1), (1, 2), (2, 4)], [(4, 5), (5, 6), (6, 7), (7, 8)]):
        job.materialize(groups[0][0] // 4, groups)
    job.go_on()
    job.materialize(0, [(0, 2)])
    job.materialize(1, [(4, 7)])
    job.subsume()
    monkeypatch.setattr("cairn.catalog.maintenance.wasteful_files.PAGE_FILES", 1)
    assert [one.freed_bytes for one in found(job)] == [3000, 2000]


def test_what_a_pinned_checkpoint_needs_is_held_until_the_pin_is_removed(
    job: WastefulJob,
) -> None:
    path = job.waste()
    pinned, pin_id = job.confirmed, uuid4()
    job.run(
        lambda c: pin_checkpoint(c, job.name, pinned, pin_id=pin_id, kind=PinKind.PIN, name=None)
    )
    assert held(job) == {path: HeldBy.PIN}
    [file] = found(job)
    assert file.freed_bytes == 0
    job.run(lambda c: remove_pins(c, job.name, [pin_id]))
    assert held(job) == {path: None}


def test_a_file_in_which_a_scrub_found_damage_is_not_copied(job: WastefulJob) -> None:
    path = job.waste()
    job.find_damage(path)
    assert held(job) == {path: HeldBy.DAMAGED}


def test_what_dies_with_retained_checkpoints_need_not_be_rewritten(job: WastefulJob) -> None:
    path = job.waste()
    job.materialize(0, [(3, 4)])
    assert held(job) == {path: HeldBy.RETAINED}
    job.subsume()
    assert path not in job.objects()


def test_a_file_with_changelog_that_is_needed_is_left_to_the_fold(job: WastefulJob) -> None:
    path = job.waste()
    job.adopt(path, "changelog")
    [file] = found(job)
    assert (file.held_by, file.changelog_bytes, file.freed_bytes) == (HeldBy.CHANGELOG, 10, 0)


def test_changelog_of_group_commits_holds_a_file_until_bases_cover_it(job: WastefulJob) -> None:
    batch = job.ref(job.epoch, job.batches)
    checkpoint_id = job.begin(batch).checkpoint_id
    acks, file = job.group(batch, checkpoint_id, [0])
    job.commit(batch, checkpoint_id, acks, file)
    # As a file that was continued: what was in it before has died.
    job.run(lambda c: _with_dead_bytes(c, file.file_id))
    assert list(held(job).values()) == [HeldBy.CHANGELOG]
    job.ack(batch, checkpoint_id, 1)
    job.batches += 1
    job.go_on()
    job.materialize(0, [(0, 8)])
    assert list(held(job).values()) == [HeldBy.RETAINED]


def _with_dead_bytes(connection: Connection, file_id: str) -> None:
    connection.execute(text("SET LOCAL session_replication_role = replica"))
    connection.execute(
        text(
            "UPDATE cairn.physical_files SET size_bytes = 1000, dead_bytes = 900"
            " WHERE file_id = :file_id"
        ),
        {"file_id": UUID(file_id)},
    )


def test_a_file_that_its_run_may_append_to_is_open_until_it_is_full_or_the_run_is_over(
    shared_metastore_url: str, tmp_storage: str
) -> None:
    job = WastefulJob(shared_metastore_url, tmp_storage).create(open_file_bytes=4001)
    path = job.waste()
    assert held(job) == {path: HeldBy.OPEN}
    job.sql("UPDATE cairn.runs SET open_file_bytes = 4000 WHERE job_id = :job")
    assert held(job) == {path: None}, "it is full"
    job.sql("UPDATE cairn.runs SET open_file_bytes = 4001 WHERE job_id = :job")
    job.sql("UPDATE cairn.runs SET seen_at = now() - interval '2 hours' WHERE job_id = :job")
    assert held(job) == {path: None}, "its run is over"
    job.sql("UPDATE cairn.runs SET seen_at = now() WHERE job_id = :job")
    job.register(open_file_bytes=4001)
    assert held(job) == {path: HeldBy.OPEN}, "a plan that is only built changes nothing"
    job.begin(job.ref(job.epoch, job.batches))
    assert held(job) == {path: None}, "a newer run continues no file of an older one"


def test_the_files_of_a_parallelism_are_those_in_its_directories(job: WastefulJob) -> None:
    for subtask in (0, 1):
        job.materialize(subtask, [(4 * subtask, 4 * subtask + 4)])
    job.go_on()
    job.register(parallelism=4)
    job.go_on()
    job.materialize(3, [(6, 8)])
    of_old = [one.path for one in files_of_parallelism(job.catalog, job.job_id, 2)]
    assert {path.split("/")[2] for path in of_old} == {"subtask-0-2", "subtask-1-2"}
    [of_new] = files_of_parallelism(job.catalog, job.job_id, 4)
    assert "/subtask-3-4/" in of_new.path
    assert list(files_of_parallelism(job.catalog, job.job_id, 24)) == []
