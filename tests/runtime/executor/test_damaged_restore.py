"""Restores of checkpoints of which segments are known as damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cairn.errors import CorruptSegmentError, RefusedError, StorageError
from cairn.handles import SegmentHandle
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.heal import heal_job
from cairn.runtime.executor import parent_state
from tests.maintenance.damaged import DamagedJob


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> DamagedJob:
    return DamagedJob(metastore_url, tmp_storage, str(tmp_path / "local"))


@pytest.mark.parametrize("is_healed", [False, True])
def test_a_restore_reads_around_what_is_known_as_damaged(
    job: DamagedJob, *, is_healed: bool
) -> None:
    """Also after a heal: what that has made counts from the next checkpoint on."""
    newest = job.grow()
    job.flip(job.bases(newest)[0])
    job.lose_local_state()
    with pytest.raises(CorruptSegmentError, match="is not what was written"):
        job.run(1)
    job.scrub()
    if is_healed:
        assert heal_job(job.catalog, job.plan.job).healed == 1
    job.run(1)
    heal_job(job.catalog, job.plan.job)
    job.assert_reads_back(job.run(1))


def test_a_restore_at_another_parallelism_reads_around_it_too(job: DamagedJob) -> None:
    newest = job.grow()
    job.damage(*job.bases(newest))
    job.restart(parallelism=3)
    job.run(1)
    assert heal_job(job.catalog, job.plan.job).healed > 0
    job.assert_reads_back(job.run(1))


def lost(job: DamagedJob) -> SegmentHandle:
    """Damages a base of which no other segments have the state, and returns it."""
    job.grow()
    job.run(3)
    cleanup_job(job.catalog, job.plan.job)
    base = job.bases(job.run(1))[0]
    job.damage(base)
    job.lose_local_state()
    return base


def test_a_restore_without_another_source_fails_before_it_reads_all_and_says_what_to_do(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost(job)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("it reads what it cannot use")

    monkeypatch.setattr(parent_state, "read_segments", read)
    with pytest.raises(RefusedError, match=r"a scrub has found segment .* damaged") as refused:
        job.run(1)
    assert f"cairn scrub {job.plan.job} --dry-run" in str(refused.value)


def test_a_store_that_fails_at_what_is_known_as_damaged_is_tried_again(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would end the query, where the next attempt may find it put back."""
    lost(job)

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk says no")

    monkeypatch.setattr(parent_state, "read_bytes", fail)
    with pytest.raises(StorageError, match="the disk says no"):
        job.run(1)


@pytest.mark.parametrize("size_bytes", [None, 1])
def test_what_is_missing_or_short_is_refused_and_not_tried_again(
    job: DamagedJob, size_bytes: int | None
) -> None:
    path = job.object_at(lost(job).path)
    if size_bytes is None:
        path.unlink()
    else:
        os.truncate(path, size_bytes)
    with pytest.raises(RefusedError, match=r"a scrub has found segment .* damaged"):
        job.run(1)


def test_what_was_put_back_since_the_scrub_is_read(job: DamagedJob) -> None:
    job.flip(lost(job))
    job.assert_reads_back(job.run(2))


def test_local_state_that_is_newer_than_the_damage_is_caught_up(job: DamagedJob) -> None:
    """Nothing of what is damaged is read, so it is in the way of nobody."""
    newest = job.grow()
    job.run(3)
    cleanup_job(job.catalog, job.plan.job)
    job.damage(*job.bases(newest))
    job.run(1)
    job.restart(parallelism=2)
    job.run(2)
