"""What the tasks of one executor read when a batch begins."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, event

from cairn.runtime.executor.task_manager import TaskManager
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
