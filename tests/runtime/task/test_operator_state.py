"""Operator lists on real files: over batches, runs, parallelisms, modes of merging and cleanups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cairn.errors import CorruptSegmentError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.savepoints.write_manifest import pin
from cairn.state.operator_lists import Lists
from metastore.enums import PinKind
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.merging_stream import SUBTASKS, CountingStore
from tests.runtime.sent import watch
from tests.runtime.task.list_stream import (
    BOTH,
    SPLIT,
    SPLIT_ID,
    UNION,
    UNION_ID,
    ListStream,
    stored_lists,
    together,
)
from tests.runtime.tasks import QUERY, on_host, run_together


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> ListStream:
    return ListStream(metastore_url, tmp_storage, str(tmp_path / "local"))


class ReadingStore(CountingStore):
    """Notes reads, too."""

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        self.requests.append("get")
        return super().get(path, offset, size_bytes)


def newest(stream: ListStream) -> int:
    [found] = rows(stream.plan, "SELECT max(checkpoint_id) FROM cairn.checkpoints")
    return int(found)


def test_within_a_run_a_subtask_continues_with_its_own_lists_from_the_spool(
    stream: ListStream,
) -> None:
    stream.new_run()
    stream.batch()
    store = ReadingStore(stream.storage)
    stream.batch(store=store)
    stream.batch(store=store)
    assert store.requests == ["put", "put"]
    stream.assert_whole()


def test_on_another_executor_it_reads_them_from_storage(stream: ListStream) -> None:
    stream.new_run()
    for executor in ("one", "two", "one"):
        stream.batch(executor=executor)
    stream.assert_whole()


def test_elements_are_kept_over_restarts_with_any_parallelisms_and_modes_of_merging(
    stream: ListStream, tmp_path: Path
) -> None:
    """On, off, across, on …: each run takes over what the others wrote, and mixes its own in."""
    modes: list[dict[str, object]] = [
        {"enabled": True},
        {"enabled": False},
        {"across-checkpoint-boundary": True},
    ]
    for run, parallelism in enumerate((3, 3, 2, 8, 1, 4, 4)):
        plan = stream.new_run(parallelism, merging=modes[run % 3])
        if run % 2:
            stream.plan = on_host(plan, str(tmp_path / f"host-{run}"))
        for batch in range(2):
            stream.batch(materializes=batch == 1)
            stream.assert_whole()
        cleanup_job(stream.plan.catalog, plan.job)
        stream.assert_whole()
    assert len(together(stream.after[-1], SPLIT_ID)) == 2 * (3 + 3 + 2 + 8 + 1 + 4 + 4)


def test_lists_are_in_the_file_of_the_changelog_and_without_merging_in_one_of_their_own(
    stream: ListStream,
) -> None:
    stream.new_run()
    stream.batch()
    [(_, _, live)] = files(stream.plan)
    assert live == 2 * SUBTASKS
    stream.new_run(merging={"enabled": False})
    stream.batch()
    found = rows(
        stream.plan,
        "SELECT split_part(path, '/', 3), subtask FROM cairn.physical_files"
        " JOIN cairn.segments USING (file_id) WHERE kind = 'operator'"
        " AND path LIKE '%/exclusive/%' AND live_segments = 1",
    )
    assert len(found) == SUBTASKS
    for name, subtask in found:
        assert name.startswith(f"{newest(stream)}-{subtask}-"), "checkpoint id in the name"
    stream.batch()
    stream.assert_whole()


def statements(work: Any) -> list[str]:
    sent: list[str] = []

    end = watch(lambda _, statement, _is_transaction: sent.append(" ".join(statement.split()[:3])))
    try:
        work()
    finally:
        end()
    return sent


def begin(stream: ListStream) -> list[str]:
    """Begins a batch; returns its statements."""
    manager = TaskManager(stream.plan, "executor")
    return statements(lambda: manager.begin(stream.plan.batch(QUERY, stream.batches)))


def test_lists_cost_one_statement_when_a_batch_begins_and_nothing_without_them(
    stream: ListStream,
) -> None:
    sent = []
    for states in ((), BOTH):
        stream.new_run(states=states)
        for _ in range(2):
            stream.batch(change_lists=None)
        sent.append(begin(stream))
    without, having = sent
    for placed_or_committed in (
        "SELECT cairn.placed_segments.segment_id, cairn.placed_segments.kind,",
        "SELECT g.checkpoint_id, CAST(g.file_id",
    ):
        having.remove(placed_or_committed)
    assert having == without


def test_lists_cost_a_commit_no_statement_and_no_request(stream: ListStream) -> None:
    commits: list[list[str]] = []
    for states, change in (((), None), (BOTH, stream.change)):
        stream.new_run(states=states)
        stream.after.append({})
        for _ in range(2):
            store = CountingStore(stream.storage)
            waiting = [t.steps() for t in stream.tasks(store=store, change_lists=change)]
            for steps in waiting:
                while next(steps) != "asked":
                    pass
            sent = statements(lambda tasks=waiting: [list(steps) for steps in reversed(tasks)])
            assert store.requests == ["put"]
            stream.batches += 1
            stream.after.append({})
        commits.append(sent)
    assert commits[0] == commits[1]


def test_an_attempt_that_runs_again_starts_with_the_parents_lists_again(
    stream: ListStream,
) -> None:
    stream.new_run(parallelism=1)
    stream.batch()
    before = stream.after[0]
    stream.after.append({})
    for _ in range(3):
        stream.task(0, change_lists=stream.change).run()
        assert stream.started == before
    live = rows(
        stream.plan,
        "SELECT count(*) FROM cairn.segments WHERE kind = 'operator' AND status = 'LIVE'"
        " AND first_checkpoint = 2",
    )
    assert live == [1]
    assert stored_lists(stream.plan, 2) == stream.after[1]


def test_what_a_batch_that_was_not_confirmed_did_to_lists_is_forgotten(stream: ListStream) -> None:
    stream.new_run(parallelism=2)
    stream.batch()
    stream.batch()
    for parallelism in (3, 2):
        stream.again()
        stream.new_run(parallelism)
        stream.batch()
        stream.assert_whole()


def test_a_task_that_dies_after_its_lists_were_spooled_leaves_none(stream: ListStream) -> None:
    stream.new_run(parallelism=1)
    stream.batch()
    stream.after.append({})
    died = stream.task(0, change_lists=stream.change).steps()
    while next(died) != "asked":
        pass
    died.close()
    assert stored_lists(stream.plan, 2) == {}
    stream.batch()
    stream.assert_whole()


def test_empty_lists_have_no_segment(stream: ListStream) -> None:
    def empty(subtask: int, lists: Lists) -> None:
        stream.keep(subtask, lists)
        lists.clear()

    stream.new_run()
    stream.batch()
    stream.batch(change_lists=empty)
    assert stored_lists(stream.plan, newest(stream)) == {}


def test_a_list_that_is_not_declared_any_more_is_kept_and_one_that_is_deleted_is_dropped(
    stream: ListStream,
) -> None:
    stream.new_run(parallelism=2)
    stream.batch()
    stream.new_run(parallelism=3, states=[UNION])
    for _ in range(2):
        stream.batch(change_lists=stream.keep)
    stream.assert_whole()
    assert together(stream.after[2], SPLIT_ID) == together(stream.after[0], SPLIT_ID)
    plan = stream.new_run(parallelism=3, states=[UNION], deleted=["split"])
    assert (plan.split_lists, plan.union_lists) == ((), (UNION_ID,))
    stream.after.append({})
    run_together(stream.tasks(change_lists=stream.keep))
    assert all(lists.keys() == {UNION_ID} for lists in stream.started.values())
    assert stored_lists(plan, newest(stream)) == stream.after[3]
    again = stream.new_run(parallelism=3, states=[SPLIT, UNION])
    assert again.split_lists == (3,), "a new id, and so empty"


def test_cleanup_keeps_lists_as_long_as_their_checkpoint_and_then_takes_their_files(
    stream: ListStream,
) -> None:
    stream.new_run(merging={"enabled": False})
    for _ in range(3):
        stream.batch()
    pinned = pin(stream.plan.catalog, stream.plan.job, 1, kind=PinKind.PIN).checkpoint_id
    for _ in range(3):
        stream.batch()
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, stream.plan.job)
    stream.assert_whole()
    with_lists = rows(
        stream.plan,
        "SELECT DISTINCT first_checkpoint FROM cairn.segments WHERE kind = 'operator'"
        " AND status = 'LIVE' ORDER BY 1",
    )
    assert with_lists == [pinned, 4, 5, 6]
    known = rows(stream.plan, "SELECT path FROM cairn.physical_files WHERE status = 'SEALED'")
    prefix = f"{stream.plan.job_id}/"
    assert {prefix + path for path in objects(stream.plan)} == set(known)


def test_a_damaged_segment_of_lists_is_named(stream: ListStream, tmp_path: Path) -> None:
    stream.new_run(merging={"enabled": False})
    stream.batch()
    [path, *_] = rows(
        stream.plan,
        "SELECT path FROM cairn.physical_files JOIN cairn.segments USING (file_id)"
        " WHERE kind = 'operator' ORDER BY subtask",
    )
    file = tmp_path / "storage" / path
    file.write_bytes(b"x" * file.stat().st_size)
    stream.new_run()
    told = rf"is not what was written.*checkpoint 1, file {path}, offset 0"
    with pytest.raises(CorruptSegmentError, match=told):
        stream.batch()
