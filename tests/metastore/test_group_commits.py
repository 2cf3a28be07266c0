"""What a group commit says is one row, which reads as segments and acks, guarded as those were."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, update

from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from metastore.models import GroupCommit
from tests.metastore.rows import Rows
from tests.metastore.steps import MAX_PARALLELISM, SIZE_BYTES, Steps
from tests.metastore.test_row_guards import wait_until_blocked

SUBTASKS = 8


@pytest.fixture
def steps(shared_metastore_url: str, tmp_path: Path) -> Steps:
    return Steps(shared_metastore_url, f"file://{tmp_path}")


acks = st.lists(
    st.builds(
        lambda subtask, rows, late, times, segments: (subtask, rows, late, times, segments),
        st.integers(0, SUBTASKS - 1),
        st.integers(0, 5),
        st.integers(0, 2),
        st.lists(st.none() | st.integers(0, 9), max_size=2).map(tuple),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=SUBTASKS,
    unique_by=lambda one: one[0],
)


def acks_of(job: Steps, drawn: list[Any], *, with_lists: bool) -> list[Ack]:
    made, offset = [], 0
    for subtask, rows, late, times, number in drawn:
        segments = [
            replace(job.changelog(1, 1, subtask, offset + place), sequence_number=place)
            for place in range(number)
        ]
        segments += [job.lists(1, 1, subtask, offset + 9)] if with_lists else []
        offset += 10
        made.append(
            Ack(
                subtask=subtask,
                attempt_id=str(uuid4()),
                task_attempt=subtask + 1,
                input_rows=rows + late,
                restore_ms=rows,
                segments=tuple(segments),
                late_rows=late,
                max_event_ms=times,
            )
        )
    return made


def padded(times: tuple[int | None, ...], inputs: int) -> list[int | None]:
    return [*times, *[None] * (inputs - len(times))]


def handle_columns(subtask: int, handle: SegmentHandle) -> tuple[Any, ...]:
    return (
        subtask,
        handle.segment_id,
        handle.kind,
        handle.sequence_number,
        handle.offset,
        handle.size_bytes,
        handle.sha256,
        handle.key_groups.start,
        handle.key_groups.end,
        handle.first_checkpoint,
        handle.released_checkpoint,
    )


@given(drawn=acks, with_lists=st.booleans())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_group_reads_back_as_the_segments_and_acks_that_it_was_made_of(
    steps: Steps, drawn: list[Any], with_lists: bool
) -> None:
    job = replace(steps, name=f"job-{uuid4().hex[:8]}", parallelism={})
    batch = job.ref(job.register(SUBTASKS), 0)
    job.begin(batch)
    file = replace(job.intend(batch), size_bytes=100 * SIZE_BYTES)
    made = acks_of(job, drawn, with_lists=with_lists)
    job.commit(batch, 1, made, file)
    inputs = max(len(a.max_event_ms) for a in made)
    read = job.sql(
        "SELECT subtask, attempt_id::text, task_attempt, input_rows, restore_ms, late_rows,"
        " max_event_ms FROM cairn.subtask_acks WHERE job_id = :job ORDER BY subtask"
    )
    assert read == [
        (
            a.subtask,
            a.attempt_id,
            a.task_attempt,
            a.input_rows,
            a.restore_ms,
            a.late_rows,
            padded(a.max_event_ms, inputs),
        )
        for a in sorted(made, key=lambda ack: ack.subtask)
    ]
    read_segments = job.sql(
        "SELECT subtask, segment_id::text, kind, sequence_number, offset_bytes, size_bytes, sha256,"
        " lower(key_groups), upper(key_groups), first_checkpoint, released_checkpoint"
        " FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'"
    )
    assert sorted(read_segments) == sorted(
        handle_columns(a.subtask, s) for a in made for s in a.segments
    )
    assert job.file_facts(file)[1:] == (len(read_segments), len(read_segments) * SIZE_BYTES)


STATS = UploadStats(
    segments=12,
    size_bytes=1200,
    requests=1,
    retries=0,
    hedges=0,
    hedge_wins=0,
    failed_attempts=0,
    winning_attempt=1,
    failed_uploads=0,
    queue_size=0,
    wait_ms=1,
    upload_ms=9,
    longest_request_ms=9,
)


def test_a_group_commit_of_twelve_subtasks_is_two_rows_and_two_kilobytes(steps: Steps) -> None:
    batch = steps.ref(steps.register(48, max_parallelism=512), 0)
    steps.begin(batch)
    file = replace(steps.intend(batch), size_bytes=12 * SIZE_BYTES)
    one = steps.changelog(1, 1, 0, 0)
    acks = [
        Ack(
            subtask=subtask,
            attempt_id=str(uuid4()),
            task_attempt=1000 + subtask,
            input_rows=100,
            restore_ms=7,
            segments=(
                replace(
                    one,
                    segment_id=str(uuid4()),
                    offset=subtask * SIZE_BYTES,
                    key_groups=range_of(subtask, 48, 512),
                    sha256=uuid4().hex * 2,
                ),
            ),
        )
        for subtask in range(12)
    ]
    commit = partial(acknowledge, batch=batch, checkpoint_id=1, tm_id="1-abcdef012345", acks=acks)
    steps.run(partial(commit, files={"": file}, uploads=[STATS]))
    sizes = steps.sql(
        "SELECT pg_column_size(t.*) FROM cairn.group_commits t WHERE job_id = :job"
        " UNION ALL SELECT pg_column_size(t.*) FROM cairn.physical_files t WHERE job_id = :job"
    )
    assert len(sizes) == 2
    assert sum(size for (size,) in sizes) <= 2048, sizes


def test_an_ack_without_segments_is_not_given_twice(rows: Rows) -> None:
    rows.checkpoint(1)
    rows.ack(1, 0, input_rows=1)
    with pytest.raises(RefusedError, match="replaces the attempt that was acknowledged before"):
        rows.ack(1, 0, input_rows=1)


def test_a_second_ack_of_a_subtask_is_refused_whoever_adds_it(rows: Rows) -> None:
    rows.checkpoint(1)
    commit_id = rows.packed(rows.file(), 1, 0, 1)
    with pytest.raises(RefusedError, match="replaces the attempt that was acknowledged before"):
        rows.packed(rows.file(), 1, 1)
    rows.execute(
        update(GroupCommit).where(GroupCommit.commit_id == commit_id).values(replaced_subtasks=[1])
    )
    rows.packed(rows.file(), 1, 1)


def test_two_acks_of_a_subtask_at_once_leave_one(rows: Rows) -> None:
    rows.checkpoint(1)
    first, second = rows.file(), rows.file()
    with ThreadPoolExecutor() as threads, rows.catalog.begin() as connection:
        connection.execute(insert(GroupCommit).values(rows.packed_columns(first, 1, 0)))
        late = threads.submit(rows.packed, second, 1, 0)
        wait_until_blocked(rows)
        connection.commit()
        with pytest.raises(RefusedError, match="replaces the attempt"):
            late.result()


def test_a_replaced_subtask_stays_replaced(rows: Rows) -> None:
    rows.checkpoint(1)
    which = GroupCommit.commit_id == rows.packed(rows.file(), 1, 0)
    rows.execute(update(GroupCommit).where(which).values(replaced_subtasks=[0]))
    with pytest.raises(RefusedError, match="replaced_subtasks of a row never change"):
        rows.execute(update(GroupCommit).where(which).values(replaced_subtasks=[]))


@pytest.mark.parametrize("status", ["DEAD", "ABORTED"])
def test_live_counters_follow_replacing_and_dying(rows: Rows, status: str) -> None:
    rows.checkpoint(1)
    file_id = rows.file()
    which = GroupCommit.commit_id == rows.packed(file_id, 1, 0, 1)
    assert rows.counters(file_id) == (2, 200)
    rows.execute(update(GroupCommit).where(which).values(replaced_subtasks=[1]))
    assert rows.counters(file_id) == (1, 100)
    rows.set_status(GroupCommit, which, status)
    assert rows.counters(file_id) == (0, 0)


def test_no_group_commit_is_added_to_a_condemned_file(rows: Rows) -> None:
    rows.checkpoint(1)
    with pytest.raises(RefusedError, match="no segment can be made"):
        rows.packed(rows.file("CONDEMNED"), 1, 0)


@pytest.mark.parametrize("subtask", [-1, 2])
def test_an_ack_of_a_subtask_that_the_checkpoint_lacks_is_refused(rows: Rows, subtask: int) -> None:
    rows.checkpoint(1)
    with pytest.raises(RefusedError, match="subtasks of its checkpoint only, 0 to 1"):
        rows.ack(1, subtask, input_rows=1)


@pytest.mark.parametrize("subtask", [-1, 2])
def test_a_segment_of_a_subtask_that_the_checkpoint_lacks_is_refused(
    rows: Rows, subtask: int
) -> None:
    rows.checkpoint(1)
    columns = rows.packed_columns(rows.file(), 1, 0) | {"segment_subtasks": [subtask]}
    with pytest.raises(RefusedError, match="subtasks of its checkpoint only, 0 to 1"):
        rows.execute(insert(GroupCommit).values(columns))


def test_an_acknowledgement_that_names_another_jobs_file_is_refused_whole(steps: Steps) -> None:
    other = replace(steps, name=f"other-{uuid4().hex[:8]}", parallelism={})
    theirs = other.ref(other.register(), 0)
    other.begin(theirs)
    _, file = other.group(theirs, 1, [0])
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, _ = steps.group(batch, 1, [0])
    with pytest.raises(RefusedError, match="segments are in a file of their own job"):
        steps.commit(batch, 1, acks, file)
    assert steps.acked(1) == {}
    assert other.file_facts(file) == ("WRITING", 0, 0)


def test_a_segment_that_is_not_of_its_subtasks_key_groups_is_not_packed(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    [ack], file = steps.group(batch, 1, [0])
    wide = replace(ack.segments[0], key_groups=KeyGroupRange(0, MAX_PARALLELISM))
    with pytest.raises(RefusedError, match="a segment of subtask 0 has other key groups"):
        steps.commit(batch, 1, [replace(ack, segments=(wide,))], file)


def test_an_executor_that_is_not_the_first_begins_a_batch_while_the_job_is_locked(
    steps: Steps,
) -> None:
    batch = steps.ref(steps.register(), 0)
    begun = steps.begin(batch)
    with ThreadPoolExecutor() as threads, steps.catalog.begin() as connection:
        lock_job(connection, steps.job_id, exclusive=True)
        again = threads.submit(steps.begin, batch).result(timeout=5)
    assert again.checkpoint_id == begun.checkpoint_id


def test_who_waits_for_the_job_is_not_passed_by_those_who_share_it(steps: Steps) -> None:
    steps.register()
    order: list[str] = []

    def hold(name: str, *, exclusive: bool) -> None:
        with steps.catalog.begin() as connection:
            lock_job(connection, steps.job_id, exclusive=exclusive)
            order.append(name)

    with steps.catalog.begin() as connection:
        lock_job(connection, steps.job_id, exclusive=False)
        maintenance = threading.Thread(
            target=hold, args=["maintenance"], kwargs={"exclusive": True}
        )
        maintenance.start()
        steps.wait_until_blocked()
        executor = threading.Thread(target=hold, args=["executor"], kwargs={"exclusive": False})
        executor.start()
        executor.join(timeout=0.2)
        assert order == [], "the executor came later than the maintenance that waits"
    maintenance.join()
    executor.join()
    assert order == ["maintenance", "executor"]


def test_the_parent_comes_with_the_acks_of_the_executors_subtasks_only(steps: Steps) -> None:
    epoch = steps.register(4)
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    steps.ack(batch, 1, 0, 1)
    steps.ack(batch, 1, 2, 3)
    following = steps.ref(epoch, 1)
    start = steps.run(lambda c: begin_batch(c, following, subtasks=[2]))
    assert start.parent is not None
    assert set(start.parent.acks) == {2, 3}, "those of the group commit that has subtask 2"


def test_acks_of_a_group_with_several_files_come_with_all_their_segments(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    files, acks = {}, []
    for subtask in (0, 1):
        [ack], file = steps.group(batch, 1, [subtask])
        files[steps.path(file)] = file
        of_file = tuple(replace(one, path=steps.path(file)) for one in ack.segments)
        acks.append(replace(ack, segments=of_file))
    commit = partial(acknowledge, batch=batch, checkpoint_id=1, tm_id="tm", acks=acks, files=files)
    steps.run(commit)
    whole = steps.begin(steps.ref(epoch, 1)).parent
    own = steps.run(lambda c: begin_batch(c, steps.ref(epoch, 1), subtasks=[0])).parent
    assert whole is not None
    assert own is not None
    assert own.acks == whole.acks


def test_a_statistic_that_is_too_large_refuses_no_ack(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    [ack], file = steps.group(batch, 1, [0])
    huge = replace(ack, input_rows=2**40, restore_ms=2**40)
    commit = partial(acknowledge, batch=batch, checkpoint_id=1, tm_id="tm", files={"": file})
    slow = replace(STATS, wait_ms=2**40)
    steps.run(lambda c: commit(c, acks=[huge], uploads=[slow, slow]))
    assert steps.sql("SELECT input_rows FROM cairn.subtask_acks WHERE job_id = :job") == [(2**40,)]
