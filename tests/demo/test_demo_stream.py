"""The demo waits for batches of its stream, and only as long as there can be any."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from demo.stream import Stream, StreamFailedError, batches_done, wait_for_middle_of_batch
from tests.metastore.steps import Steps


def test_a_batch_is_in_its_middle_from_its_first_task_to_its_last_acknowledgement(
    metastore_url: str, tmp_path: Path
) -> None:
    steps = Steps(metastore_url, str(tmp_path))
    batch = steps.ref(steps.register(), 0)
    begun = steps.begin(batch).checkpoint_id
    steps.ack_with_lists(batch, begun, 0)
    stream = Stream(["--help"], tmp_path / "stream.log")
    try:
        assert wait_for_middle_of_batch(stream, metastore_url, steps.name) == begun
        assert batches_done(metastore_url, steps.name) == 0
        steps.ack_with_lists(batch, begun, 1)
        assert batches_done(metastore_url, steps.name) == 1
    finally:
        stream.stop()


def test_nobody_waits_for_a_batch_of_a_stream_that_has_ended(
    metastore_url: str, tmp_path: Path
) -> None:
    stream = Stream(["--help"], tmp_path / "stream.log")
    while stream.running():
        time.sleep(0.05)

    with pytest.raises(StreamFailedError, match="came to its end"):
        wait_for_middle_of_batch(stream, metastore_url, "job")


def test_a_stream_that_failed_ends_the_wait_with_its_last_words(
    metastore_url: str, tmp_path: Path
) -> None:
    stream = Stream(["--job"], tmp_path / "stream.log")

    with pytest.raises(StreamFailedError, match="expected one argument"):
        wait_for_middle_of_batch(stream, metastore_url, "job")
