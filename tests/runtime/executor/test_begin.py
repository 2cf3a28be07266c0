"""What the tasks of one executor read when a batch begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out
from cairn.runtime.materialization.order import Order
from tests.runtime.tasks import QUERY, Task, new_run, remember

SUBTASKS = 4


def test_a_task_gets_the_acks_of_its_subtasks_and_one_that_has_moved_here_finds_its_own(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path), parallelism=SUBTASKS)
    for subtask in range(SUBTASKS):
        executor = "one" if subtask < 2 else "two"
        Task(plan, executor, 0, subtask, 1, remember(0)).run()
    begun: list[str] = []

    def note(_connection: Connection) -> None:
        begun.append("begin")

    event.listen(Engine, "begin", note)
    manager, batch = TaskManager(plan, "one"), plan.batch(QUERY, 1)

    def acks(*subtasks: int) -> set[int]:
        start = manager.begin(batch, subtasks)
        assert start.parent is not None
        return set(start.parent.acks)

    try:
        assert acks(0) == {0}
        first = len(begun)
        assert acks(0) == {0}
        assert len(begun) == first, "the answer was kept"
        assert acks(3) == {0, 3}, "a subtask that another executor had before"
        assert acks(0, 3) == {0, 3}
        assert len(begun) == first + 1
    finally:
        event.remove(Engine, "begin", note)


def test_a_restore_and_a_materialization_read_the_segments_of_one_instant(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path), parallelism=1)
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        for batch in range(2):
            Task(plan, "one", batch, 0, batch + 1, remember(batch)).run()
        order = Order(batch=plan.batch(QUERY, 1), subtask=0, now_ms=10_000_000, ordered_s=0)
        carry_out(TaskManager(plan, "one"), order)
        elsewhere = replace(plan.settings, local_dir=str(tmp_path / "new"))
        Task(replace(plan, settings=elsewhere), "two", 2, 0, 3, remember(2)).run()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    reading = "SELECT cairn.placed_segments.segment_id, cairn.placed_segments.kind"
    before = [statements[i - 1] for i, one in enumerate(statements) if one.startswith(reading)]
    assert len(before) == 2
    assert {one.partition(" ISOLATION")[0] for one in before} == {"SET TRANSACTION"}
