"""SIGKILL before every step of a group commit, a materialization and a manifest, on both stores.

On S3 before those that are others there: see `tests.runtime.killed_at_a_step`.

Each test kills a process before its first step, does the work again, kills another one before its
second step, and so on until one gets through. All of it is one job: what the killed ones left
stays until cleanup takes it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cairn.catalog.job.segments import segments_at
from cairn.layout import generation_of
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.open_stores import close_all
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.order import Order, is_any_placed, place
from cairn.runtime.materialization.progress import Progress, progress_of
from cairn.savepoints.manifest_files import read_manifest
from cairn.segments.snapshot import snapshot
from cairn.storage import open_store
from metastore.enums import SegmentKind
from tests.runtime import killed_at_a_step as killed
from tests.runtime.file_rows import rows
from tests.runtime.forks import FORKS
from tests.runtime.tasks import (
    BIG,
    EVERYTHING,
    QUERY,
    Task,
    facts_of,
    new_run,
    read_back,
    remember,
    remember_big,
    remembered,
    run_together,
)

pytestmark = pytest.mark.slow

ON_POSIX = ["before a file in the storage is opened", "before link in the storage"]
ON_S3 = ["before the head of a PUT", "before the body of a PUT"]


@dataclass
class Query:
    """A query of two subtasks on one executor, parts of which a process does that is killed."""

    url: str
    storage: str
    local_dir: str
    state: dict[bytes, bytes] = field(default_factory=dict)
    """What there is besides what `remember` leaves."""
    options: dict[str, object] = field(default_factory=dict)
    materialized: Sequence[int] = (0, 1)
    """Subtasks that materialize in every fourth batch, so that little is read back."""
    batches: int = 0
    attempts: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.plan: RunContext = new_run(
            self.url, self.storage, self.local_dir, options=self.options
        )

    def batch(self) -> int:
        """Runs a batch; returns its checkpoint."""
        write = remember_big if self.state and self.batches == 0 else remember
        self.attempts += 1
        is_fourth = self.batches % 4 == 0
        facts = (self.plan, killed.EXECUTOR, self.batches)
        changes = write(self.batches)
        run_together(
            [
                Task(*facts, each, self.attempts, changes, is_fourth and each in self.materialized)
                for each in range(self.plan.parallelism)
            ]
        )
        self.batches += 1
        [newest] = rows(self.plan, "SELECT max(checkpoint_id) FROM cairn.checkpoints")
        return int(newest)

    def kill(self, number: int, work: Callable[..., None], *given: Any) -> str:
        """Starts work and kills it before its nth step; returns which that was, "" if it ended."""
        ours, theirs = FORKS.Pipe(duplex=False)
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        roots = (self.storage.removeprefix("file://"), self.local_dir)
        process = FORKS.Process(target=killed.run, args=(theirs, number, aws, roots, work, given))
        process.start()
        theirs.close()
        assert ours.poll(30), "it hangs"
        step = str(ours.recv())
        process.join(30)
        assert process.exitcode == (-signal.SIGKILL if step else 0), step
        ours.close()
        return step

    def expected(self, batch_id: int) -> dict[bytes, bytes]:
        return remembered(batch_id + 1) | self.state

    def assert_whole(self, step: str) -> None:
        """Every checkpoint that is kept reads right; what is in storage is known, and all there."""
        for checkpoint_id, batch_id in rows(
            self.plan,
            "SELECT checkpoint_id, batch_id FROM cairn.checkpoints"
            " WHERE status IN ('COMPLETED', 'CONFIRMED')",
        ):
            assert read_back(self.plan, checkpoint_id) == self.expected(batch_id), step
        found = rows(self.plan, "SELECT path, status FROM cairn.physical_files")
        stored = self.stored()
        assert {path for path, status in found if status == "SEALED"} <= stored, step
        assert stored <= {path for path, status in found if status != "DELETED"}, step

    def assert_manifest(self, checkpoint_id: int) -> None:
        """The checkpoint's state is in storage alone."""
        path = f"{self.plan.job_id}/chk-{checkpoint_id}/_metadata"
        origin = read_manifest(f"{self.plan.storage}/{path}")
        handles = [handle for _, handle in origin.manifest.handles()]
        state = snapshot(origin.store, handles, EVERYTHING, job=self.plan.job)
        assert state == self.expected(origin.manifest.batch_id)

    def assert_cleanup_leaves_nothing_unknown(self) -> None:
        """Once a newer run has begun, cleanup takes all that nobody has sealed."""
        self.restart()
        self.batch()
        self.batch()
        with self.plan.catalog.begin() as connection:
            connection.execute(
                text("UPDATE cairn.physical_files SET created_at = created_at - interval '1 hour'")
            )
        self.clean()
        sealed = rows(self.plan, "SELECT path FROM cairn.physical_files WHERE status = 'SEALED'")
        assert self.stored() == set(sealed)
        self.assert_whole("at the end")

    def stored(self) -> set[str]:
        found = {found.path for found in open_store(self.storage).list(f"{self.plan.job_id}/")}
        return {path for path in found if generation_of(path) is None}

    def clean(self) -> None:
        cleanup_job(self.plan.catalog, self.plan.job)


@pytest.fixture
def make(metastore_url: str, storage: str, tmp_path: Path) -> Callable[..., Query]:
    """Makes a query on either store."""

    def new(**changes: Any) -> Query:
        return Query(metastore_url, storage, str(tmp_path / "local"), **changes)

    return new


def kill_at_every_step(
    query: Query, start: Callable[[int], str], again: Callable[[], object]
) -> list[str]:
    """Kills what is started at its first step, at its second one, … and returns these steps.

    After each kill everything is whole, what was done after the kill before it, too.
    """
    seen: list[str] = []
    while step := start(len(seen) + 1):
        seen.append(step)
        query.assert_whole(step)
        again()
        query.clean()
    query.assert_cleanup_leaves_nothing_unknown()
    return seen


def assert_seen(seen: list[str], storage: str, *tables: str) -> None:
    """The steps are those of writes to the store and of the commits that write to the tables."""
    if storage.startswith("s3:"):
        assert set(ON_S3) < set(seen)
        return
    assert set(ON_POSIX) <= set(seen)
    for table in tables:
        for when in ("before", "after"):
            assert any(s.startswith(f"{when} COMMIT") and table in s for s in seen), seen


def test_a_group_commit_killed_at_any_step_is_done_by_the_next_attempt(
    make: Callable[..., Query], storage: str
) -> None:
    query = make()
    query.batch()

    def start(number: int) -> str:
        query.attempts += 1
        facts = facts_of(query.plan)
        step = query.kill(number, killed.commit_a_batch, facts, query.batches, query.attempts)
        query.batches += not step
        return step

    seen = kill_at_every_step(query, start, query.batch)
    assert_seen(seen, storage, "checkpoints", "physical_files", "group_commits")
    assert ("before rename into acked" in seen) is storage.startswith("file:")


@pytest.mark.parametrize("kind", [SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT])
def test_a_materialization_killed_at_any_step_is_done_by_the_next(
    make: Callable[..., Query], storage: str, kind: SegmentKind
) -> None:
    state = BIG if kind is SegmentKind.KEYED_INCREMENT else {}
    # Bases of both subtasks are made together, the increment alone.
    subtasks = (0,) if state else (0, 1)
    query = make(state=state, materialized=[1] if state else [])

    def order() -> None:
        manager, batch_id = TaskManager(query.plan, killed.EXECUTOR), query.batches - 1
        batch = query.plan.batch(QUERY, batch_id)
        for each in subtasks:
            place(manager, Order(batch=batch, subtask=each, now_ms=batch_id, ordered_s=batch_id))

    def start(number: int) -> str:
        query.batch()
        order()
        return query.kill(number, killed.materialize, facts_of(query.plan))

    def again() -> None:
        manager = TaskManager(query.plan, killed.EXECUTOR)
        assert is_any_placed(manager), "what a dead process leaves is found"
        # The process that does it again opens the local state, which is counted.
        close_all()
        killed.materialize(facts_of(query.plan))
        assert not is_any_placed(manager)
        for each in subtasks:
            assert progress_of(manager, each) == Progress(done_ms=query.batches - 1)
        checkpoint = query.batch()
        for each in subtasks:
            as_of = newest(query, checkpoint, kind, each)
            assert as_of == checkpoint - 2, "of the state before the order's"

    for _ in range(3):
        query.batch()
    if query.state:
        order()
        killed.materialize(facts_of(query.plan))
    seen = kill_at_every_step(query, start, again)
    assert_seen(seen, storage, "materializations", "physical_files", "placed_segments")
    assert seen[-1] == "before an order is removed" or storage.startswith("s3:")


def newest(query: Query, checkpoint_id: int, kind: SegmentKind, subtask: int) -> int:
    """Returns which checkpoint's state the newest segment of a kind in a subtask is."""
    plan = query.plan
    handles = plan.catalog.run(
        "reading the segments of a checkpoint",
        lambda c: segments_at(c, plan.job_id, checkpoint_id, plan.key_groups(subtask)),
    )
    return max(handle.as_of_checkpoint for handle in handles if handle.kind is kind)


@pytest.mark.parametrize("interval", [0, 1], ids=["savepoint", "interval"])
def test_a_manifest_whose_writer_is_killed_at_any_step_is_written_by_the_next(
    make: Callable[..., Query], storage: str, interval: int
) -> None:
    query = make(options={"cairn.manifest-interval": interval})

    def work() -> tuple[Any, ...]:
        if interval:
            return killed.interval_manifest, facts_of(query.plan), query.batches - 1
        return killed.savepoint, query.url, query.plan.job

    def start(number: int) -> str:
        query.batch()
        return query.kill(number, *work())

    def again() -> None:
        write, *given = work()
        write(*given)
        query.assert_manifest(query.batches - 1)

    query.batch()
    query.batch()
    # The executor's first look notes what it finds, in a step more than each later one has.
    again()
    seen = kill_at_every_step(query, start, again)
    assert_seen(seen, storage, "physical_files", "placed_segments", *([] if interval else ["pins"]))
    if storage.startswith("file:"):
        assert ("before rename into" in " ".join(seen)) == bool(interval), "the executor's note"
