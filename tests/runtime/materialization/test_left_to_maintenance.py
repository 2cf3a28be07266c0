"""Streams whose changelogs the maintenance folds: when they do it themselves, and giving way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from cairn.catalog.job import materializations
from cairn.catalog.job.batch_start import Clock
from cairn.errors import ReplacedError
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.runtime.executor.local_record import Weight
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.materialization import carry_out, schedule, write
from cairn.runtime.materialization.order import is_any_placed
from cairn.runtime.materialization.progress import Progress, progress_of
from cairn.runtime.materialization.schedule import is_left_too_long
from cairn.settings import Settings
from metastore.enums import MaintenanceAction
from tests.runtime.materialization.stream import LIGHT, Stream, at, carry_out_here
from tests.runtime.tasks import BIG, read_back, remember_big, remembered

BY_MAINTENANCE = {"cairn.changelog.periodic-materialize.by": "maintenance"}
SETTINGS = Settings.from_options(BY_MAINTENANCE)
HOUR_MS = 3_600_000


@pytest.fixture
def stream(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """A query that is materialized in this process, where nothing waits for a core."""
    monkeypatch.setattr(schedule, "start_unless_there", carry_out_here)
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


def fold(stream: Stream) -> None:
    """Folds the job as the platform does."""
    with stream.plan.catalog.begin() as connection:
        connection.execute(text("UPDATE cairn.jobs SET materialize_interval_ms = 1"))
    plan = plan_action(stream.plan.catalog, MaintenanceAction.MATERIALIZATION, stream.plan.job)
    assert plan is not None
    assert apply_plan(stream.plan.catalog, plan.run_id)["folded"] == 1


def test_subtasks_do_it_themselves_one_after_the_other_once_the_platform_is_away() -> None:
    def first_ms(subtask: int) -> int:
        return next(
            ms
            for ms in range(0, 3 * HOUR_MS, 60_000)
            if is_left_too_long(
                Clock(ms, 0, {}), 0, subtask=subtask, parallelism=4, settings=SETTINGS
            )
        )

    found = [first_ms(subtask) for subtask in range(4)]
    assert found == sorted(found)
    assert found[0] == HOUR_MS + 60_000
    assert found[3] <= HOUR_MS + SETTINGS.materialize_interval_ms
    assert not is_left_too_long(
        Clock(3 * HOUR_MS, 0, {}), 2 * HOUR_MS, subtask=0, parallelism=1, settings=SETTINGS
    )


def test_nothing_is_ordered_and_no_process_starts_below_the_bound(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_manager: object) -> None:
        raise AssertionError("a process would start")

    stream.restart(**BY_MAINTENANCE)
    stream.run(2)
    monkeypatch.setattr(schedule, "start_unless_there", start)
    heavy = Weight(0, 1 << 40)
    for weight in (LIGHT, heavy):
        stream.order(Clock(HOUR_MS, 0, {}), weight)
        # A base of another parallelism, in which the subtask's key groups lie.
        stream.order(Clock(10 * HOUR_MS, 0, {0: 10 * HOUR_MS - 1, 5: 0}), weight)
    assert not is_any_placed(stream.manager)
    with pytest.raises(AssertionError, match="would start"):
        stream.order(Clock(HOUR_MS + 1, 0, {}))


def test_a_stream_without_the_platform_does_it_and_a_fold_follows(stream: Stream) -> None:
    stream.restart(**BY_MAINTENANCE)
    stream.run(1, remember_big)
    stream.run(2)
    stream.materialize(Clock(2 * HOUR_MS, 0, {}))
    stream.run(2)
    assert "keyed_full" in stream.kinds(5)
    fold(stream)
    stream.run(1)
    assert read_back(stream.plan, 6) == remembered(6) | BIG


def test_switched_back_the_stream_goes_on_with_increments_on_folded_bases(stream: Stream) -> None:
    stream.restart(**BY_MAINTENANCE)
    stream.run(1, remember_big)
    stream.run(3)
    fold(stream)
    stream.restart()
    stream.run(2)
    stream.materialize(at(10**6))
    stream.run(1)
    assert stream.kinds(7)[:2] == ["keyed_full", "keyed_increment"]
    assert read_back(stream.plan, 7) == remembered(7) | BIG
    base, increment = stream.segments(7)[:2]
    with open_local(stream.manager.subtask_directory(0), reader="test").read() as reader:
        weight = reader.weight()
    assert weight.base_bytes == base.size_bytes, "of the bases that the maintenance has made"
    assert weight.change_bytes >= increment.size_bytes


def test_a_stream_that_was_overtaken_makes_it_again_and_counts_no_failure(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its increment stands on bases that a fold replaces while it is written."""
    original, folded = write.materialize, list[bool]()

    def overtaken(*args: object, **named: object) -> object:
        if not folded:
            folded.append(True)
            before_install(monkeypatch, lambda: fold(stream))
        return original(*args, **named)  # type: ignore[arg-type]

    stream.run(1, remember_big)
    stream.run(1)
    stream.materialize()
    stream.run(2)
    monkeypatch.setattr(carry_out, "materialize", overtaken)
    stream.materialize(at(10**6))
    assert folded
    assert progress_of(stream.manager, 0) == Progress(done_ms=at(10**6).now_ms)
    stream.run(1)
    assert read_back(stream.plan, 5) == remembered(5) | BIG


def before_install(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    original, left = materializations.install, [act]

    def install(*args: object, **named: object) -> None:
        if left:
            left.pop()()
        original(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(write, "install", install)


def test_one_that_is_always_overtaken_is_left_to_a_later_order(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(*_: object, **__: object) -> None:
        raise ReplacedError("somebody was faster")

    monkeypatch.setattr(carry_out, "materialize", always)
    stream.run(3)
    stream.materialize()
    assert progress_of(stream.manager, 0) == replace(Progress(), done_ms=0)
    assert not is_any_placed(stream.manager)
    monkeypatch.undo()
    monkeypatch.setattr(schedule, "start_unless_there", carry_out_here)
    stream.materialize()
    stream.run(1)
    assert "keyed_full" in stream.kinds(4)
