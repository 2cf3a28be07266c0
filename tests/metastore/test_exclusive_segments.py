"""Segments that are part of one checkpoint: operator lists and channel state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from cairn.catalog.cleanup.snapshot import ReleasedCommit, read_snapshot
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.materializations import replay_of
from cairn.catalog.job.segments import lists_at, place_segments
from cairn.catalog.savepoints.pins import pin_checkpoint, remove_pins
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from metastore.enums import PinKind, SegmentKind
from tests.metastore.steps import MAX_PARALLELISM, SIZE_BYTES, Steps


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def id_of(ack: Ack) -> str:
    return ack.segments[-1].segment_id


def lists(steps: Steps, checkpoint_id: int) -> dict[int, str]:
    """Returns the ids of a checkpoint's operator segments by subtask."""
    found = steps.run(lambda c: lists_at(c, steps.job_id, checkpoint_id))
    return {subtask: handle.segment_id for subtask, handle in found.items()}


def status(steps: Steps, segment_id: str) -> str:
    [(found,)] = steps.sql(
        "SELECT status FROM cairn.segments WHERE segment_id = :id", id=UUID(segment_id)
    )
    return str(found)


def pin(steps: Steps, checkpoint_id: int) -> UUID:
    def work(connection: Connection) -> UUID:
        return pin_checkpoint(
            connection, steps.name, checkpoint_id, pin_id=uuid4(), kind=PinKind.PIN, name=None
        ).pin_id

    return steps.run(work)


def batch_with_lists(
    steps: Steps, epoch: int, batch_id: int, *, changed: bool = True
) -> tuple[int, list[Ack]]:
    batch = steps.ref(epoch, batch_id)
    checkpoint_id = steps.begin(batch).checkpoint_id
    return checkpoint_id, [
        steps.ack_with_lists(batch, checkpoint_id, subtask, changed=changed)[0]
        for subtask in range(steps.parallelism[epoch])
    ]


def test_lists_are_part_of_their_checkpoint_and_of_no_other(steps: Steps) -> None:
    epoch = steps.register()
    first, of_first = batch_with_lists(steps, epoch, 0)
    second, of_second = batch_with_lists(steps, epoch, 1)
    third = steps.whole_batch(epoch, 2)
    assert lists(steps, first) == {0: id_of(of_first[0]), 1: id_of(of_first[1])}
    assert lists(steps, second) == {0: id_of(of_second[0]), 1: id_of(of_second[1])}
    assert lists(steps, third) == {}


def test_nothing_that_replays_keyed_state_sees_them(steps: Steps) -> None:
    epoch = steps.register()
    checkpoint_id, acks = batch_with_lists(steps, epoch, 0)
    begun = steps.begin(steps.ref(epoch, 1))
    changelog = {ack.segments[0].segment_id for ack in acks}
    assert set(steps.segments(checkpoint_id)) == changelog
    assert begun.parent is not None
    of_parent = [s for ack in begun.parent.acks.values() for s in ack.segments]
    assert {segment.segment_id for segment in of_parent} == changelog
    everything = KeyGroupRange(0, MAX_PARALLELISM)
    replay = steps.run(lambda c: replay_of(c, steps.job_id, checkpoint_id, everything))
    assert {change.segment_id for change in replay.changes} == changelog


def test_bases_release_no_lists(steps: Steps) -> None:
    epoch = steps.register()
    checkpoint_id, acks = batch_with_lists(steps, epoch, 0)
    batch = steps.ref(epoch, 1)
    steps.begin(batch)
    steps.install(batch, steps.base(batch, checkpoint_id, (0, MAX_PARALLELISM)))
    released = dict(
        steps.sql("SELECT segment_id, released_checkpoint FROM cairn.segments WHERE job_id = :job")
    )
    for ack in acks:
        assert released[UUID(ack.segments[0].segment_id)] == checkpoint_id + 2
        assert released[UUID(id_of(ack))] == checkpoint_id + 1


def test_a_parent_comes_with_its_lists_only_where_they_are_asked_for(steps: Steps) -> None:
    epoch = steps.register()
    _, acks = batch_with_lists(steps, epoch, 0)
    batch = steps.ref(epoch, 1)
    plain = steps.begin(batch).parent
    asked = steps.run(lambda c: begin_batch(c, batch, with_lists=True)).parent
    assert plain is not None
    assert asked is not None
    assert plain.lists == {}
    assert {s: handle.segment_id for s, handle in asked.lists.items()} == {
        ack.subtask: id_of(ack) for ack in acks
    }


def test_a_later_attempt_replaces_the_earlier_ones_lists_and_a_zombie_none(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    early, early_file = steps.ack_with_lists(batch, 1, 0, task_attempt=2)
    late, _ = steps.ack_with_lists(batch, 1, 0, task_attempt=3)
    steps.ack_with_lists(batch, 1, 0, task_attempt=1)
    assert lists(steps, 1) == {0: id_of(late)}
    assert status(steps, id_of(early)) == "DEAD"
    assert steps.file_facts(early_file) == ("SEALED", 0, 0)


def test_a_later_attempt_without_lists_leaves_none(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    steps.ack_with_lists(batch, 1, 0, task_attempt=1)
    steps.ack(batch, 1, 0, task_attempt=2)
    assert lists(steps, 1) == {}


def test_an_ack_whose_answer_was_lost_changes_nothing_the_second_time(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    ack, file = steps.ack_with_lists(batch, 1, 0)
    before = steps.dump()
    steps.commit(batch, 1, [ack], file)
    assert steps.dump() == before


def test_lists_of_an_aborted_checkpoint_die_with_it(steps: Steps) -> None:
    first = steps.register()
    confirmed, kept = batch_with_lists(steps, first, 0)
    aborted, lost = batch_with_lists(steps, first, 1)
    second = steps.ref(steps.register(parallelism=3), 1)
    begun = steps.run(lambda c: begin_batch(c, second, with_lists=True))
    assert lists(steps, aborted) == {}
    assert [status(steps, id_of(ack)) for ack in lost] == ["DEAD", "DEAD"]
    assert begun.parent is not None
    assert begun.parent.checkpoint_id == confirmed
    assert {s: handle.segment_id for s, handle in begun.parent.lists.items()} == {
        ack.subtask: id_of(ack) for ack in kept
    }


def test_cleanup_takes_lists_with_their_checkpoint_and_not_before(steps: Steps) -> None:
    epoch = steps.register()
    made = [batch_with_lists(steps, epoch, batch_id, changed=False) for batch_id in range(5)]
    pinned, _ = made[0]
    pin_id = pin(steps, pinned)
    steps.clean()
    kept = [checkpoint_id for checkpoint_id, _ in made if lists(steps, checkpoint_id)]
    assert kept == [1, 3, 4, 5], "the pinned one, two that are confirmed, and the newest"
    [other] = [acks for checkpoint_id, acks in made if checkpoint_id == 2]
    assert {status(steps, id_of(ack)) for ack in other} == {"DEAD"}
    steps.run(lambda c: remove_pins(c, steps.name, [pin_id]))
    steps.clean()
    assert lists(steps, pinned) == {}
    assert {status(steps, id_of(ack)) for ack in made[0][1]} == {"DEAD"}


def test_segments_of_pinned_checkpoints_hide_nothing_that_can_be_deleted(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cairn.catalog.cleanup.snapshot.PLAN_ROWS", 4)
    epoch = steps.register()
    made = [batch_with_lists(steps, epoch, batch_id, changed=False) for batch_id in range(8)]
    for checkpoint_id in (1, 2, 3):
        pin(steps, checkpoint_id)
    steps.clean()
    kept = [checkpoint_id for checkpoint_id, _ in made if lists(steps, checkpoint_id)]
    assert kept == [1, 2, 3, 6, 7, 8]
    assert released(steps) == ()


def test_segments_that_retained_checkpoints_need_hide_nothing_that_can_be_deleted(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base serves the checkpoints to come, so the retained ones still need what it replaces."""
    monkeypatch.setattr("cairn.catalog.cleanup.snapshot.PLAN_ROWS", 4)
    epoch = steps.register()

    def commit_apart(*batches: int) -> None:
        for batch_id in batches:
            batch = steps.ref(epoch, batch_id)
            for subtask in (0, 1):
                steps.ack(batch, steps.begin(batch).checkpoint_id, subtask)

    def materialize(subtask: int, as_of: int, batch_id: int) -> None:
        batch = steps.ref(epoch, batch_id)
        steps.begin(batch)
        groups = range_of(subtask, 2, MAX_PARALLELISM)
        base = steps.base(batch, as_of, (groups.start, groups.end))
        steps.install(batch, base, subtask=subtask)

    commit_apart(*range(10))
    materialize(1, as_of=10, batch_id=10)
    commit_apart(*range(10, 14))
    materialize(0, as_of=14, batch_id=14)
    steps.clean()
    live = steps.sql(
        "SELECT checkpoint_id, subtasks FROM cairn.group_commits"
        " WHERE job_id = :job AND status = 'LIVE' ORDER BY checkpoint_id, subtasks"
    )
    assert live == [
        *((checkpoint_id, [0]) for checkpoint_id in range(1, 11)),
        *((checkpoint_id, [subtask]) for checkpoint_id in range(11, 15) for subtask in (0, 1)),
    ]


def released(steps: Steps) -> tuple[ReleasedCommit, ...]:
    return steps.run(lambda c: read_snapshot(c, steps.name)).commits


def place(steps: Steps, *handles: SegmentHandle) -> None:
    batch = steps.ref(1, 0)
    file: WrittenFile = replace(steps.intend(batch), size_bytes=len(handles) * SIZE_BYTES)
    steps.commit(
        batch,
        1,
        [
            Ack(
                subtask=0,
                attempt_id=str(uuid4()),
                task_attempt=1,
                input_rows=10,
                restore_ms=5,
                segments=handles,
            )
        ],
        file,
    )


@pytest.mark.parametrize("kind", [SegmentKind.OPERATOR, SegmentKind.CHANNEL])
@pytest.mark.parametrize("released", [None, 3])
def test_an_exclusive_segment_that_would_last_longer_is_refused(
    steps: Steps, kind: SegmentKind, released: Any
) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    handle = replace(steps.lists(1, 1, 0, 0), kind=kind, released_checkpoint=released)
    file = steps.intend(batch)
    with pytest.raises(IntegrityError, match="ck_placed_segments__exclusive_to_one"):
        steps.run(lambda c: place_segments(c, steps.job_id, [(file.file_id, 0, handle)]))


def test_a_subtask_has_one_segment_of_lists_in_a_checkpoint(steps: Steps) -> None:
    steps.begin(steps.ref(steps.register(parallelism=1), 0))
    with pytest.raises(RefusedError, match="one segment at each place"):
        place(steps, steps.lists(1, 1, 0, 0), steps.lists(1, 1, 0, SIZE_BYTES))


def test_channel_state_dies_with_its_attempt_and_is_not_replayed(steps: Steps) -> None:
    batch = steps.ref(steps.register(parallelism=1), 0)
    steps.begin(batch)
    channels = [
        replace(steps.lists(1, 1, 0, place * SIZE_BYTES), kind=SegmentKind.CHANNEL)
        for place in range(2)
    ]
    place(steps, *channels)
    assert steps.segments(1) == []
    steps.ack(batch, 1, 0, task_attempt=2)
    assert {status(steps, one.segment_id) for one in channels} == {"DEAD"}
