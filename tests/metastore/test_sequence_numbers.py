"""A subtask may have several changelog segments in one checkpoint, by their sequence numbers."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from cairn.batch_ref import BatchRef
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.group_commits import Ack
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from tests.metastore.steps import SIZE_BYTES, Steps


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def attempt(
    steps: Steps, batch: BatchRef, *sequence_numbers: int, task_attempt: int = 1
) -> tuple[Ack, WrittenFile]:
    """Returns the ack of subtask 0 with so many segments, in one file whose intent is recorded."""
    segments = tuple(
        replace(steps.changelog(1, 1, 0, place * SIZE_BYTES), sequence_number=number)
        for place, number in enumerate(sequence_numbers)
    )
    file = replace(steps.intend(batch), size_bytes=len(segments) * SIZE_BYTES)
    return Ack(
        subtask=0,
        attempt_id=str(uuid4()),
        task_attempt=task_attempt,
        input_rows=10,
        restore_ms=5,
        segments=segments,
    ), file


def ids(segments: tuple[SegmentHandle, ...]) -> list[str]:
    return [segment.segment_id for segment in segments]


def test_segments_of_one_ack_are_replayed_in_order_of_their_sequence_numbers(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    ack, file = attempt(steps, batch, 2, 0, 1)
    steps.commit(batch, 1, [ack], file)
    third, first, second = ids(ack.segments)
    assert steps.segments(1) == [first, second, third]
    parent = steps.begin(steps.ref(1, 1)).parent
    assert parent is not None
    assert ids(parent.acks[0].segments) == [first, second, third]


def test_a_later_attempt_replaces_all_segments_of_the_earlier_one(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    early, early_file = attempt(steps, batch, 0, 1, 2)
    steps.commit(batch, 1, [early], early_file)
    late, late_file = attempt(steps, batch, 0, task_attempt=2)
    steps.commit(batch, 1, [late], late_file)
    assert steps.segments(1) == ids(late.segments)
    assert steps.file_facts(early_file) == ("SEALED", 0, 0)


def test_a_sequence_number_is_given_once_in_a_subtasks_checkpoint(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    ack, file = attempt(steps, batch, 1, 1)
    with pytest.raises(RefusedError, match="one segment at each place"):
        steps.commit(batch, 1, [ack], file)
    assert steps.segments(1) == []
