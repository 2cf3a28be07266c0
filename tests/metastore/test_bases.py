"""Installing bases: from which checkpoint on they count, and what they release."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

import pytest

from cairn.catalog.job.materializations import Replay, install, release_covered, replay_of
from cairn.catalog.job.segments import lineage_of
from cairn.errors import FencedError, ReplacedError
from cairn.keygroups import KeyGroupRange
from metastore.enums import SegmentKind
from tests.metastore.steps import SIZE_BYTES, Steps, acknowledging
from tests.metastore.watched import watching


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    made = Steps(shared_metastore_url, tmp_storage)
    made.register()
    return made


def confirmed(steps: Steps, batches: int) -> None:
    """Makes checkpoints 1 to `batches` confirmed and begins the next."""
    for batch_id in range(batches):
        steps.whole_batch(1, batch_id)
    steps.begin(steps.ref(1, batches))


def bases(steps: Steps) -> set[str]:
    rows = steps.sql(
        "SELECT segment_id FROM cairn.segments WHERE job_id = :job AND kind = 'keyed_full'"
    )
    return {str(segment_id) for (segment_id,) in rows}


def test_a_base_counts_from_the_next_checkpoint_on_and_replaces_the_changelog_there(
    steps: Steps,
) -> None:
    confirmed(steps, 2)
    batch = steps.ref(1, 2)
    before = {c: steps.segments(c) for c in (1, 2, 3)}
    low, high = (steps.base(batch, 2, key_groups) for key_groups in ((0, 4), (4, 8)))
    steps.install(batch, low)
    steps.install(batch, high, subtask=1)
    assert {c: steps.segments(c) for c in (1, 2, 3)} == before
    assert steps.segments(4) == [low[1].segment_id, high[1].segment_id]
    assert steps.file_facts(low[0]) == ("SEALED", 1, SIZE_BYTES)


def test_a_base_of_one_subtask_releases_its_own_changelog_only(steps: Steps) -> None:
    confirmed(steps, 2)
    first = steps.segments(1)
    base = steps.base(steps.ref(1, 2), 2, (0, 4))
    steps.install(steps.ref(1, 2), base)
    assert base[1].segment_id in steps.segments(4)
    assert len(steps.segments(4)) == 1 + 2, "the other subtask's changes of two batches stay"
    assert len(set(first) & set(steps.segments(4))) == 1


def test_a_base_releases_nothing_newer_than_the_state_it_holds(steps: Steps) -> None:
    confirmed(steps, 3)
    steps.install(steps.ref(1, 3), steps.base(steps.ref(1, 3), 2, (0, 8)))
    newest = set(steps.segments(3)) - set(steps.segments(2))
    assert newest <= set(steps.segments(5))
    assert len(steps.segments(5)) == 1 + len(newest)


def test_installing_again_after_a_lost_answer_changes_nothing(steps: Steps) -> None:
    confirmed(steps, 2)
    batch = steps.ref(1, 2)
    made = [steps.base(batch, 2, key_groups) for key_groups in ((0, 2), (2, 4))]
    steps.install(batch, *made)
    before = steps.dump()
    steps.install(batch, *made)
    assert steps.dump() == before
    steps.ack(batch, 3, 0, 1)
    steps.begin(steps.ref(1, 3))
    before = steps.dump()
    steps.install(batch, *made)
    assert steps.dump() == before, "not even once the next id is another"


def test_a_newer_base_releases_the_older_one(steps: Steps) -> None:
    confirmed(steps, 1)
    old = steps.base(steps.ref(1, 1), 1, (0, 4))
    steps.install(steps.ref(1, 1), old)
    steps.ack(steps.ref(1, 1), 2, 0, 1)
    steps.begin(steps.ref(1, 2))
    new = steps.base(steps.ref(1, 2), 2, (0, 4))
    steps.install(steps.ref(1, 2), new)
    assert old[1].segment_id in steps.segments(3)
    assert old[1].segment_id not in steps.segments(4)
    assert new[1].segment_id in steps.segments(4)


def test_two_attempts_that_install_the_same_state_leave_one_base(steps: Steps) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    one, two = (steps.base(batch, 1, (0, 4)) for _ in range(2))
    steps.install(batch, one)
    steps.install(batch, two)
    assert one[1].segment_id not in steps.segments(3)
    assert two[1].segment_id in steps.segments(3)
    assert steps.segments(2) == steps.segments(1), "the batch in progress sees neither"
    steps.ack(batch, 2, 0, 1)
    steps.begin(steps.ref(1, 2))
    steps.clean()
    assert steps.file_facts(one[0])[0] == "DELETED"
    assert steps.file_facts(two[0]) == ("SEALED", 1, SIZE_BYTES)


def test_a_base_below_a_newer_one_is_refused_and_changes_nothing(steps: Steps) -> None:
    """It is a zombie's, or a stream's that the maintenance has overtaken."""
    confirmed(steps, 3)
    zombie, batch = steps.ref(1, 2), steps.ref(1, 3)
    newer = steps.base(batch, 3, (0, 4))
    steps.install(batch, newer)
    older = steps.base(zombie, 2, (2, 8))
    with pytest.raises(ReplacedError, match="materialized as of checkpoint 3 meanwhile"):
        steps.install(zombie, older)
    assert [i for i in steps.segments(5) if i in bases(steps)] == [newer[1].segment_id]
    assert steps.file_facts(older[0])[0] == "WRITING"


def test_an_increment_on_bases_that_were_replaced_is_refused(steps: Steps) -> None:
    confirmed(steps, 3)
    batch = steps.ref(1, 3)
    steps.install(batch, steps.base(batch, 1, (0, 4)))
    found = replay(steps, 3, (0, 4))
    steps.install(batch, steps.base(batch, 2, (0, 4)))
    increment = steps.base(batch, 3, (0, 4), SegmentKind.KEYED_INCREMENT)
    with pytest.raises(ReplacedError, match="which an increment was made on"):
        steps.run(lambda c: install(c, batch, 0, [increment], found))
    again = replay(steps, 3, (0, 4))
    steps.run(lambda c: install(c, batch, 0, [increment], again))
    assert increment[1].segment_id in steps.segments(5)


def test_an_increment_in_place_of_one_that_was_replaced_is_refused(steps: Steps) -> None:
    """Else both would count: the copy of the older one would never be released."""
    confirmed(steps, 3)
    batch = steps.ref(1, 3)
    steps.install(batch, steps.base(batch, 1, (0, 4)))
    first = steps.base(batch, 2, (0, 4), SegmentKind.KEYED_INCREMENT)
    steps.run(
        lambda c: install(c, batch, 0, [first], replay_of(c, steps.job_id, 2, KeyGroupRange(0, 4)))
    )
    found = replay(steps, 3, (0, 4))
    steps.sql(
        "UPDATE cairn.placed_segments SET released_checkpoint = 5 WHERE segment_id = :id",
        id=first[1].segment_id,
    )
    second = steps.base(batch, 3, (0, 4), SegmentKind.KEYED_INCREMENT)
    with pytest.raises(ReplacedError, match=first[1].segment_id):
        steps.run(lambda c: install(c, batch, 0, [second], found))


def test_after_a_rescale_an_old_segment_stays_until_bases_cover_all_its_key_groups(
    steps: Steps,
) -> None:
    confirmed(steps, 1)
    [low, high] = steps.segments(1)
    epoch = steps.register(parallelism=4)
    batch = steps.ref(epoch, 1)
    steps.begin(batch)
    parts = [steps.base(batch, 1, (2 * i, 2 * i + 2)) for i in range(4)]
    visible = []
    for subtask, part in enumerate(parts):
        steps.install(batch, part, subtask=subtask)
        visible.append({low, high} & set(steps.segments(4)))
    assert visible == [{low, high}, {high}, {high}, set()]


def test_a_base_over_several_old_ranges_releases_all_of_them(steps: Steps) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    for subtask in (0, 1):
        steps.install(batch, steps.base(batch, 1, (4 * subtask, 4 * subtask + 4)), subtask=subtask)
    epoch = steps.register(parallelism=1)
    newer = steps.ref(epoch, 1)
    steps.begin(newer)
    whole = steps.base(newer, 1, (0, 8))
    steps.install(newer, whole)
    assert steps.segments(4) == [whole[1].segment_id]


def test_bases_of_different_states_release_only_what_the_older_one_holds(steps: Steps) -> None:
    """A changelog between two bases' states is part of the newer one's key groups only."""
    epoch = steps.register(parallelism=1)
    for batch_id in range(3):
        steps.whole_batch(epoch, batch_id)
    batch = steps.ref(epoch, 3)
    steps.begin(batch)
    [first, second, third] = steps.segments(3)
    old, new = steps.base(batch, 1, (0, 4)), steps.base(batch, 3, (4, 8))
    steps.install(batch, old)
    steps.install(batch, new)
    assert steps.segments(5) == [old[1].segment_id, second, third, new[1].segment_id]
    assert first not in steps.segments(5)


def test_a_fenced_run_installs_nothing(steps: Steps) -> None:
    confirmed(steps, 1)
    base = steps.base(steps.ref(1, 1), 1, (0, 4))
    steps.begin(steps.ref(steps.register(), 1))
    before = steps.dump()
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        steps.install(steps.ref(1, 1), base)
    assert steps.dump() == before


def test_a_base_in_a_condemned_file_is_refused_and_releases_nothing(steps: Steps) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    good, bad = steps.base(batch, 1, (0, 2)), steps.base(batch, 1, (2, 4))
    steps.sql(
        "UPDATE cairn.physical_files SET status = 'CONDEMNED' WHERE job_id = :job AND path = :path",
        path=steps.path(bad[0]),
    )
    before = steps.dump()
    with pytest.raises(FencedError, match="the physical file is CONDEMNED"):
        steps.install(batch, good, bad)
    assert steps.dump() == before


def test_a_base_made_by_a_run_that_was_replaced_outlives_it(steps: Steps) -> None:
    confirmed(steps, 1)
    base = steps.base(steps.ref(1, 1), 1, (0, 8))
    steps.install(steps.ref(1, 1), base)
    epoch = steps.register()
    assert steps.begin(steps.ref(epoch, 1)).checkpoint_id == 3
    assert steps.segments(3) == [base[1].segment_id]
    assert len(steps.segments(1)) == 2, "the parent of the replay is read as it was"


def test_a_batch_that_begins_while_a_base_is_installed_waits_and_then_has_it(
    steps: Steps,
) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    steps.ack(batch, 2, 0, 1)
    base = steps.base(batch, 1, (0, 4))
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            install(connection, batch, 0, [base])
            following = threads.submit(steps.begin, steps.ref(1, 2))
            steps.wait_until_blocked()
        assert following.result().checkpoint_id == 3
    assert base[1].segment_id in steps.segments(3)


def test_a_base_installed_while_a_group_commits_waits_for_it(steps: Steps) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    acks, file = steps.group(batch, 2, [0, 1])
    base = steps.base(batch, 1, (0, 4))
    with ThreadPoolExecutor() as threads:
        with steps.catalog.begin() as connection:
            acknowledging(batch, 2, acks, file)(connection)
            late = threads.submit(steps.install, batch, base)
            steps.wait_until_blocked()
        late.result()
    assert base[1].segment_id in steps.segments(3)
    assert len(steps.segments(2)) == 4


def test_a_chunk_of_another_size_releases_what_it_covers_with_its_siblings(steps: Steps) -> None:
    confirmed(steps, 1)
    batch = steps.ref(1, 1)
    steps.install(batch, *(steps.base(batch, 1, (i, i + 2)) for i in (0, 2)))
    other = [steps.base(batch, 1, key_groups) for key_groups in ((0, 3), (3, 4))]
    steps.install(batch, *other)
    here = [i for i in steps.segments(3) if i in bases(steps)]
    assert here == [handle.segment_id for _, handle in other]


def test_the_lineage_of_a_checkpoint_is_the_run_that_made_it_once_it_is_confirmed(
    steps: Steps,
) -> None:
    confirmed(steps, 1)
    [(run_id,)] = steps.sql("SELECT run_id FROM cairn.runs WHERE job_id = :job AND epoch = 1")
    assert steps.run(lambda c: lineage_of(c, steps.job_id, 1)) == str(run_id)
    assert steps.run(lambda c: lineage_of(c, steps.job_id, 2)) is None, "not confirmed"
    assert steps.run(lambda c: lineage_of(c, steps.job_id, 99)) is None


def replay(steps: Steps, checkpoint_id: int, key_groups: tuple[int, int]) -> Replay:
    return steps.run(
        lambda c: replay_of(c, steps.job_id, checkpoint_id, KeyGroupRange(*key_groups))
    )


def test_an_increment_releases_exactly_what_it_was_made_from(steps: Steps) -> None:
    confirmed(steps, 2)
    batch = steps.ref(1, 2)
    steps.install(batch, steps.base(batch, 1, (0, 4)))
    found = replay(steps, 2, (0, 4))
    assert found.is_based
    assert [handle.as_of_checkpoint for handle in found.changes] == [2]
    before = {checkpoint_id: steps.segments(checkpoint_id) for checkpoint_id in (1, 2, 3)}
    later = set(steps.segments(4))
    made = steps.base(batch, 2, (0, 4), SegmentKind.KEYED_INCREMENT)
    for _ in range(2):  # the second time after a lost answer
        steps.run(lambda c: install(c, batch, 0, [made], found))
    gone = {handle.segment_id for handle in found.changes}
    assert set(steps.segments(4)) == (later - gone) | {made[1].segment_id}
    assert {checkpoint_id: steps.segments(checkpoint_id) for checkpoint_id in before} == before
    again = replay(steps, 2, (0, 4))
    assert [handle.kind for handle in again.changes] == [SegmentKind.KEYED_INCREMENT]


def test_a_base_releases_the_increments_that_it_covers(steps: Steps) -> None:
    confirmed(steps, 2)
    batch = steps.ref(1, 2)
    steps.install(batch, steps.base(batch, 1, (0, 4)))
    found = replay(steps, 2, (0, 4))
    increment = steps.base(batch, 2, (0, 4), SegmentKind.KEYED_INCREMENT)
    steps.run(lambda c: install(c, batch, 0, [increment], found))
    base = steps.base(batch, 2, (0, 4))
    steps.install(batch, base)
    assert increment[1].segment_id not in steps.segments(4)
    assert base[1].segment_id in steps.segments(4)


def test_no_increment_where_bases_leave_a_gap_or_changes_reach_beyond(steps: Steps) -> None:
    confirmed(steps, 2)
    batch = steps.ref(1, 2)
    assert not replay(steps, 2, (0, 4)).is_based
    steps.install(batch, steps.base(batch, 1, (0, 2)))
    assert not replay(steps, 2, (0, 4)).is_based, "key groups 2 and 3 have no base"
    assert not replay(steps, 2, (0, 2)).is_based, "the changelog of 0 to 3 reaches beyond"
    steps.install(batch, steps.base(batch, 1, (2, 4)))
    assert replay(steps, 2, (0, 4)).is_based


def test_live_segments_stay_bounded_over_an_hour_of_batches(steps: Steps) -> None:
    """A batch every twenty seconds, an increment every minute, bases every ten minutes."""
    most = 0
    for batch_id in range(180):
        steps.whole_batch(1, batch_id)
        if batch_id % 3 != 2:
            continue
        batch = steps.ref(1, batch_id)
        is_full = batch_id % 30 == 2
        kind = SegmentKind.KEYED_FULL if is_full else SegmentKind.KEYED_INCREMENT
        for subtask, key_groups in enumerate([(0, 4), (4, 8)]):
            found = replay(steps, batch_id, key_groups)
            made = steps.base(batch, batch_id, key_groups, kind)
            work = partial(install, batch=batch, subtask=subtask, segments=[made])
            steps.run(partial(work, replaced=None if is_full else found))
        steps.clean()
        [[live]] = steps.sql(
            "SELECT count(*) FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'"
        )
        most = max(most, live)
    assert most <= 2 * (2 * 3 + 2 + 2), "changes since and before, bases, increments"


MANY_SEGMENTS = """
INSERT INTO cairn.placed_segments (
    segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
    entries, first_checkpoint, as_of_checkpoint, sequence_number
)
SELECT gen_random_uuid(), job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes,
    sha256, entries, first_checkpoint, as_of_checkpoint, number
FROM cairn.segments CROSS JOIN generate_series(1, 2000) AS number
WHERE job_id = :job AND first_checkpoint = 1
"""


def test_a_release_reads_the_segments_of_its_job_a_few_times_however_many_there_are(
    steps: Steps,
) -> None:
    confirmed(steps, 2)
    base = steps.base(steps.ref(1, 2), 2, (0, 4))
    steps.install(steps.ref(1, 2), base)
    steps.sql(MANY_SEGMENTS)
    new = [UUID(base[1].segment_id)]
    with steps.catalog.begin() as connection, watching() as seen:
        release_covered(connection, steps.job_id, new, 9)
    [statement] = seen
    [(released,)] = steps.sql(
        "SELECT count(*) FROM cairn.placed_segments WHERE job_id = :job AND released_checkpoint = 9"
    )
    assert released == 2000, "the segments of the base's own key groups"
    assert statement.rows <= 10 * released, "a few times, whatever plan there is"
