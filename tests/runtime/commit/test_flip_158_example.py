"""FLIP-158's worked example ("StateChangelog", "Example"), step by step, T0 to T4 and CP1 to CP3.

What differs. In Flink, the materialization is triggered between b and c in the middle of what CP2
persists, so the change set (T1:T3 = b,c) is half in it, and a restore has to leave b out. Here a
materialization is of local state, which is that of a confirmed checkpoint, so T2 is where a
checkpoint ends: b and c are in one each. All values are those of the example: CP2 has a, b and c;
after CP3, a restore reads the base (a,b), c, and d, and b once. A place in the log is a pair of
checkpoint and number, so where a checkpoint ends, the place has two names: after the last part of
one, and before the first of the next.

The log of a checkpoint holds what is new in it. What FLIP-158's handle combines with it, from the
last materialization on, the metastore adds: a segment is part of every checkpoint until it is
released.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.commit.changelog import SequenceNumber
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.materialization.write import materialize
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind
from tests.runtime.commit.logs import Query
from tests.runtime.file_rows import objects, rows
from tests.runtime.tasks import QUERY, new_run

CHANGELOG, BASE = SegmentKind.CHANGELOG, SegmentKind.KEYED_FULL
T0 = SequenceNumber(1, 0)
T1 = SequenceNumber(1, 1)
AFTER_B = SequenceNumber(2, 1)
T2 = SequenceNumber(3, 0)
T3 = SequenceNumber(3, 1)
T4 = SequenceNumber(4, 1)
CP1, CP_B, CP2, CP3 = 1, 2, 3, 4


@pytest.fixture
def query(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    return Query(plan)


class SlowStore(PosixStore):
    """A write stands still until it is let go on."""

    def __init__(self, storage: str) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def put(self, path: str, chunks: Any) -> None:
        self.arrived.set()
        assert self.go_on.wait(timeout=30)
        super().put(path, chunks)


def materialization(query: Query, store: PosixStore, batch_id: int) -> Any:
    """Materializes the subtask, as its process does."""
    batch = query.plan.batch(QUERY, batch_id)
    context = SubtaskContext(manager=query.manager, store=store, batch=batch, subtask=0)
    with open_local(context.directory).read() as reader:
        return materialize(context, reader, full_from_share=-1)


@contextmanager
def triggered(query: Query, batch_id: int) -> Iterator[tuple[SlowStore, Future[Any]]]:
    """Yields a materialization that has its snapshot and whose upload stands still."""
    store = SlowStore(query.plan.storage)
    with ThreadPoolExecutor(1) as threads:
        materializing = threads.submit(materialization, query, store, batch_id)
        try:
            assert store.arrived.wait(timeout=30)
            yield store, materializing
        finally:
            store.go_on.set()


def test_the_worked_example(query: Query, tmp_path: Path) -> None:
    start_up_and_cp1(query)
    add_b(query)
    trigger_materialization_and_cp2(query)
    finalise_cp1_and_cp2_then_cp3(query)
    restore(query, tmp_path)


def start_up_and_cp1(query: Query) -> None:
    with query.batch(0) as work:
        # On startup, the state is empty.
        assert work.log.last_appended() == T0
        assert work.log.persist(after=T0) == ()
        # list.add(a): the logical time is not updated, nothing is durable.
        work.add(b"a")
        assert query.spooled() == []
        # CP1 is triggered: persist after T0.
        [a] = work.log.persist(after=T0)
        assert work.log.last_appended() == T1
        assert (a.spec.sequence_number, a.spec.entries, query.spooled()) == (0, 1, [(1, 0)])
        work.commit()
    # CP1 completes.
    assert query.replayed(CP1) == [[b"a"]]
    assert query.restored(CP1) == [b"a"]


def add_b(query: Query) -> None:
    """list.add(b), and the checkpoint that ends where the materialization is to begin."""
    with query.batch(1) as work:
        assert T1 < work.log.last_appended() == SequenceNumber(2, 0)
        assert (query.local(), query.spooled()) == ([b"a"], [])
        work.add(b"b")
        work.commit()
        assert work.log.last_appended() == AFTER_B
    assert query.replayed(CP_B) == [[b"a"], [b"b"]]


def trigger_materialization_and_cp2(query: Query) -> None:
    with query.batch(2) as work:
        # State materialization is triggered: it obtains T2 and a snapshot of T0:T2 = a,b.
        assert AFTER_B < work.log.last_appended() == T2
        assert (query.local(), query.spooled()) == ([b"a", b"b"], [])
        with triggered(query, 2) as (slow, materializing):
            # list.add(c). CP2 is triggered: what is there already is not persisted again.
            work.add(b"c")
            [c] = work.log.persist(after=T2)
            assert work.log.last_appended() == T3
            before = objects(query.plan)
            work.commit()
            assert len(objects(query.plan).keys() - before.keys()) == 1
            # CP2 completes: the combined handle, of what it had and what is new.
            assert query.replayed(CP2) == [[b"a"], [b"b"], [b"c"]]
            assert query.restored(CP2) == [b"a", b"b", b"c"]
            # State materialization completes: T0:T2 = a,b counts from the next checkpoint on.
            slow.go_on.set()
            assert materializing.result(timeout=30) is not None
    assert query.handles(CP2)[-1].sha256 == c.spec.sha256
    assert query.replayed(CP2) == [[b"a"], [b"b"], [b"c"]], "CP2 has the handles it had"


def finalise_cp1_and_cp2_then_cp3(query: Query) -> None:
    saved = objects(query.plan)
    with query.batch(3) as work:
        # CP1 and CP2 are finalised. CP1 is subsumed, but nothing is removed yet.
        cleanup_job(query.plan.catalog, query.plan.job)
        assert rows(query.plan, "SELECT status FROM cairn.checkpoints ORDER BY checkpoint_id") == [
            "SUBSUMED",
            "CONFIRMED",
            "CONFIRMED",
            "IN_PROGRESS",
        ]
        assert objects(query.plan) == saved
        # truncate(before): references go, not what is saved.
        assert (query.local(), query.spooled()) == ([b"a", b"b", b"c"], [])
        # list.add(d). CP3 is triggered: persist after T2, of which c is there already.
        work.add(b"d")
        [d] = work.log.persist(after=T2)
        assert (work.log.last_appended(), d.spec.sequence_number) == (T4, 0)
        work.commit()
    # CP3 completes: the consolidated changes, those saved before, those newly saved. b is once.
    assert [handle.kind for handle in query.handles(CP3)] == [BASE, CHANGELOG, CHANGELOG]
    assert query.replayed(CP3) == [[b"a", b"b"], [b"c"], [b"d"]]
    assert query.restored(CP3) == [b"a", b"b", b"c", b"d"]
    assert query.restored(CP2) == [b"a", b"b", b"c"]


def restore(query: Query, tmp_path: Path) -> None:
    """A restore replays exactly that, on a host that has nothing."""
    query.forget_local_state(str(tmp_path / "other-host"))
    with query.batch(4) as work:
        assert query.local() == [b"a", b"b", b"c", b"d"]
        work.commit()
    # Once no retained checkpoint is older than the base, the changelog that it holds goes.
    before = objects(query.plan)
    with query.batch(5):
        cleanup_job(query.plan.catalog, query.plan.job)
        assert len(before.keys() - objects(query.plan).keys()) == 2
    assert query.restored(CP3) == [b"a", b"b", b"c", b"d"]
