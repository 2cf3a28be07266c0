"""Subtasks that are due at once share their transactions, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from cairn.errors import CorruptSegmentError, StorageError
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization import serve, write
from cairn.runtime.materialization.order import Order, place, placed
from cairn.runtime.materialization.progress import (
    Progress,
    progress_of,
    raise_if_given_up,
    record_progress,
)
from cairn.runtime.materialization.write import Compute
from cairn.state.entries import entry_prefix
from tests.runtime.materialization.stream import here
from tests.runtime.tasks import (
    MAX_PARALLELISM,
    QUERY,
    Task,
    new_run,
    read_back,
    remember,
    run_together,
)

SUBTASKS = range(4)


@pytest.fixture(params=[{}, {"cairn.file-merging.across-checkpoint-boundary": "true"}])
def plan(
    request: pytest.FixtureRequest, metastore_url: str, tmp_storage: str, tmp_path: Any
) -> RunContext:
    """A run of four subtasks after two batches."""
    local_dir = str(tmp_path / "local")
    made = new_run(metastore_url, tmp_storage, local_dir, parallelism=4, options=request.param)
    run_batches(made, 0, 2)
    return made


def run_batches(plan: RunContext, first: int, end: int) -> None:
    for batch in range(first, end):
        tasks = [Task(plan, "one", batch, i, batch, remember(batch)) for i in SUBTASKS]
        run_together(tasks)


def order(
    plan: RunContext, batch_id: int, *, size_bytes: int = 0, ordered_s: float = 0
) -> list[Order]:
    for subtask in SUBTASKS:
        due = Order(
            batch=plan.batch(QUERY, batch_id),
            subtask=subtask,
            now_ms=batch_id,
            ordered_s=ordered_s + subtask,
            size_bytes=size_bytes,
        )
        place(manager_of(plan), due)
    return placed(manager_of(plan))


def manager_of(plan: RunContext) -> TaskManager:
    return TaskManager(plan, "one")


def segments(plan: RunContext) -> list[tuple[str, int]]:
    statement = text(
        "SELECT kind, subtask FROM cairn.segments WHERE kind <> 'changelog' "
        "AND released_checkpoint IS NULL AND status = 'LIVE' ORDER BY subtask, kind"
    )
    return plan.catalog.run("looking", lambda c: [tuple(row) for row in c.execute(statement)])


@contextmanager
def committed() -> Iterator[list[object]]:
    """Gives the transactions that are committed meanwhile."""
    found: list[object] = []

    def note(connection: object) -> None:
        found.append(connection)

    event.listen(Engine, "commit", note)
    try:
        yield found
    finally:
        event.remove(Engine, "commit", note)


def test_orders_that_are_carried_out_together_cost_five_transactions(
    plan: RunContext,
) -> None:
    # The local state, and so what is materialized, is that of the last batch's parent.
    for batch in (1, 2):
        due = order(plan, batch)
        with committed() as transactions:
            serve.take(manager_of(plan), due, here)
        assert len(transactions) <= 5
        assert segments(plan) == [("keyed_full", subtask) for subtask in SUBTASKS]
        assert placed(manager_of(plan)) == []
        for subtask in SUBTASKS:
            assert progress_of(manager_of(plan), subtask) == Progress(done_ms=batch)
        run_batches(plan, batch + 1, batch + 2)
        state = read_back(plan, batch + 2)
        counts = [state[entry_prefix(group, 1, b"count")] for group in range(MAX_PARALLELISM)]
        assert counts == [b"%d" % (batch + 2)] * MAX_PARALLELISM


def test_what_fails_together_is_done_alone_and_counts_where_it_failed(
    plan: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = write._encode

    def encode_others(context: Any, *rest: Any) -> write.Encoded:
        if context.subtask == 2:
            raise CorruptSegmentError("bytes are not those that were written")
        return encode(context, *rest)

    monkeypatch.setattr(write, "_encode", encode_others)
    serve.take(manager_of(plan), order(plan, 1), here)
    others = [subtask for subtask in SUBTASKS if subtask != 2]
    assert segments(plan) == [("keyed_full", subtask) for subtask in others]
    for subtask in others:
        assert progress_of(manager_of(plan), subtask) == Progress(done_ms=1)
    failed = progress_of(manager_of(plan), 2)
    assert (failed.failures, failed.is_final) == (1, True)
    rows = plan.catalog.run(
        "looking",
        lambda c: c.execute(
            text("SELECT subtask, error IS NULL FROM cairn.materializations ORDER BY subtask")
        ).all(),
    )
    assert [tuple(row) for row in rows] == [(0, True), (1, True), (2, False), (3, True)]


@pytest.mark.parametrize("most", [1, 3])
def test_of_orders_that_were_killed_at_together_only_the_one_that_kills_alone_counts(
    metastore_url: str,
    tmp_storage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    plan = new_run(
        metastore_url,
        tmp_storage,
        str(tmp_path / "local"),
        parallelism=4,
        options={"cairn.changelog.max-failures-allowed": str(most)},
    )
    run_batches(plan, 0, 2)
    manager, encode = manager_of(plan), write._encode

    def kill_at_2(context: Any, *rest: Any) -> write.Encoded:
        if context.subtask == 2:
            raise InterruptedError
        return encode(context, *rest)

    monkeypatch.setattr(write, "_encode", kill_at_2)
    patience: list[bool] = []

    def look(is_patient: bool) -> AbstractContextManager[Compute]:
        patience.append(is_patient)
        return here(is_patient)

    order(plan, 1, ordered_s=time.monotonic())
    kills = 0
    while placed(manager):  # as often as a process is started
        try:
            for together in serve._together(manager, placed(manager)):
                serve.take(manager, together, look)
        except InterruptedError:
            kills += 1
    others = [subtask for subtask in SUBTASKS if subtask != 2]
    assert segments(plan) == [("keyed_full", subtask) for subtask in others]
    for subtask in others:
        assert progress_of(manager, subtask) == Progress(done_ms=1)
    assert kills == 1 + most, "once together, and then it alone"
    assert patience == [True] + [False] * (3 + most), "what may have timed out insists"
    with pytest.raises(StorageError, match=rf"subtask 2 .*failures in a row: {most}\)"):
        raise_if_given_up(manager, 2, progress_of(manager, 2))
    assert progress_of(manager, 2) == Progress(), "counted anew"


def test_whoever_is_killed_after_what_failed_together_counts_alone(
    plan: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_or_kill(context: Any, *_: Any) -> write.Encoded:
        raise CorruptSegmentError("damaged") if context.subtask < 2 else InterruptedError

    monkeypatch.setattr(write, "_encode", fail_or_kill)
    with pytest.raises(InterruptedError):
        serve.take(manager_of(plan), order(plan, 1), here)
    progress = [progress_of(manager_of(plan), subtask) for subtask in SUBTASKS]
    assert [one.failures for one in progress] == [1, 1, 1, 0]
    assert all(one.is_apart for one in progress)


def test_an_order_that_has_failed_is_alone_and_the_others_are_few_and_small(
    plan: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(due: list[Order]) -> list[list[int]]:
        return [[one.subtask for one in some] for some in serve._together(manager_of(plan), due)]

    small, large = order(plan, 1, size_bytes=1), order(plan, 1, size_bytes=serve.TOGETHER_BYTES)
    assert together(small) == [[0, 1, 2, 3]]
    assert together(large) == [[0], [1], [2], [3]]
    monkeypatch.setattr(serve, "TOGETHER", 3)
    assert together(small) == [[0, 1, 2], [3]]
    record_progress(manager_of(plan), 1, Progress(failures=1))
    assert together(small) == [[0], [1], [2, 3]]
    record_progress(manager_of(plan), 1, Progress(is_suspect=True))
    assert together(small) == [[0], [1], [2, 3]]
