"""Damaged bases that are made again from older segments, beside the streams that go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog.maintenance import heals
from cairn.catalog.maintenance.folds import Share
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import take_lease
from cairn.catalog.savepoints.pins import pin_checkpoint
from cairn.errors import CairnError, CorruptSegmentError, FencedError, RefusedError, StorageError
from cairn.handles import SegmentHandle
from cairn.maintenance import fold as folding
from cairn.maintenance import heal as healing
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.heal import heal_job
from cairn.maintenance.materialization import open_owned
from cairn.maintenance.verify import verification_of
from cairn.storage import ObjectStore
from metastore.enums import MaintenanceAction, PinKind, SegmentKind
from tests.maintenance.damaged import DamagedJob
from tests.maintenance.synthetic import dump
from tests.maintenance.test_folding import before
from tests.runtime.tasks import read_back

ROWS = ("placed_segments", "physical_files", "group_commits")


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> DamagedJob:
    return DamagedJob(metastore_url, tmp_storage, str(tmp_path / "local"))


def test_a_damaged_base_is_made_again_and_checkpoints_to_come_read_bit_for_bit(
    job: DamagedJob,
) -> None:
    job.grow()
    # With changes since its source that no later batch overwrites.
    newest = job.run(2)
    first, _ = job.bases(newest)
    job.damage(first)
    with pytest.raises(CorruptSegmentError):
        read_back(job.plan, newest)
    report = heal_job(job.catalog, job.plan.job)
    assert (report.damaged, report.shares, report.healed, report.lost) == (1, 1, 1, ())
    newest = job.run(1)
    assert first.segment_id not in {one.segment_id for one in job.handles(newest)}
    job.assert_reads_back(newest)


def test_checkpoints_that_there_are_stay_damaged_until_they_are_subsumed(job: DamagedJob) -> None:
    newest = job.grow()
    bases = job.bases(newest)
    job.damage(*bases)
    was = job.damaged()
    assert all(newest in checkpoints and by_next for _, checkpoints, by_next in was)
    heal_job(job.catalog, job.plan.job)
    assert job.damaged() == [(one, checkpoints, False) for one, checkpoints, _ in was]
    whole = job.run(3)
    cleanup_job(job.catalog, job.plan.job)
    assert job.damaged() == []
    job.assert_reads_back(whole)
    assert list(verification_of(job.catalog, job.plan.job).compare()) == []
    assert not job.object_at(bases[0].path).exists()


def test_a_missing_object_of_several_subtasks_is_made_again(job: DamagedJob) -> None:
    newest = job.grow()
    [path] = {one.path for one in job.bases(newest)}
    job.object_at(path).unlink()
    assert job.scrub() == 2
    assert heal_job(job.catalog, job.plan.job).healed == 2
    job.assert_reads_back(job.run(1))


def test_a_damaged_increment_is_made_again_with_the_base_below(job: DamagedJob) -> None:
    job.run(3)
    job.fold()
    job.run(2)
    job.run(1, materializes=True)
    newest = job.run(1)
    increment = next(one for one in job.bases(newest) if one.kind is SegmentKind.KEYED_INCREMENT)
    job.damage(increment)
    assert heal_job(job.catalog, job.plan.job).healed == 1
    newest = job.run(1)
    assert increment.segment_id not in {one.segment_id for one in job.handles(newest)}
    job.assert_reads_back(newest)


def test_a_base_that_only_checkpoints_to_come_need_is_made_again(job: DamagedJob) -> None:
    """It was installed a moment ago: the newest confirmed checkpoint is whole."""
    job.run(3)
    newest = job.run(1, materializes=True)
    assert job.bases(newest) == []
    path = job.scalar(
        "SELECT f.path FROM cairn.placed_segments JOIN cairn.physical_files AS f"
        " USING (file_id) WHERE kind = 'keyed_full' LIMIT 1"
    )
    job.object_at(path).unlink()
    assert job.scrub() > 0
    assert heal_job(job.catalog, job.plan.job).lost == ()
    job.assert_reads_back(job.run(1))


def test_after_a_change_of_the_parallelism_a_damaged_base_is_made_again(job: DamagedJob) -> None:
    job.grow()
    job.restart(parallelism=3)
    newest = job.run(2)
    job.damage(*job.bases(newest))
    assert heal_job(job.catalog, job.plan.job).healed == 2
    job.assert_reads_back(job.run(1))


def test_a_pinned_checkpoint_is_a_source_long_after_the_others_were_subsumed(
    job: DamagedJob,
) -> None:
    newest = job.grow()
    pinned = job.bases(newest)[0].first_checkpoint - 1
    job.catalog.run(
        "pinning",
        lambda c: pin_checkpoint(
            c, job.plan.job, pinned, pin_id=uuid4(), kind=PinKind.PIN, name=None
        ),
    )
    for _ in range(3):
        newest = job.run(3)
        cleanup_job(job.catalog, job.plan.job)
    job.damage(*job.bases(newest))
    assert heal_job(job.catalog, job.plan.job).healed == 2
    job.assert_reads_back(job.run(1))
    job.lose_local_state()
    job.assert_reads_back(job.run(2))


# ------------------------------------------------------------------------- what cannot be


def test_without_another_source_it_refuses_and_says_what_is_whole_and_what_to_do(
    job: DamagedJob,
) -> None:
    newest = job.grow()
    job.run(3)
    cleanup_job(job.catalog, job.plan.job)
    newest = job.run(1)
    first, _ = job.bases(newest)
    job.damage(first)
    was = dump(job.plan.catalog.url)
    with pytest.raises(RefusedError, match="no retained checkpoint has their state") as refused:
        plan_action(job.catalog, MaintenanceAction.HEAL, job.plan.job)
    assert first.path in str(refused.value)
    assert "No confirmed checkpoint is whole" in str(refused.value)
    report = heal_job(job.catalog, job.plan.job)
    assert (report.damaged, report.shares, report.healed, len(report.lost)) == (1, 0, 0, 1)
    assert f"cairn scrub {job.plan.job}" in report.way_out
    assert dump(job.plan.catalog.url) == was


def test_a_whole_checkpoint_is_named_with_the_command_that_keeps_it(job: DamagedJob) -> None:
    newest = job.grow()
    # Of changelog since the bases, which nothing else has.
    last = job.handles(newest)[-1]
    assert last.kind is SegmentKind.CHANGELOG
    job.run(1)
    job.damage(last)
    report = heal_job(job.catalog, job.plan.job)
    assert (report.healed, len(report.lost)) == (0, 1)
    whole = job.scalar(
        "SELECT max(checkpoint_id) FROM cairn.checkpoints WHERE checkpoint_id < :n",
        n=last.first_checkpoint,
    )
    assert f"cairn pin {job.plan.job} {whole}" in report.way_out


def test_another_source_is_taken_where_one_turns_out_to_be_damaged(job: DamagedJob) -> None:
    newest = job.grow()
    base, older = job.bases(newest)[0], older_base(job, newest)
    job.damage(base)
    job.flip(older)
    # The first checkpoints have its state by changelog alone, with that of the later ones.
    assert heal_job(job.catalog, job.plan.job).healed == 1
    assert {one for one, _, _ in job.damaged()} == {base.segment_id, older.segment_id}
    job.assert_reads_back(job.run(1))


def test_a_source_that_turns_out_to_be_damaged_is_recorded_and_never_used(
    job: DamagedJob,
) -> None:
    newest = job.grow()
    cleanup_job(job.catalog, job.plan.job)
    base, older = job.bases(newest)[0], older_base(job, newest)
    job.damage(base)
    job.flip(older)
    was = job.tables("placed_segments")
    report = heal_job(job.catalog, job.plan.job)
    assert (report.shares, report.healed, report.unchanged, len(report.lost)) == (1, 0, 1, 1)
    assert {one for one, _, _ in job.damaged()} == {base.segment_id, older.segment_id}
    assert job.tables("placed_segments") == was


def older_base(job: DamagedJob, newest: int) -> SegmentHandle:
    """Returns the base that the newest checkpoint's first one has replaced."""
    base = job.bases(newest)[0]
    return next(
        one for one in job.bases(base.first_checkpoint - 1) if one.key_groups == base.key_groups
    )


@pytest.mark.parametrize("way", [(), (1,)])
def test_a_way_that_does_not_make_up_for_the_damage_is_not_taken(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch, way: tuple[int, ...]
) -> None:
    """Whatever has named these checkpoints: what is read is compared with what is left out."""
    newest = job.grow()
    job.damage(job.bases(newest)[0])
    was = job.tables("placed_segments")
    monkeypatch.setattr(heals, "way_around", lambda *_: way)
    assert heal_job(job.catalog, job.plan.job).healed == 0
    assert job.tables("placed_segments") == was


def test_a_store_that_fails_is_an_error_and_no_damage(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = job.grow()
    job.damage(job.bases(newest)[0])

    class Failing:
        def __init__(self, store: ObjectStore) -> None:
            self.url, self.list = store.url, store.list

        def get(self, *_: object, **__: object) -> bytes:
            raise StorageError("the disk says no")

    monkeypatch.setattr(healing, "open_owned", lambda *given: Failing(open_owned(*given)))
    with pytest.raises(StorageError, match="the disk says no"):
        heal_job(job.catalog, job.plan.job)
    assert len(job.damaged()) == 1
    monkeypatch.undo()
    assert heal_job(job.catalog, job.plan.job).healed == 1


@pytest.mark.parametrize("kind", [StorageError, RefusedError, CorruptSegmentError])
def test_a_share_that_fails_keeps_no_other_one_from_being_healed(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch, kind: type[CairnError]
) -> None:
    job.damage(*job.bases(job.grow()))
    fold, shares = folding.fold_inputs, list[Share]()

    def fail_at_the_first(*given: Any) -> Any:
        [one] = given[-1]
        shares.append(one.share)
        if one.share == shares[0]:
            raise kind("nobody can make this one")
        return fold(*given)

    monkeypatch.setattr(healing, "fold_inputs", fail_at_the_first)
    with pytest.raises(kind, match="nobody can make this one"):
        heal_job(job.catalog, job.plan.job)
    assert sorted(by_next for _, _, by_next in job.damaged()) == [False, True]
    monkeypatch.undo()
    assert heal_job(job.catalog, job.plan.job).healed == 1
    job.assert_reads_back(job.run(1))


def test_who_has_lost_the_lease_heals_no_other_share(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.damage(*job.bases(job.grow()))
    tried: list[object] = []

    def fence(*given: object) -> None:
        tried.append(given)
        raise FencedError("another process has it")

    monkeypatch.setattr(healing, "fold_inputs", fence)
    with pytest.raises(FencedError):
        heal_job(job.catalog, job.plan.job)
    assert len(tried) == 1


def test_a_write_that_fails_reads_no_source_again(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.damage(job.bases(job.grow())[0])

    def fail(*_: object) -> None:
        raise StorageError("the disk is full", file="new")

    def read(*_: object) -> None:
        raise AssertionError("it reads what is whole")

    monkeypatch.setattr(folding, "write_leased_file", fail)
    monkeypatch.setattr(healing, "scrub_files", read)
    with pytest.raises(StorageError, match="the disk is full"):
        heal_job(job.catalog, job.plan.job)


# ------------------------------------------------------------------------- beside others


def test_a_share_that_the_stream_has_materialized_meanwhile_is_refused(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = job.grow()
    job.damage(job.bases(newest)[0])
    before(monkeypatch, folding, "install_folded", lambda: job.run(4, materializes=True))
    report = heal_job(job.catalog, job.plan.job)
    assert (report.healed, report.refused) == (0, 1)
    # The stream's is an increment on top of what is damaged.
    assert heal_job(job.catalog, job.plan.job).healed == 1
    job.assert_reads_back(job.run(1))


def test_batches_that_are_confirmed_meanwhile_keep_their_changes(
    job: DamagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = job.grow()
    job.damage(job.bases(newest)[0])

    def go_on() -> None:
        job.run(4)
        cleanup_job(job.catalog, job.plan.job)

    before(monkeypatch, folding, "install_folded", go_on)
    assert heal_job(job.catalog, job.plan.job).healed == 1
    job.assert_reads_back(job.run(2))


def test_what_was_put_back_since_the_plan_is_left_as_it_is(job: DamagedJob) -> None:
    newest = job.grow()
    base = job.bases(newest)[0]
    job.damage(base)
    plan = plan_action(job.catalog, MaintenanceAction.HEAL, job.plan.job)
    assert plan is not None
    job.flip(base)
    assert job.scrub() == 0
    was = job.tables(*ROWS)
    assert apply_plan(job.catalog, plan.run_id)["unchanged"] == 1
    assert job.tables(*ROWS) == was


def test_a_plan_is_applied_once_and_by_one_process(job: DamagedJob) -> None:
    newest = job.grow()
    job.damage(*job.bases(newest))
    one = plan_action(job.catalog, MaintenanceAction.HEAL, job.plan.job)
    two = plan_action(job.catalog, MaintenanceAction.HEAL, job.plan.job)
    assert one is not None
    assert two is not None
    late = LeaseRef(job.plan.job_id, one.run_id, uuid4())
    job.catalog.run("", lambda c: take_lease(c, one.run_id, late.holder))
    with pytest.raises(FencedError, match="another process applies"):
        apply_plan(job.catalog, one.run_id)
    job.sql("UPDATE cairn.maintenance_runs SET leased_until = now() WHERE holder IS NOT NULL")
    first = apply_plan(job.catalog, one.run_id)
    assert first["healed"] == 2
    assert apply_plan(job.catalog, one.run_id) == first
    second = apply_plan(job.catalog, two.run_id)
    assert (second["healed"], second["unchanged"]) == (0, 2)
    assert plan_action(job.catalog, MaintenanceAction.HEAL, job.plan.job) is None
    job.assert_reads_back(job.run(1))


def test_a_dry_run_changes_nothing(job: DamagedJob) -> None:
    newest = job.grow()
    job.damage(*job.bases(newest))
    was = dump(job.catalog.url)
    report = heal_job(job.catalog, job.plan.job, dry_run=True)
    assert (report.damaged, report.shares, report.healed) == (2, 2, 0)
    assert dump(job.catalog.url) == was


def test_of_a_whole_job_nothing_is_healed(job: DamagedJob) -> None:
    job.grow()
    report = heal_job(job.catalog, job.plan.job)
    assert (report.damaged, report.shares, report.lost) == (0, 0, ())


def restarted(job: DamagedJob, parallelism: int) -> None:
    job.restart(parallelism)
    job.run(1)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_damaged_is_healed_right_or_said_to_be_lost(job: DamagedJob, seed: int) -> None:
    chance = random.Random(seed)
    steps: list[Callable[[], Any]] = [
        lambda: job.run(1),
        lambda: job.run(2),
        lambda: job.run(1, materializes=True),
        lambda: (job.run(2), job.fold()),
        lambda: restarted(job, chance.choice([2, 3])),
        lambda: cleanup_job(job.catalog, job.plan.job),
    ]
    job.run(2)
    for _ in range(8):
        chance.choice(steps)()
    newest = job.run(2)
    keyed = job.bases(newest) or job.handles(newest)
    job.damage(*chance.sample(keyed, min(len(keyed), chance.choice([1, 1, 2]))))
    report = heal_job(job.catalog, job.plan.job)
    newest = job.run(1)
    if not report.lost:
        job.assert_reads_back(newest)
    else:
        with pytest.raises(CorruptSegmentError):
            read_back(job.plan, newest)
