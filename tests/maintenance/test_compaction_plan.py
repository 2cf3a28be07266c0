"""Which files are rewritten: the planner on files as SQL ranks them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.catalog.maintenance.wasteful_files import CompactedJob, WastefulFile
from cairn.errors import BadInputError
from cairn.maintenance import compaction_plan
from cairn.maintenance.compaction_plan import CompactionOptions, plan_compaction
from metastore.enums import HeldBy, Scope

JOB = CompactedJob(job_id="j-00000000", name="j", parallelism=2, is_running=True, is_dropped=False)
OPTIONS = CompactionOptions(start_amplification=2, stop_amplification=1.5, input_bytes=1000)


def file(
    number: int,
    size_bytes: int = 100,
    live_bytes: int = 20,
    held_by: HeldBy | None = None,
    directory: str = "subtask-0-4",
) -> WastefulFile:
    return WastefulFile(
        file_id=UUID(int=number),
        path=f"j-00000000/shared/{directory}/{UUID(int=number)}.seg",
        scope=Scope.SHARED,
        size_bytes=size_bytes,
        live_bytes=live_bytes,
        movable_segments=1,
        movable_bytes=live_bytes,
        changelog_bytes=0,
        held_by=held_by,
        freed_bytes=0 if held_by else size_bytes - live_bytes,
    )


def drawn(seen: list[int], *files: WastefulFile) -> Iterator[WastefulFile]:
    for one in files:
        seen.append(one.file_id.int)
        yield one


def test_nothing_starts_below_the_first_threshold_and_then_goes_down_to_the_second() -> None:
    below = file(2, 100, 60)
    assert plan_compaction(JOB, [], [below], OPTIONS).is_empty
    plan = plan_compaction(JOB, [file(1)], [file(1), below], OPTIONS)
    assert [one.file_id.int for one in plan.files] == [1, 2]
    assert (plan.copied_bytes, plan.freed_bytes) == (80, 120)
    assert not plan.is_capped


def test_the_cap_ends_a_plan_and_no_more_files_are_drawn() -> None:
    seen: list[int] = []
    files = drawn(seen, *(file(n, 1000, 400) for n in range(5)))
    plan = plan_compaction(JOB, files, [file(9)], OPTIONS)
    assert [one.file_id.int for one in plan.files] == [0, 1]
    assert plan.is_capped
    assert seen == [0, 1, 2]


def test_a_file_larger_than_the_cap_is_taken_alone() -> None:
    plan = plan_compaction(JOB, [file(1, 9000, 4000), file(2)], [], OPTIONS)
    assert [one.file_id.int for one in plan.files] == [1]
    assert plan.is_capped


def test_a_plan_has_a_bounded_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_plan, "MOST_SEGMENTS", 3)
    files = [replace(file(n), movable_segments=2) for n in range(3)]
    plan = plan_compaction(JOB, files, [], OPTIONS)
    assert len(plan.files) == 1
    assert plan.is_capped


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 300), st.none() | st.sampled_from(HeldBy)),
        max_size=30,
    ),
    st.integers(1, 500),
)
def test_what_is_held_is_counted_and_never_taken_and_the_cap_holds(
    drawn_files: list[tuple[int, int, HeldBy | None]], input_bytes: int
) -> None:
    files = [file(n, live + dead, live, held) for n, (live, dead, held) in enumerate(drawn_files)]
    plan = plan_compaction(JOB, files, files, replace(OPTIONS, input_bytes=input_bytes))
    assert all(one.held_by is None for one in plan.files)
    assert plan.copied_bytes <= input_bytes or len(plan.files) == 1
    if not plan.is_capped:
        assert len(plan.files) + sum(held.files for held in plan.held.values()) == len(files)
    assert len({one.path for one in plan.files}) == len(plan.files)
    # The same in JSON, as it is stored.
    assert [one["path"] for one in plan.to_json()["files"]] == [one.path for one in plan.files]


def test_a_job_that_does_not_run_is_left_alone_and_the_plan_says_why() -> None:
    plan = plan_compaction(replace(JOB, is_running=False), [file(1)], [], OPTIONS)
    assert plan.is_empty
    assert "no run of the job is alive" in str(plan.pointless_because)
    assert (plan.copied_bytes, plan.freed_bytes) == (0, 0)


def test_a_dropped_job_is_left_to_the_cleanup() -> None:
    plan = plan_compaction(replace(JOB, is_dropped=True), [file(1)], [], OPTIONS)
    assert plan.is_empty
    assert "dropped" in str(plan.pointless_because)


def test_where_pins_hold_everything_the_plan_says_so() -> None:
    plan = plan_compaction(JOB, [file(1, held_by=HeldBy.PIN)], [], OPTIONS)
    assert plan.is_empty
    assert "pinned checkpoints need all of the 1 files" in str(plan.pointless_because)
    assert plan.held[HeldBy.PIN].dead_bytes == 80


DRAIN = replace(OPTIONS, drain_parallelism=4)


def test_a_drain_takes_whole_files_too() -> None:
    plan = plan_compaction(JOB, [file(1, 100, 100), file(2)], [], DRAIN)
    assert [one.file_id.int for one in plan.files] == [1, 2]


def test_a_drain_leaves_directories_that_a_pin_keeps_and_stops_if_it_keeps_all() -> None:
    pinned = file(1, held_by=HeldBy.PIN)
    plan = plan_compaction(JOB, [pinned, file(2), file(3, directory="subtask-1-4")], [], DRAIN)
    assert [one.file_id.int for one in plan.files] == [3]
    assert plan.held[HeldBy.PIN].files == 2
    stopped = plan_compaction(JOB, [pinned, file(2)], [], DRAIN)
    assert stopped.is_empty
    assert "pinned checkpoints need all" in str(stopped.pointless_because)


def test_the_parallelism_that_the_job_has_is_not_drained() -> None:
    plan = plan_compaction(JOB, [file(1)], [], replace(DRAIN, drain_parallelism=2))
    assert plan.is_empty
    assert "parallelism of 2" in str(plan.pointless_because)


@pytest.mark.parametrize(
    "changes",
    [
        {"start_amplification": 1.2},
        {"stop_amplification": 0.9},
        {"input_bytes": 0},
    ],
)
def test_thresholds_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match="compaction is to"):
        replace(OPTIONS, **changes)  # type: ignore[arg-type]
