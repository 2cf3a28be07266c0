"""A query whose subtasks have operator lists, on real files and without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from cairn.catalog.job.segments import lists_at
from cairn.runtime.executor.run_context import RunContext
from cairn.segments.operator_segment import read_lists
from cairn.state.handle import StateDeclaration
from cairn.state.operator_lists import Lists
from cairn.storage import open_store
from tests.runtime.file_rows import rows
from tests.runtime.merging_stream import SUBTASKS, Stream
from tests.runtime.tasks import ChangeLists, Task, new_run, plan_of, remember, run_together

N = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]}
SPLIT = StateDeclaration(name="split", kind="operator_list", value_schema=N)
UNION = StateDeclaration(name="union", kind="operator_union", value_schema=N)
SPLIT_ID, UNION_ID = 1, 2
BOTH = (SPLIT, UNION)

Subtasks = dict[int, Lists]


def stored_lists(plan: RunContext, checkpoint_id: int) -> Subtasks:
    """Returns a checkpoint's operator lists by subtask, from the metastore and storage alone."""
    handles = plan.catalog.run(
        "reading a checkpoint", lambda c: lists_at(c, plan.job_id, checkpoint_id)
    )
    store = open_store(plan.storage)
    return {s: read_lists(store, handle, job=plan.job) for s, handle in handles.items()}


def together(subtasks: Subtasks, state_id: int) -> list[bytes]:
    """Returns a list's elements of all subtasks, in order."""
    return [e for subtask in sorted(subtasks) for e in subtasks[subtask].get(state_id, [])]


def note_batch(batch_id: int) -> ChangeLists:
    """Adds an element to the subtask's split list, and puts one in its union list."""

    def change(subtask: int, lists: Lists) -> None:
        element = b"%d-%d" % (batch_id, subtask)
        lists.setdefault(SPLIT_ID, []).append(element)
        lists[UNION_ID] = [element]

    return change


def noted(batches: int, parallelism: int) -> Subtasks:
    """Returns what `note_batch` leaves after so many batches at one parallelism."""
    return {
        subtask: {
            SPLIT_ID: [b"%d-%d" % (batch_id, subtask) for batch_id in range(batches)],
            UNION_ID: [b"%d-%d" % (batches - 1, subtask)],
        }
        for subtask in range(parallelism)
    }


def commit_with_lists(facts: dict[str, Any], batch_id: int, task_attempt: int) -> None:
    """Runs all subtasks of a batch with lists in one group commit."""
    plan, write, change = plan_of(facts), remember(batch_id), note_batch(batch_id)
    tasks = [
        Task(plan, "executor", batch_id, each, task_attempt, write, change_lists=change)
        for each in range(plan.parallelism)
    ]
    run_together(tasks)


@dataclass
class ListStream(Stream):
    """In each batch, a subtask's lists are changed as by `note_batch`.

    What each started the newest batch with is in `started`.
    """

    started: Subtasks = field(default_factory=dict)
    after: list[Subtasks] = field(default_factory=list)
    """The lists after each batch."""
    is_new_run: bool = True

    def new_run(
        self,
        parallelism: int = SUBTASKS,
        states: Sequence[StateDeclaration] = BOTH,
        deleted: Sequence[str] = (),
        merging: Mapping[str, object] | None = None,
    ) -> RunContext:
        """Starts a run; `merging` are options without what they begin with."""
        self.plan = new_run(
            self.url,
            self.storage,
            self.local_dir,
            parallelism=parallelism,
            options={f"cairn.file-merging.{k}": v for k, v in (merging or {}).items()},
            states=states,
            deleted=deleted,
        )
        self.is_new_run = True
        return self.plan

    def change(self, subtask: int, lists: Lists) -> None:
        """What the processor does to a subtask's lists in a batch."""
        self.started[subtask] = deepcopy(lists)
        note_batch(self.batches)(subtask, lists)
        self.after[self.batches][subtask] = deepcopy(lists)

    def keep(self, subtask: int, lists: Lists) -> None:
        """What a processor does that leaves the lists as they are."""
        self.started[subtask] = deepcopy(lists)
        self.after[self.batches][subtask] = deepcopy(lists)

    def batch(self, **changes: Any) -> None:
        """Runs a batch in one group commit, and checks what its subtasks start with."""
        del self.after[self.batches :]
        self.after.append({})
        self.started = {}
        run_together(self.tasks(**{"change_lists": self.change, **changes}))
        before = self.after[self.batches - 1] if self.batches else {}
        if self.is_new_run:
            self._check_redistributed(before)
        else:
            assert self.started == before
        self.batches += 1
        self.is_new_run = False

    def again(self) -> None:
        """Makes the next batch the one that was last, which nobody has confirmed."""
        self.batches -= 1

    def assert_whole(self, *, may_be_torn: bool = False) -> None:
        """Every checkpoint that is kept has its keyed state and its lists."""
        super().assert_whole(may_be_torn=may_be_torn)
        for checkpoint_id, batch_id in rows(
            self.plan,
            "SELECT checkpoint_id, batch_id FROM cairn.checkpoints WHERE job_id = :job"
            " AND status IN ('COMPLETED', 'CONFIRMED')",
        ):
            assert stored_lists(self.plan, checkpoint_id) == self.after[batch_id]

    def _check_redistributed(self, before: Subtasks) -> None:
        union = together(before, UNION_ID)
        assert all(lists.get(UNION_ID, []) == union for lists in self.started.values())
        assert together(self.started, SPLIT_ID) == together(before, SPLIT_ID)
        if len(before) == len(self.started):
            for subtask, lists in self.started.items():
                assert lists.get(SPLIT_ID, []) == before[subtask].get(SPLIT_ID, [])
