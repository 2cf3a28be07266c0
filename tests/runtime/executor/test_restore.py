"""Bringing local state to the parent: what is used, what is thrown away, who is refused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from cairn.catalog.catalog import dispose_engines
from cairn.errors import CorruptSegmentError, FencedError, StorageError
from cairn.keygroups import KeyGroupRange
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor import spool
from cairn.runtime.executor.local_record import Position
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.state.entries import entry_prefix, split
from cairn.storage import open_store
from tests.databases import be_restored, create
from tests.runtime.tasks import (
    MAX_PARALLELISM,
    QUERY,
    Task,
    new_run,
    on_host,
    read_back,
    remember,
    remembered,
    subtask_range,
)


@dataclass
class Stream:
    """A query whose tasks run one after the other in this process."""

    url: str
    storage: str
    local_dir: str
    plan: RunContext = field(init=False)
    attempts: int = 0

    def restart(self, parallelism: int = 2) -> RunContext:
        self.plan = new_run(self.url, self.storage, self.local_dir, parallelism=parallelism)
        return self.plan

    def task(
        self,
        batch_id: int,
        subtask: int,
        *,
        plan: RunContext | None = None,
        executor: str = "one",
    ) -> Task:
        self.attempts += 1
        write = remember(batch_id)
        return Task(plan or self.plan, executor, batch_id, subtask, self.attempts, write)

    def batch(
        self, batch_id: int, *, materializes: Sequence[int] = (), executor: str = "one"
    ) -> None:
        for subtask in range(self.plan.parallelism):
            task = self.task(batch_id, subtask, executor=executor)
            replace(task, materializes=subtask in materializes).run()

    def local(self, subtask: int) -> tuple[Position | None, dict[bytes, bytes]]:
        directory = TaskManager(self.plan, "one").subtask_directory(subtask)
        groups = subtask_range(subtask, self.plan.parallelism)
        with open_local(directory).read() as reader:
            return reader.position(), dict(reader.range(groups))

    def begin(
        self, batch_id: int, subtask: int, *, executor: str = "one"
    ) -> Generator[str, None, None]:
        """Returns a task that has its parent's state and goes on when asked to."""
        steps = self.task(batch_id, subtask, executor=executor).steps()
        assert [next(steps), next(steps)] == ["begun", "restored"]
        return steps


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.restart()
    return made


def forget_objects(stream: Stream, all_but: int = 0) -> None:
    """Removes every object but the newest ones."""
    root = Path(stream.storage.removeprefix("file://"))
    objects = sorted(root.glob("*/*/*/*.seg"), key=lambda path: path.stat().st_mtime_ns)
    for path in objects[: len(objects) - all_but]:
        path.unlink()


def test_the_state_of_every_checkpoint_is_the_same_in_storage_and_locally(stream: Stream) -> None:
    for batch_id in range(6):
        stream.batch(batch_id)
        assert read_back(stream.plan, batch_id + 1) == remembered(batch_id + 1)
    for subtask in (0, 1):
        position, state = stream.local(subtask)
        assert position == Position(5, stream.plan.run_id, 1), "one batch late"
        assert state == remembered(5, subtask_range(subtask, 2))


def test_the_next_batch_reads_no_object_where_its_executor_ran_the_parent(stream: Stream) -> None:
    stream.batch(0)
    stream.batch(1)
    forget_objects(stream)
    stream.batch(2)
    assert stream.local(0) == (
        Position(2, stream.plan.run_id, 1),
        remembered(2, KeyGroupRange(0, 4)),
    )


def test_a_new_run_on_the_same_host_reads_only_the_objects_newer_than_local_state(
    stream: Stream,
) -> None:
    for batch_id in range(3):
        stream.batch(batch_id)
    first = stream.plan
    forget_objects(stream, all_but=2)
    stream.restart()
    stream.batch(3)
    assert stream.local(1) == (
        Position(3, first.run_id, 2),
        remembered(3, KeyGroupRange(4, 8)),
    )


@pytest.mark.parametrize("lost", ["local state", "spool", "both"])
def test_what_an_executor_has_lost_is_read_from_storage(
    stream: Stream, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=spool.__name__)
    for batch_id in range(4):
        stream.batch(batch_id, materializes=[batch_id % 2])
    manager = TaskManager(stream.plan, "one")
    if lost != "local state":
        shutil.rmtree(manager.directory / "spool")
    if lost != "spool":
        stream.plan = replace(
            stream.plan,
            settings=replace(stream.plan.settings, local_dir=f"{stream.local_dir}-new"),
        )
    caplog.clear()
    stream.batch(4)
    assert read_back(stream.plan, 5) == remembered(5)
    missed = [record for record in caplog.records if "not in the spool" in record.message]
    assert len(missed) == (2 if lost == "spool" else 0), "one segment of each subtask"


def test_a_key_whose_deletion_is_in_a_base_alone_does_not_come_back_from_older_state(
    stream: Stream,
) -> None:
    gone = entry_prefix(0, 1, b"gone")
    replace(stream.task(0, 0), write=lambda overlay, _: overlay.put(gone, b"1")).run()
    stream.task(0, 1).run()
    stream.begin(1, 0).close()
    assert gone in stream.local(0)[1]

    here = stream.plan
    stream.plan = on_host(here, f"{stream.local_dir}-elsewhere")
    replace(stream.task(1, 0), write=lambda overlay, _: overlay.delete(gone)).run()
    stream.task(1, 1).run()
    stream.batch(2, materializes=[0])
    stream.batch(3)
    stream.plan = here
    stream.begin(4, 0).close()
    assert stream.local(0)[1] == read_back(stream.plan, 4, subtask_range(0, 2))


def test_a_spooled_segment_that_is_not_the_one_acknowledged_is_not_used(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.batch(0)
    for spooled in (TaskManager(stream.plan, "one").directory / "spool").glob("*/*"):
        spooled.write_bytes(b"half of it")
    stream.batch(1)
    assert read_back(stream.plan, 2) == remembered(2)
    assert caplog.text.count("segment damaged in the spool") == 2


def test_the_spool_of_an_attempt_that_lost_is_not_used(stream: Stream) -> None:
    stream.batch(0)
    winner = replace(
        stream.task(0, 0, executor="two"),
        write=lambda overlay, _: overlay.put(entry_prefix(0, 1, b"winner"), b"1"),
    )
    winner.run()
    stream.begin(1, 0).close()
    assert stream.local(0)[1] == {entry_prefix(0, 1, b"winner"): b"1"}


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("parallelisms", [(1, 4, 1), (3, 2, 3), (4, 1, 8)])
def test_rescaling_forth_and_back_keeps_the_state_with_stale_local_state_about(
    stream: Stream, parallelisms: tuple[int, ...], batches: int
) -> None:
    batch_id = 0
    for round_number, parallelism in enumerate(parallelisms):
        stream.restart(parallelism)
        for _ in range(batches):
            stream.batch(batch_id, materializes=[batch_id % parallelism] if round_number else [])
            batch_id += 1
            assert read_back(stream.plan, batch_id) == remembered(batch_id)
        cleanup_job(stream.plan.catalog, stream.plan.job)
    assert read_back(stream.plan, batch_id) == remembered(batch_id)


def test_a_corrupt_segment_is_named_and_leaves_the_local_state_as_it_was(stream: Stream) -> None:
    stream.batch(0)
    stream.batch(1)
    before = stream.local(0)
    stream.restart(parallelism=2)
    root = Path(stream.storage.removeprefix("file://"))
    for segment in root.glob("*/taskmanager-owned/*/*.seg"):
        segment.write_bytes(b"x" * segment.stat().st_size)
    with pytest.raises(CorruptSegmentError, match=r"job words, checkpoint 2, file .*offset 0"):
        stream.batch(2)
    assert stream.local(0) == before


def test_a_segment_that_is_gone_is_an_error_not_an_empty_state(stream: Stream) -> None:
    stream.batch(0)
    stream.restart(parallelism=1)
    forget_objects(stream)
    with pytest.raises(StorageError, match="no such object"):
        stream.batch(1)


def test_a_zombie_of_an_older_batch_neither_moves_local_state_back_nor_reads_it(
    stream: Stream,
) -> None:
    stream.batch(0)
    stream.batch(1)
    zombie = stream.task(1, 0, executor="two").steps()
    assert next(zombie) == "begun"
    stream.begin(2, 0).close()
    before = stream.local(0)
    with pytest.raises(FencedError, match="moved the local state on"):
        next(zombie)
    assert stream.local(0) == before


def test_a_zombie_of_an_older_run_neither_moves_local_state_back_nor_reads_it(
    stream: Stream,
) -> None:
    stream.batch(0)
    older, batch = TaskManager(stream.plan, "two"), stream.plan.batch(QUERY, 1)
    store, start = open_store(stream.storage), older.begin(batch)
    zombie = stream.task(1, 0, executor="two").steps()
    assert next(zombie) == "begun"
    stream.restart()
    stream.begin(1, 0).close()
    before = stream.local(0)
    with (
        pytest.raises(FencedError, match="moved the local state on"),
        parent_state(SubtaskContext(manager=older, store=store, batch=batch, subtask=0), start),
    ):
        pass
    with pytest.raises(FencedError, match="a newer run removes it"):
        next(zombie)
    assert stream.local(0) == before


def test_a_zombie_that_has_its_snapshot_keeps_it_while_newer_batches_continue(
    stream: Stream,
) -> None:
    stream.batch(0)
    zombie = stream.begin(1, 0, executor="two")
    stream.batch(1)
    stream.batch(2)
    with pytest.raises(FencedError, match="the checkpoint is CONFIRMED"):
        list(zombie)
    stream.batch(3)
    assert read_back(stream.plan, 4) == remembered(4)


def test_two_attempts_at_once_start_from_the_same_parent(stream: Stream) -> None:
    stream.batch(0)
    attempts = [stream.begin(1, 0, executor=name) for name in ("one", "two")]
    for attempt in attempts:
        list(attempt)
    stream.task(1, 1).run()
    stream.batch(2)
    assert read_back(stream.plan, 3) == remembered(3)


def test_a_batch_that_was_abandoned_half_way_leaves_no_trace(stream: Stream) -> None:
    stream.batch(0)
    stream.task(1, 0).run()
    stream.restart(parallelism=4)
    stream.batch(1)
    stream.batch(2)
    assert read_back(stream.plan, 4) == remembered(3)
    assert {split(key).key_group for key in read_back(stream.plan, 4)} == set(
        range(MAX_PARALLELISM)
    )


def backup(url: str) -> str:
    """Returns the URL of the metastore as a backup of now brings it back: on another timeline."""
    dispose_engines()
    copy = create(url, template=str(make_url(url).database))
    be_restored(copy, url, timeline=2)
    return copy


@pytest.mark.parametrize("runs_lost", [0, 1, 3])
@pytest.mark.parametrize("parallelism", [2, 4])
def test_local_state_of_a_history_that_a_restored_metastore_lost_is_not_used(
    stream: Stream, runs_lost: int, parallelism: int
) -> None:
    stream.batch(0)
    stream.batch(1)
    old = backup(stream.url)
    for run in range(runs_lost):
        stream.batch(2 + run)
        stream.restart()
    for batch_id in range(2 + runs_lost, 5 + runs_lost):
        lost = [stream.task(batch_id, subtask) for subtask in (0, 1)]
        for task in lost:
            replace(task, write=remember(100 + batch_id)).run()

    stream.url = old
    stream.restart(parallelism)
    stream.batch(2)
    stream.batch(3)
    assert read_back(stream.plan, 4) == remembered(4)


def test_local_state_of_a_lost_history_is_not_caught_up_from(stream: Stream) -> None:
    stream.batch(0)
    old = backup(stream.url)
    stream.restart()
    for batch_id in (1, 2):
        for subtask in (0, 1):
            replace(stream.task(batch_id, subtask), write=remember(100 + batch_id)).run()

    stream.url = old
    here = stream.local_dir
    stream.local_dir = f"{here}-elsewhere"
    stream.restart()
    for batch_id in (1, 2):
        stream.batch(batch_id)
    stream.local_dir = here
    stream.restart()
    assert stream.local(0) != (None, {})
    stream.begin(3, 0).close()
    assert stream.local(0)[1] == remembered(3, KeyGroupRange(0, 4))


def test_a_run_of_a_lost_history_with_the_same_epoch_leaves_nothing_to_the_new_one(
    stream: Stream,
) -> None:
    stream.batch(0)
    old = backup(stream.url)
    stream.restart()
    stream.batch(1)

    stream.url = old
    assert stream.restart().epoch == 2
    stream.batch(1)
    stream.batch(2)
    assert read_back(stream.plan, 3) == remembered(3)
