"""The planner against a small model of a job: what it lets go, and what it never may."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cairn.catalog.cleanup.snapshot import (
    RETAINED,
    CleanupSnapshot,
    JobFacts,
    ReleasedCommit,
    ReleasedSegment,
    RetainedCheckpoint,
    SealedFile,
    UnneededFile,
)
from cairn.errors import RefusedError
from cairn.maintenance.plans import digest_of
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from metastore.enums import CheckpointStatus, FileStatus

SIZE_BYTES = 100


@dataclass
class ModelSegment:
    segment_id: UUID
    file_id: UUID
    first: int
    released: int | None
    live: bool = True

    def serves(self, checkpoint_id: int) -> bool:
        return self.first <= checkpoint_id and (
            self.released is None or checkpoint_id < self.released
        )


@dataclass
class ModelFile:
    file_id: UUID
    status: FileStatus
    may_be_sealed: bool = True

    @property
    def path(self) -> str:
        return f"job-1/{self.file_id}.seg"

    def unneeded(self, size_bytes: int | None) -> UnneededFile:
        return UnneededFile(
            file_id=self.file_id, path=self.path, size_bytes=size_bytes, reason="as the view says"
        )


@dataclass
class ModelJob:
    """All rows of a job, in no clever order: the planner's inputs are derived from them."""

    num_retained: int
    current_epoch: int
    checkpoints: dict[int, CheckpointStatus]
    segments: list[ModelSegment]
    files: dict[UUID, ModelFile] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)

    def snapshot(self) -> CleanupSnapshot:
        live = Counter(segment.file_id for segment in self.segments if segment.live)
        sealed = [f for f in self.files.values() if f.status is FileStatus.SEALED]
        writing = [f for f in self.files.values() if f.status is FileStatus.WRITING]
        return CleanupSnapshot(
            job=JobFacts(
                job_id="job-1",
                name="job",
                storage="/storage",
                num_retained=self.num_retained,
                file_retention_ms=0,
                current_epoch=self.current_epoch,
            ),
            checkpoints=tuple(
                RetainedCheckpoint(i, s, is_kept=i in self.pinned)
                for i, s in self.checkpoints.items()
                if s in RETAINED
            ),
            segments=tuple(
                ReleasedSegment(
                    segment_id=s.segment_id,
                    file_id=s.file_id,
                    first_checkpoint=s.first,
                    released_checkpoint=s.released,
                )
                for s in self.segments
                if s.live and s.released is not None
            ),
            commits=(),
            sealed_files=tuple(
                SealedFile(
                    file_id=f.file_id,
                    path=f.path,
                    size_bytes=SIZE_BYTES,
                    live_segments=live[f.file_id],
                )
                for f in sealed
                if live[f.file_id]
            ),
            unneeded_files=(
                *(f.unneeded(SIZE_BYTES) for f in sealed if not live[f.file_id]),
                *(f.unneeded(None) for f in writing if not f.may_be_sealed),
            ),
        )

    def apply(self, plan: SubsumptionPlan) -> None:
        for checkpoint_id in plan.subsumed_checkpoints:
            assert self.checkpoints[checkpoint_id] is CheckpointStatus.CONFIRMED
            self.checkpoints[checkpoint_id] = CheckpointStatus.SUBSUMED
        for segment in self.segments:
            segment.live = segment.live and segment.segment_id not in plan.dead_segments
        for file in plan.condemned_files:
            self.files[file.file_id].status = FileStatus.CONDEMNED


@st.composite
def jobs(draw: st.DrawFn) -> ModelJob:
    last = draw(st.integers(0, 14))
    checkpoints = {i: draw(st.sampled_from(CheckpointStatus)) for i in range(1, last + 1)}
    epoch = draw(st.integers(1, 4))
    files = {
        UUID(int=n): ModelFile(
            UUID(int=n),
            draw(st.sampled_from([FileStatus.SEALED, FileStatus.SEALED, FileStatus.WRITING])),
            draw(st.booleans()),
        )
        for n in range(draw(st.integers(0, 6)))
    }
    sealed = sorted(f.file_id for f in files.values() if f.status is FileStatus.SEALED)
    segments = []
    for n in range(draw(st.integers(0, 12)) if sealed else 0):
        first = draw(st.integers(1, last + 1))
        released = draw(st.none() | st.integers(first, last + 2))
        segments.append(
            ModelSegment(
                UUID(int=100 + n),
                draw(st.sampled_from(sealed)),
                first,
                released,
                live=released is None or draw(st.booleans()),
            )
        )
    confirmed = [i for i, s in checkpoints.items() if s is CheckpointStatus.CONFIRMED]
    pinned = draw(st.sets(st.sampled_from(confirmed))) if confirmed else set()
    return ModelJob(draw(st.integers(2, 5)), epoch, checkpoints, segments, files, pinned)


@given(jobs())
def test_the_newest_confirmed_and_all_unconfirmed_checkpoints_stay(job: ModelJob) -> None:
    job.pinned.clear()
    confirmed = [i for i, s in job.checkpoints.items() if s is CheckpointStatus.CONFIRMED]
    plan = plan_subsumption(job.snapshot())
    assert set(plan.subsumed_checkpoints) == set(sorted(confirmed)[: -job.num_retained])
    unconfirmed = {i for i, s in job.checkpoints.items() if s in RETAINED and i not in confirmed}
    newest = set(sorted(confirmed)[-job.num_retained :])
    assert set(plan.retained_checkpoints) == unconfirmed | newest


@example(ModelJob(2, 1, dict.fromkeys(range(1, 5), CheckpointStatus.CONFIRMED), [], {}, {1}))
@given(jobs())
def test_pinned_checkpoints_stay_besides_those_that_stay_without_pins(job: ModelJob) -> None:
    pinned, job.pinned = job.pinned, set()
    without = set(plan_subsumption(job.snapshot()).retained_checkpoints)
    job.pinned = pinned
    assert set(plan_subsumption(job.snapshot()).retained_checkpoints) == without | pinned


@given(jobs())
def test_no_needed_segment_dies_and_no_file_that_holds_one_is_condemned(job: ModelJob) -> None:
    plan = plan_subsumption(job.snapshot())
    condemned = {file.file_id for file in plan.condemned_files}
    for segment in job.segments:
        needed = segment.live and (
            segment.released is None or any(map(segment.serves, plan.retained_checkpoints))
        )
        if needed:
            assert segment.segment_id not in plan.dead_segments
            assert segment.file_id not in condemned
        elif segment.live:
            assert segment.segment_id in plan.dead_segments


@given(jobs())
def test_what_a_plan_leaves_is_needed_or_in_flight(job: ModelJob) -> None:
    job.apply(plan_subsumption(job.snapshot()))
    live_in = {segment.file_id for segment in job.segments if segment.live}
    for file in job.files.values():
        if file.status is FileStatus.SEALED:
            assert file.file_id in live_in
        if file.status is FileStatus.WRITING:
            assert file.may_be_sealed


@given(jobs())
def test_a_file_that_may_be_sealed_is_not_condemned(job: ModelJob) -> None:
    condemned = {file.file_id for file in plan_subsumption(job.snapshot()).condemned_files}
    for file in job.files.values():
        if file.status is FileStatus.WRITING and file.may_be_sealed:
            assert file.file_id not in condemned


@given(jobs())
def test_a_second_plan_after_the_first_is_empty(job: ModelJob) -> None:
    first = plan_subsumption(job.snapshot())
    job.apply(first)
    second = plan_subsumption(job.snapshot())
    assert second.is_empty
    assert second.freed_bytes == 0
    assert second.retained_checkpoints == first.retained_checkpoints


@given(jobs(), st.randoms(use_true_random=False))
def test_a_plan_is_a_function_of_the_rows_and_not_of_their_order(
    job: ModelJob, rng: random.Random
) -> None:
    snapshot = job.snapshot()
    shuffled = replace(
        snapshot,
        checkpoints=tuple(rng.sample(snapshot.checkpoints, len(snapshot.checkpoints))),
        segments=tuple(rng.sample(snapshot.segments, len(snapshot.segments))),
        sealed_files=tuple(rng.sample(snapshot.sealed_files, len(snapshot.sealed_files))),
        unneeded_files=tuple(rng.sample(snapshot.unneeded_files, len(snapshot.unneeded_files))),
    )
    plan = plan_subsumption(snapshot)
    assert plan_subsumption(shuffled) == plan
    assert digest_of(plan_subsumption(shuffled).to_json()) == digest_of(plan.to_json())


@given(jobs())
def test_the_digest_tells_plans_apart(job: ModelJob) -> None:
    plan = plan_subsumption(job.snapshot())
    assert digest_of(replace(plan, epoch=plan.epoch + 1).to_json()) != digest_of(plan.to_json())


def test_a_file_is_condemned_with_its_last_segments_and_the_reason_says_so() -> None:
    emptied, unneeded, in_flight = (UUID(int=n) for n in range(3))
    job = ModelJob(
        num_retained=2,
        current_epoch=3,
        checkpoints=dict.fromkeys((1, 2, 3), CheckpointStatus.CONFIRMED),
        segments=[ModelSegment(UUID(int=9), emptied, 1, 2)],
        files={
            emptied: ModelFile(emptied, FileStatus.SEALED),
            unneeded: ModelFile(unneeded, FileStatus.WRITING, may_be_sealed=False),
            in_flight: ModelFile(in_flight, FileStatus.WRITING),
        },
    )
    plan = plan_subsumption(job.snapshot())
    assert {file.file_id: file.reason for file in plan.condemned_files} == {
        emptied: "sealed, and no retained checkpoint needs its last live segments (1)",
        unneeded: "as the view says",
    }
    assert plan.freed_bytes == SIZE_BYTES


def test_a_file_without_a_live_segment_is_planned_once() -> None:
    """All attempts in it were replaced, and the group commit that names it dies now."""
    replaced = UUID(int=1)
    found = ModelJob(2, 1, dict.fromkeys((1, 2, 3), CheckpointStatus.CONFIRMED), []).snapshot()
    snapshot = replace(
        found,
        commits=(
            ReleasedCommit(
                commit_id=UUID(int=2),
                file_id=replaced,
                first_checkpoint=1,
                released_checkpoint=2,
                live_segments=0,
            ),
        ),
        sealed_files=(
            SealedFile(file_id=replaced, path="a", size_bytes=SIZE_BYTES, live_segments=0),
        ),
        unneeded_files=(
            UnneededFile(file_id=replaced, path="a", size_bytes=SIZE_BYTES, reason="no segment"),
        ),
    )
    plan = plan_subsumption(snapshot)
    assert [file.file_id for file in plan.condemned_files] == [replaced]
    assert plan.freed_bytes == SIZE_BYTES


def test_a_job_that_retains_one_checkpoint_is_refused() -> None:
    job = ModelJob(1, 1, dict.fromkeys((1, 2, 3), CheckpointStatus.CONFIRMED), [])
    with pytest.raises(RefusedError, match=r"num_retained is 1.*job job"):
        plan_subsumption(job.snapshot())
