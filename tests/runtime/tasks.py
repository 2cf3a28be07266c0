"""What a Spark task does in a batch, without Spark and step by step, so it can stop anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.job.segments import segments_at
from cairn.errors import CairnError
from cairn.keygroups import KeyGroupRange, range_of
from cairn.manifest import Manifest
from cairn.ownership.take import own_root
from cairn.runtime.commit.group_commit import ask, commit
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.write import FULL_FROM_SHARE, materialize
from cairn.runtime.processing.task_input import InputCounts
from cairn.runtime.task.attempt import Attempt
from cairn.runtime.task.parent_lists import ParentLists, spool_lists
from cairn.segments.snapshot import snapshot
from cairn.settings import Settings
from cairn.state.entries import entry_prefix, list_suffix
from cairn.state.handle import StateDeclaration
from cairn.state.operator_lists import Lists
from cairn.state.view import Overlay
from cairn.storage import ObjectStore, open_store
from tests.file_retention import DELETE_AT_ONCE

MAX_PARALLELISM = 8
QUERY = "query"
EVERYTHING = KeyGroupRange(0, MAX_PARALLELISM)

Write = Callable[[Overlay, KeyGroupRange], None]
"""Makes a batch's changes to the state of some key groups."""
ChangeLists = Callable[[int, Lists], None]
"""Makes a batch's changes to the operator lists of a subtask."""


def new_run(
    url: str,
    storage: str,
    local_dir: str,
    *,
    job: str = "words",
    parallelism: int = 2,
    persist_delay_ms: int = 0,
    options: Mapping[str, object] | None = None,
    states: Sequence[StateDeclaration] = (),
    deleted: Sequence[str] = (),
    origin: Manifest | None = None,
) -> RunContext:
    """Registers a run of a job, a new one to be restored if `origin` is given; returns its plan."""
    settings = replace(
        Settings.from_options({**DELETE_AT_ONCE, **(options or {})}),
        num_retained=2,
        persist_delay_ms=persist_delay_ms,
        local_dir=local_dir,
    )
    registration = Registration(
        run_id=uuid4(),
        job=job,
        storage=storage,
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        num_retained=settings.num_retained,
        file_retention_ms=settings.file_retention_ms,
        open_file_bytes=settings.open_file_bytes,
        key_schema={"fields": []},
        states=states,
        deleted_states=deleted,
        origin=origin,
    )
    run = Catalog(url).run("registering", lambda c: register_run(c, registration))
    own_root(Catalog(url), open_store(storage), run.job_id)
    return RunContext(
        job=job,
        job_id=run.job_id,
        run_id=str(registration.run_id),
        epoch=run.epoch,
        parallelism=parallelism,
        tasks=parallelism,
        max_parallelism=run.max_parallelism,
        storage=storage,
        catalog=Catalog(url),
        settings=settings,
        split_lists=run.split_lists,
        union_lists=run.union_lists,
    )


def plan_of(facts: Mapping[str, Any]) -> RunContext:
    """Returns a plan from what `facts_of` gives."""
    made = {
        "catalog": Catalog(facts["metastore"]),
        "settings": Settings(**facts["settings"]),
        "tasks": facts["parallelism"],
    }
    return RunContext(**{**{k: v for k, v in facts.items() if k != "metastore"}, **made})


def facts_of(plan: RunContext) -> dict[str, Any]:
    """Returns what tells a plan from others, as JSON values."""
    names = ("job", "job_id", "run_id", "epoch", "parallelism", "max_parallelism", "storage")
    lists = {"split_lists": plan.split_lists, "union_lists": plan.union_lists}
    facts = {"metastore": plan.catalog.url, **{name: getattr(plan, name) for name in names}}
    return {**facts, **lists, "settings": asdict(plan.settings)}


class AtOnce(Executor):
    """Does what is submitted before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Returns a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **named))
        except CairnError as error:
            future.set_exception(error)
        return future


@dataclass
class Task:
    """One attempt of one subtask at one batch on one executor."""

    plan: RunContext
    executor: str
    batch_id: int
    subtask: int
    task_attempt: int
    write: Write
    materializes: bool = False
    store: ObjectStore | None = None
    full_from_share: float | None = None
    """See `materialize`; None: an increment wherever it may be in every other attempt."""
    change_lists: ChangeLists | None = None
    early: Executor | None = None
    """Uploads each key group's changes on their own, before the batch ends, if there is one."""

    def steps(self) -> Generator[str, None, None]:
        """Does the task's work, as `cairn.runtime.task.task.run_task`; stops after each step."""
        batch = self.plan.batch(QUERY, self.batch_id)
        manager = TaskManager(self.plan, self.executor)
        store = self.store or open_store(self.plan.storage)
        attempt = Attempt(
            manager=manager,
            store=store,
            batch=batch,
            start=manager.begin(batch),
            task_attempt=self.task_attempt,
        )
        if self.early is not None:
            attempt = replace(attempt, early=self.early)
        yield "begun"
        with (
            attempt.running(),
            parent_state(attempt.context_of(self.subtask), attempt.start) as reader,
        ):
            yield "restored"
            if self.materializes:
                share = self.full_from_share
                if share is None:
                    share = math.inf if self.task_attempt % 2 else FULL_FROM_SHARE
                materialize(attempt.context_of(self.subtask), reader, full_from_share=share)
                yield "materialized"
            lists = ParentLists(attempt).of(self.subtask)
            log, overlay = attempt.open_log(self.subtask), Overlay(reader)
            groups = self.plan.key_groups(self.subtask)
            if self.early is None:
                self.write(overlay, groups)
            else:
                for group in range(groups.start, groups.end):
                    self.write(overlay, KeyGroupRange(group, group + 1))
                    log.append(overlay.take())
                    log.preempt()
            worked = attempt.spool(log, overlay, InputCounts(rows=1))
            if self.change_lists is not None:
                self.change_lists(self.subtask, lists)
                worked = spool_lists(attempt, worked, lists)
            request = attempt.request([worked])
            ask(manager, request)
            yield "asked"
            commit(manager, store, batch, request)
        yield "acknowledged"

    def run(self) -> None:
        """Does all of it."""
        for _ in self.steps():
            pass


def run_together(tasks: Sequence[Task]) -> None:
    """Runs tasks of one executor up to their requests; the last one commits all of them."""
    waiting = [task.steps() for task in tasks]
    for steps in waiting:
        while next(steps) != "asked":
            pass
    for steps in reversed(waiting):
        assert list(steps) == ["acknowledged"]


def on_host(plan: RunContext, local_dir: str) -> RunContext:
    """Returns the plan as the executors of a host with its own local directory have it."""
    return replace(plan, settings=replace(plan.settings, local_dir=local_dir))


def read_back(plan: RunContext, checkpoint_id: int, groups: KeyGroupRange = EVERYTHING) -> Any:
    """Returns a checkpoint's state in some key groups, from the metastore and storage alone."""
    handles = plan.catalog.run(
        "reading a checkpoint", lambda c: segments_at(c, plan.job_id, checkpoint_id, groups)
    )
    return snapshot(open_store(plan.storage), handles, groups, job=plan.job)


def subtask_range(subtask: int, parallelism: int) -> KeyGroupRange:
    """Returns the key groups of a subtask."""
    return range_of(subtask, parallelism, MAX_PARALLELISM)


def remember(batch_id: int) -> Write:
    """Appends the batch to a list in every key group, counts it, and now and then clears."""

    def write(overlay: Overlay, groups: KeyGroupRange) -> None:
        for group in range(groups.start, groups.end):
            count = entry_prefix(group, 1, b"count")
            overlay.put(count, b"%d" % (int(overlay.get(count) or b"0") + 1))
            seen = overlay.under(entry_prefix(group, 2, b"seen" * 130))
            if batch_id % 4 == 3:
                seen.clear()
            last = seen.last()
            following = 0 if last is None else int.from_bytes(last, "big") + 1
            seen.put(list_suffix(following), b"%d" % batch_id)

    return write


BIG = {
    entry_prefix(group, 3, b"big"): random.Random(group).randbytes(20_000)
    for group in range(MAX_PARALLELISM)
}
"""State beside which what `remember` changes is little, also when it is compressed."""


def remember_big(batch_id: int) -> Write:
    """Does what `remember` does, and puts the entries of `BIG`."""
    remembers = remember(batch_id)

    def write(overlay: Overlay, groups: KeyGroupRange) -> None:
        remembers(overlay, groups)
        for key, value in BIG.items():
            if int.from_bytes(key[:2], "big") in groups:
                overlay.put(key, value)

    return write


def remembered(batches: int, groups: KeyGroupRange = EVERYTHING) -> dict[bytes, bytes]:
    """Returns what `remember` leaves after so many batches, computed without any of the code."""
    state: dict[bytes, bytes] = {}
    since = max((b for b in range(batches) if b % 4 == 3), default=0)
    for group in range(groups.start, groups.end):
        state[entry_prefix(group, 1, b"count")] = b"%d" % batches
        for place, batch_id in enumerate(range(since, batches)):
            key = entry_prefix(group, 2, b"seen" * 130) + list_suffix(place)
            state[key] = b"%d" % batch_id
    return state
