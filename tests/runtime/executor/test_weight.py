"""What local state knows of the bytes that a restore would read, and what comes due by it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.catalog.job.segments import segments_at
from cairn.runtime.executor.local_record import Weight
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.schedule import LIGHT_BYTES, TIMES_AS_OFTEN, interval_ms
from cairn.runtime.materialization.write import FULL_FROM_SHARE
from cairn.settings import Settings
from metastore.enums import SegmentKind
from tests.runtime.tasks import EVERYTHING, QUERY, Task, new_run, on_host, remember

SETTINGS = Settings()
sizes = st.integers(0, 1 << 40)


@given(base_bytes=sizes, change_bytes=sizes)
def test_a_subtask_is_due_more_often_while_too_much_is_on_top_of_its_bases(
    base_bytes: int, change_bytes: int
) -> None:
    found_ms = interval_ms(SETTINGS, Weight(base_bytes, change_bytes))
    is_heavy = change_bytes > LIGHT_BYTES and change_bytes > FULL_FROM_SHARE * base_bytes
    times = TIMES_AS_OFTEN if is_heavy else 1
    assert found_ms * times == SETTINGS.materialize_interval_ms


def test_the_shortest_interval_stays_one() -> None:
    shortest = replace(SETTINGS, materialize_interval_ms=1)
    assert interval_ms(shortest, Weight(0, 1 << 40)) == 1


def weight(plan: RunContext) -> Weight:
    with open_local(TaskManager(plan, "one").subtask_directory(0)).read() as reader:
        return reader.weight()


def held(plan: RunContext, checkpoint_id: int) -> Weight:
    handles = plan.catalog.run(
        "reading what a checkpoint holds",
        lambda c: segments_at(c, plan.job_id, checkpoint_id, EVERYTHING),
    )
    bases = [h.size_bytes for h in handles if h.kind is SegmentKind.KEYED_FULL]
    return Weight(sum(bases), sum(h.size_bytes for h in handles) - sum(bases))


def run(plan: RunContext, batch_id: int) -> None:
    Task(plan, "one", batch_id, 0, batch_id, remember(batch_id)).run()


def materialize(plan: RunContext, batch_id: int) -> None:
    """Does here what the materializing process does."""
    order = Order(batch=plan.batch(QUERY, batch_id), subtask=0, now_ms=1, ordered_s=0)
    carry_out(TaskManager(plan, "one"), order)


@pytest.fixture
def plan(metastore_url: str, tmp_storage: str, tmp_path: Path) -> RunContext:
    return new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)


def test_local_state_weighs_what_a_restore_of_its_checkpoint_would_read(plan: RunContext) -> None:
    for batch_id in range(4):
        run(plan, batch_id)
        assert weight(plan) == held(plan, batch_id)
    materialize(plan, 3)  # as of checkpoint 3, and part of those from 5 on
    run(plan, 4)
    run(plan, 5)
    assert weight(plan) == held(plan, 5)
    assert weight(plan).base_bytes > 0
    elsewhere = on_host(plan, plan.settings.local_dir + os.sep + "new")
    run(elsewhere, 6)
    assert weight(elsewhere) == held(plan, 6)


def test_a_materialization_that_finds_nothing_to_do_leaves_no_reason_to_do_it_again(
    plan: RunContext,
) -> None:
    run(plan, 0)
    run(plan, 1)
    materialize(plan, 1)
    local = open_local(TaskManager(plan, "one").subtask_directory(0))
    made = weight(plan)
    with local.read() as reader:
        position = reader.position()
    assert position is not None
    with local.write() as writer:  # as after a process that was killed before it recorded this
        writer.move_to(position, Weight(made.base_bytes, 10 * LIGHT_BYTES))
    materialize(plan, 1)
    assert weight(plan) == Weight(made.base_bytes, 0)
