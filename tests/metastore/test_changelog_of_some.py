"""Some subtasks' changelog is read out of rows that have that of many, and without theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from cairn.catalog.job import segments
from cairn.catalog.job.group_commits import Ack, Committed, StoredSegment, unpack
from cairn.keygroups import KeyGroupRange
from tests.metastore.steps import MAX_PARALLELISM, SIZE_BYTES, Steps

EVERYTHING = KeyGroupRange(0, MAX_PARALLELISM)
SHARES = [
    KeyGroupRange(start, end)
    for start in range(MAX_PARALLELISM)
    for end in range(start + 1, MAX_PARALLELISM + 1)
]


@pytest.fixture
def steps(shared_metastore_url: str, tmp_path: Path) -> Steps:
    return Steps(shared_metastore_url, f"file://{tmp_path}")


def stored(steps: Steps, checkpoint_id: int, share: KeyGroupRange) -> list[StoredSegment]:
    return steps.run(lambda c: segments.stored_at(c, steps.job_id, checkpoint_id, share))


def require_shares(steps: Steps, checkpoint_id: int) -> None:
    """Reads the state of each range of key groups, and compares it with that of all."""
    whole = stored(steps, checkpoint_id, EVERYTHING)
    for share in SHARES:
        inside = {
            one.handle.segment_id: one
            for one in whole
            if len(one.handle.key_groups.intersect(share))
        }
        found = stored(steps, checkpoint_id, share)
        assert {one.handle.segment_id: one for one in found} == inside, share
        assert len(found) == len(inside), share


def test_reading_one_subtasks_changelog_reads_that_of_no_other(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = steps.register(parallelism=8)
    for batch_id in range(3):
        steps.whole_batch(epoch, batch_id)
    steps.begin(steps.ref(epoch, 3))
    read: list[Committed] = []

    def counting(row: Committed, within: KeyGroupRange | None = None) -> Iterator[StoredSegment]:
        read.append(row)
        return unpack(row, within)

    monkeypatch.setattr(segments, "unpack", counting)
    assert len(stored(steps, 3, KeyGroupRange(5, 6))) == 3
    assert [list(row.segment_subtasks) for row in read] == [[5]] * 3


def test_a_share_is_read_in_whatever_order_a_group_has_its_subtasks(steps: Steps) -> None:
    epoch = steps.register(parallelism=5)
    for batch_id, order in enumerate([(4, 0, 3, 1, 2), (2, 1), (0, 1, 2, 3, 4)]):
        batch = steps.ref(epoch, batch_id)
        checkpoint_id = steps.begin(batch).checkpoint_id
        steps.ack(batch, checkpoint_id, *order)
        if missing := set(range(5)) - set(order):
            steps.ack(batch, checkpoint_id, *missing)
    steps.begin(steps.ref(epoch, 3))
    require_shares(steps, 3)


def test_a_share_is_read_where_subtasks_have_several_segments_of_several_kinds(
    steps: Steps,
) -> None:
    epoch = steps.register(parallelism=2)
    batch = steps.ref(epoch, 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    early = [steps.changelog(epoch, checkpoint_id, 0, place * SIZE_BYTES) for place in range(3)]
    ack = Ack(
        subtask=0,
        attempt_id=str(uuid4()),
        task_attempt=1,
        input_rows=10,
        restore_ms=5,
        segments=tuple(replace(one, sequence_number=place) for place, one in enumerate(early)),
    )
    file = replace(steps.intend(batch), size_bytes=3 * SIZE_BYTES)
    steps.commit(batch, checkpoint_id, [ack], file)
    steps.ack_with_lists(batch, checkpoint_id, 1)
    steps.begin(steps.ref(epoch, 1))
    assert len(stored(steps, checkpoint_id, EVERYTHING)) == 5
    require_shares(steps, checkpoint_id)


def test_a_share_is_read_from_changelog_of_another_parallelism(steps: Steps) -> None:
    for first, parallelism in ((0, 3), (2, 8), (4, 2)):
        epoch = steps.register(parallelism=parallelism)
        for batch_id in range(first, first + 2):
            steps.whole_batch(epoch, batch_id)
    steps.begin(steps.ref(epoch, 6))
    require_shares(steps, 6)


def test_a_subtask_without_a_segment_in_a_group_reads_none(steps: Steps) -> None:
    epoch = steps.register(parallelism=3)
    batch = steps.ref(epoch, 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    acks, file = steps.group(batch, checkpoint_id, (0, 1, 2))
    acks[1] = replace(acks[1], segments=())
    steps.commit(batch, checkpoint_id, acks, file)
    steps.begin(steps.ref(epoch, 1))
    require_shares(steps, checkpoint_id)
