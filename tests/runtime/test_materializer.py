"""Materialisation beside the batch: one process at a time, counted, fenced, and full or not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from cairn.errors import StorageError
from cairn.handles import SegmentHandle
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime import materializer
from cairn.runtime.executor import TaskManager
from cairn.runtime.materializer import Order, lock_file, start_if_due
from cairn.storage import open_store
from metastore.batches import Clock
from metastore.checkpoints import segments_at
from metastore.engine import run_transaction
from tests.runtime.dying_materializer import STEPS
from tests.runtime.streams import ROOT
from tests.runtime.tasks import (
    EVERYTHING,
    QUERY,
    Task,
    new_run,
    read_back,
    remember,
    remembered,
)

DUE = Clock(now_ms=10_000_000, job_created_ms=0, base_made_ms={})
"""A tick of any phase has passed by then."""


class Stream:
    """A query of one subtask whose tasks run in this process."""

    def __init__(self, url: str, storage: str, local_dir: str) -> None:
        self.plan = new_run(url, storage, local_dir, parallelism=1)
        self.batches = 0

    @property
    def manager(self) -> TaskManager:
        return TaskManager(self.plan, "one")

    def run(self, batches: int) -> None:
        for _ in range(batches):
            write = remember(self.batches)
            Task(self.plan, "one", self.batches, 0, self.batches, write).run()
            self.batches += 1

    def start(self, clock: Clock = DUE) -> None:
        start_if_due(self.manager, self.plan.batch(QUERY, self.batches - 1), clock, 0)

    def materialize(self, clock: Clock = DUE) -> None:
        self.start(clock)
        with self.alone():
            pass
        for process in materializer._started:
            process.wait()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no process materialises, and keeps others from starting."""
        lock = os.open(lock_file(self.manager, 0), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def segments(self, checkpoint_id: int) -> list[SegmentHandle]:
        return run_transaction(
            self.plan.metastore_url,
            lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING),
            what="reading the segments of a checkpoint",
        )

    def kinds(self, checkpoint_id: int) -> list[str]:
        return [handle.kind.value for handle in self.segments(checkpoint_id)]

    def sql(self, statement: str) -> list[object]:
        return run_transaction(
            self.plan.metastore_url,
            lambda c: list(c.scalars(text(statement), {"job": self.plan.job_id})),
            what="looking",
        )


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


def at(ms: int) -> Clock:
    return replace(DUE, now_ms=DUE.now_ms + ms)


def test_the_first_materialisation_is_full_and_the_next_holds_what_has_changed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.run(3)
    stream.materialize()
    stream.run(2)
    assert stream.kinds(5) == ["keyed_full", "changelog", "changelog", "changelog"]
    stream.materialize(at(10**6))
    stream.run(1)
    # The bases are small here, so all that changed is more than a quarter of them.
    assert stream.kinds(6)[0] == "keyed_full"
    assert stream.segments(6)[0].as_of_checkpoint == 4
    assert read_back(stream.plan, 6) == remembered(6)


def test_an_order_of_a_killed_process_counts_as_failed_and_the_next_one_does_it(
    stream: Stream,
) -> None:
    stream.run(2)
    with stream.alone():
        pass
    stream.start()
    materializer._started[-1].kill()
    with stream.alone():
        progress = materializer._progress(stream.manager, 0)
    assert (progress.failures, progress.done_ms) in {(1, 0), (0, DUE.now_ms)}
    stream.materialize(at(10**6))
    assert materializer._progress(stream.manager, 0).failures == 0
    stream.run(1)
    assert read_back(stream.plan, 3) == remembered(3)


def test_a_subtask_is_materialised_by_one_process_at_a_time(stream: Stream) -> None:
    stream.run(2)
    before = len(materializer._started)
    with stream.alone():
        stream.start()
    assert len(materializer._started) == before
    assert stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'") == []
    stream.materialize()
    assert len(stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'")) == 1


def test_nothing_is_written_where_nothing_has_changed_since_the_base(stream: Stream) -> None:
    stream.run(2)
    stream.materialize()
    files = "SELECT count(*) FROM cairn.physical_files WHERE job_id = :job"
    before = stream.sql(files)
    stream.run(0)
    stream.materialize(at(10**6))
    assert stream.sql(files) == before
    assert materializer._progress(stream.manager, 0).done_ms == at(10**6).now_ms


def test_three_failures_in_a_row_fail_the_task_and_a_restart_counts_anew(
    stream: Stream,
) -> None:
    stream.run(2)
    shared = Path(stream.plan.storage.removeprefix("file://")) / stream.plan.job_id / "shared"
    shared.write_text("a file where a directory has to be")
    for _ in range(3):
        stream.materialize()
    with pytest.raises(StorageError, match=r"subtask 0 could not be materialised 3 times in a row"):
        stream.start()
    shared.unlink()
    stream.materialize()
    stream.run(1)
    assert stream.kinds(4)[0] == "keyed_full"


def test_a_fenced_runs_materialisation_changes_nothing_and_is_no_failure(stream: Stream) -> None:
    stream.run(2)
    old = stream.plan
    with stream.alone():
        stream.plan = new_run(
            old.metastore_url, old.storage, old.settings.local_dir + "-2", parallelism=1
        )
        stream.run(1)
    stream.plan = old
    stream.materialize()
    assert stream.sql("SELECT 1 FROM cairn.segments WHERE kind <> 'changelog'") == []
    assert "SHARED" not in stream.sql("SELECT upper(scope) FROM cairn.physical_files")


def test_the_changelog_goes_with_the_materialisation(stream: Stream) -> None:
    stream.run(4)
    stream.materialize()
    stream.run(4)
    cleanup_job(stream.plan.metastore_url, stream.plan.job)
    live = stream.sql("SELECT kind FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'")
    assert sorted(map(str, live)) == ["changelog"] * 5 + ["keyed_full"]
    assert read_back(stream.plan, 8) == remembered(8)


@pytest.mark.parametrize("kill_at", STEPS)
def test_killed_at_any_step_it_loses_nothing_and_the_next_one_does_it(
    stream: Stream, kill_at: str
) -> None:
    stream.run(3)
    batch = stream.plan.batch(QUERY, 2)
    order = Order(stream.plan, "one", batch, 0, DUE.now_ms)
    died = subprocess.run(
        [sys.executable, "-m", "tests.runtime.dying_materializer", kill_at],
        input=msgspec.msgpack.encode(order),
        cwd=ROOT,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    stream.run(1)
    is_installed = kill_at in ("after install", "before end", "after end")
    assert ("keyed_full" in stream.kinds(4)) == is_installed
    assert read_back(stream.plan, 4) == remembered(4)
    stream.materialize(at(10**6))
    stream.run(1)
    assert stream.kinds(5)[0] == "keyed_full"
    assert read_back(stream.plan, 5) == remembered(5)
    writing = stream.sql("SELECT path FROM cairn.physical_files WHERE status = 'WRITING'")
    assert len(writing) == (
        kill_at in ("after intent", "before put", "after put", "before install")
    )
    stored = {found.path for found in open_store(stream.plan.storage).list("")}
    known = stream.sql("SELECT path FROM cairn.physical_files WHERE status <> 'DELETED'")
    assert stored <= set(known)


def test_a_materialising_process_starts_without_spark() -> None:
    program = "import sys, cairn.runtime.materializer; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
