"""When a subtask materializes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cairn.catalog.job.batch_start import Clock
from cairn.runtime.materialization.schedule import is_due

INTERVAL_MS = 1000
PARALLELISM = 4


def due(subtask: int, now_ms: int, base_ms: int | None, created_ms: int = 0) -> bool:
    return is_due(
        Clock(now_ms, created_ms, {}),
        base_ms or 0,
        subtask=subtask,
        parallelism=PARALLELISM,
        interval_ms=INTERVAL_MS,
    )


def test_subtasks_of_a_new_job_come_due_one_after_the_other() -> None:
    first_due = [
        next(now for now in range(0, 5000, 10) if due(subtask, now, None, created_ms=10))
        for subtask in range(PARALLELISM)
    ]
    assert first_due == [1000, 250, 500, 750]


@given(
    subtask=st.integers(0, PARALLELISM - 1),
    base_ms=st.integers(0, 10**6),
    age_ms=st.integers(0, 10_000),
)
def test_a_base_is_renewed_once_an_interval_at_most_one_interval_late(
    subtask: int, base_ms: int, age_ms: int
) -> None:
    is_it = due(subtask, base_ms + age_ms, base_ms)
    assert is_it or age_ms < INTERVAL_MS
    if is_it:
        assert not due(subtask, base_ms + age_ms, base_ms + age_ms)


def test_subtasks_made_at_the_same_moment_are_spread_again_by_the_next_round() -> None:
    came_due = {
        subtask: next(now for now in range(5001, 9000) if due(subtask, now, 5001))
        for subtask in range(PARALLELISM)
    }
    assert sorted(came_due.values()) == [5250, 5500, 5750, 6000]
