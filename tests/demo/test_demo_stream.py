"""The demo waits for batches of its stream, and only as long as there can be any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.processes import end
from demo.stream import (
    Stream,
    StreamFailedError,
    batches_done,
    begun_checkpoint,
    compacted_subtasks,
    rows_read,
)
from metastore.enums import SegmentKind
from tests.metastore.steps import Steps


@pytest.fixture
def steps(metastore_url: str, tmp_path: Path) -> Steps:
    return Steps(metastore_url, tmp_path.as_uri())


def test_a_batch_counts_when_all_its_subtasks_have_acknowledged(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    begun = steps.begin(batch).checkpoint_id
    steps.ack_with_lists(batch, begun, 0)

    assert begun_checkpoint(steps.catalog, steps.name) == begun
    assert batches_done(steps.catalog, steps.name) == rows_read(steps.catalog, steps.name) == 0

    steps.ack_with_lists(batch, begun, 1)

    assert begun_checkpoint(steps.catalog, steps.name) is None
    assert batches_done(steps.catalog, steps.name) == 1
    assert rows_read(steps.catalog, steps.name) == 2 * 10


@pytest.mark.parametrize("kind", [SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT])
def test_a_subtask_is_compacted_when_all_checkpoints_that_are_kept_have_its_base(
    steps: Steps, kind: SegmentKind
) -> None:
    first = steps.register()
    for batch_id in range(3):
        killed_in = steps.whole_batch(first, batch_id)
    second = steps.register()
    as_of = steps.whole_batch(second, 3)
    steps.whole_batch(second, 4)
    steps.install(steps.ref(second, 4), steps.base(steps.ref(second, 4), as_of, (0, 4), kind))

    def compacted(since: int = killed_in) -> int:
        return compacted_subtasks(steps.catalog, steps.name, since=since)

    steps.whole_batch(second, 5)
    steps.whole_batch(second, 6)  # confirms the one before, the first with the base
    assert compacted() == 0

    steps.whole_batch(second, 7)
    assert compacted() == 1
    assert compacted(since=as_of + 1) == 0


def test_what_is_compacted_in_every_subtask_can_be_cleaned_up(steps: Steps) -> None:
    first = steps.register()
    killed_in = steps.whole_batch(first, 0)
    second = steps.register()
    as_of = steps.whole_batch(second, 1)
    steps.whole_batch(second, 2)
    for subtask, key_groups in enumerate([(0, 4), (4, 8)]):
        batch = steps.ref(second, 2)
        steps.install(batch, steps.base(batch, as_of, key_groups), subtask=subtask)
    batch_id = 3
    while compacted_subtasks(steps.catalog, steps.name, since=killed_in) < 2:
        steps.clean()
        assert steps.sql("SELECT 1 FROM cairn.deletions WHERE job_id = :job") == []
        steps.whole_batch(second, batch_id)
        batch_id += 1

    steps.clean()

    assert len(steps.sql("SELECT 1 FROM cairn.deletions WHERE job_id = :job")) == as_of


def test_nobody_waits_for_a_stream_that_has_ended(tmp_path: Path) -> None:
    stream = Stream(["--help"], tmp_path / "stream.log")

    with pytest.raises(StreamFailedError, match="the stream ended, and there was no batch"):
        stream.wait_for("batch", lambda: None, timeout_s=60)


def test_a_stream_that_failed_ends_the_wait_with_its_last_words(tmp_path: Path) -> None:
    stream = Stream(["--job"], tmp_path / "stream.log")

    with pytest.raises(StreamFailedError, match="expected one argument"):
        stream.wait_for("batch", lambda: None, timeout_s=60)


def test_the_error_of_a_query_is_told_and_not_its_plan(tmp_path: Path) -> None:
    log = tmp_path / "stream.log"
    plan = "\n".join(f"+- Project {i}" for i in range(100))
    frames = "\n".join("\tat org.apache.spark.Task.run(Task.scala:1)" for _ in range(100))
    log.write_text(
        f"cairn.errors.FencedError: taken over\n{frames}\n=== Streaming Query ===\n{plan}\n"
    )
    stream = Stream(["--job"], log)

    with pytest.raises(StreamFailedError, match="FencedError: taken over") as raised:
        stream.wait_for("batch", lambda: None, timeout_s=60)

    assert "Project" not in str(raised.value)


def test_a_stream_that_runs_is_waited_for_only_so_long(tmp_path: Path) -> None:
    stream = Stream(["--help"], tmp_path / "stream.log")
    try:
        with pytest.raises(StreamFailedError, match="runs, but in 0 s there was no batch"):
            stream.wait_for("batch", lambda: None, timeout_s=0)
    finally:
        stream.stop()


def test_the_end_of_a_process_is_the_end_of_its_session() -> None:
    """Spark's Python workers have a process group of their own, and ignore what happens to it."""
    child = "import os, signal, time; os.setpgid(0, 0); time.sleep(600)"
    parent = (
        "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); "
        "print(c.pid, flush=True); c.wait()"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", parent, child], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        worker = psutil.Process(int(leader.stdout.readline()))

    end([leader], patience_s=0.2)

    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert leader.returncode is not None
