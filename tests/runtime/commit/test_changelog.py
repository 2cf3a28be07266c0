"""The changelog of an attempt: its segments, its places, uploads and truncation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError, StorageError
from cairn.runtime.commit.changelog import SequenceNumber, _by_key_group
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from tests.runtime.commit.logs import Query
from tests.runtime.commit.one_upload import FaultyStore, fails, waits
from tests.runtime.commit.uploading import until
from tests.runtime.file_rows import objects, rows
from tests.runtime.processing.operators import Committed
from tests.runtime.tasks import new_run


@pytest.fixture
def query(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    options: dict[str, object] = {"cairn.changelog.dstl.upload.retry-policy": "none"}
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), options=options)
    return Query(plan)


def place(number: int, checkpoint_id: int = 1) -> SequenceNumber:
    return SequenceNumber(checkpoint_id, number)


def test_a_segment_ends_when_it_is_asked_for_and_not_before(query: Query) -> None:
    with query.batch(0) as work:
        work.add()
        assert work.log.last_appended() == place(0), "nothing was appended"
        work.add(b"a")
        work.add(b"b")
        assert query.spooled() == []
        assert work.log.last_appended() == work.log.last_appended() == place(1)
        work.add(b"c")
        assert work.log.last_appended() == place(2)
        assert query.spooled() == [(1, 0), (1, 1)]
        work.commit()
    assert query.replayed(1) == [[b"a", b"b"], [b"c"]]


def test_persist_gives_what_comes_after_a_place_and_drops_nothing(query: Query) -> None:
    """The checkpoint may still be declined, so what comes before the place stays (FLIP-158)."""
    with query.batch(0) as work:
        for word in (b"a", b"b", b"c"):
            work.add(word)
            work.log.last_appended()

        def after(number: int) -> list[int]:
            return [part.spec.sequence_number for part in work.log.persist(after=place(number))]

        assert [after(n) for n in (3, 1, 2, 0)] == [[], [1, 2], [2], [0, 1, 2]]
        assert len(work.log.persist(after=place(7, checkpoint_id=0))) == 3


def test_what_was_uploaded_early_is_not_uploaded_again(query: Query) -> None:
    store = FaultyStore(query.plan.storage)
    with query.batch(0, store=store) as work:
        work.add(b"a")
        work.log.preempt()
        work.log.preempt()
        work.add(b"b")
        first, second = work.log.persist(after=place(0))
        assert first.uploaded is not None
        assert store.written == [first.uploaded.path]
        assert second.uploaded is None
        assert work.log.persist(after=place(0)) == (first, second)
        work.commit()
    assert len(store.written) == 2
    assert query.replayed(1) == [[b"a"], [b"b"]]
    assert [handle.path for handle in query.handles(1)] == store.written
    sealed = "SELECT status, live_segments FROM cairn.physical_files"
    assert rows(query.plan, sealed) == [("SEALED", 1)] * 2
    assert rows(
        query.plan,
        "SELECT files, upload_batch_sizes, number_of_upload_requests"
        " FROM cairn.v_changelog_storage",
    ) == [(2, 2, 2)]


def test_an_upload_under_way_is_waited_for_and_one_that_waits_is_left_to_the_commit(
    query: Query, gate: threading.Event
) -> None:
    with ThreadPoolExecutor(1) as early:
        store = FaultyStore(query.plan.storage, waits(gate))
        with query.batch(0, store=store, early=early) as work:
            for word in (b"a", b"b"):
                work.add(word)
                work.log.preempt()
            until(lambda: len(store.written) == 1)
            work.add(b"c")
            with ThreadPoolExecutor(1) as threads:
                persisting = threads.submit(work.log.persist, place(0))
                until(lambda: query.spooled() == [(1, 0), (1, 1), (1, 2)])
                assert not persisting.done()
                gate.set()
                assert [part.uploaded is None for part in persisting.result()] == [
                    False,
                    True,
                    True,
                ]
            work.commit()
    assert len(store.written) == 2, "b and c share a file"
    assert query.replayed(1) == [[b"a"], [b"b"], [b"c"]]


def test_a_segment_whose_early_upload_failed_is_written_by_the_commit(query: Query) -> None:
    store = FaultyStore(query.plan.storage, fails(StorageError("lost")))
    with query.batch(0, store=store) as work:
        work.add(b"a")
        work.log.preempt()
        work.add(b"b")
        work.commit()
    assert len(store.written) == 2
    assert query.replayed(1) == [[b"a"], [b"b"]]
    statuses = "SELECT status, live_segments FROM cairn.physical_files ORDER BY created_at"
    assert rows(query.plan, statuses) == [("WRITING", 0), ("SEALED", 2)]
    assert rows(query.plan, "SELECT failed_uploads FROM cairn.group_commits") == [1]


def test_an_early_upload_that_can_never_work_fails_the_task(query: Query) -> None:
    store = FaultyStore(query.plan.storage, fails(BadInputError("no such bucket")))
    with query.batch(0, store=store) as work:
        work.add(b"a")
        work.log.preempt()
        with pytest.raises(BadInputError, match="no such bucket"):
            work.commit()
    assert rows(query.plan, "SELECT 1 FROM cairn.subtask_acks") == []


def test_a_task_that_ends_begins_no_more_uploads(query: Query, gate: threading.Event) -> None:
    others = threading.active_count()
    store = FaultyStore(query.plan.storage, waits(gate))
    with query.batch(0, store=store, early=ThreadPoolExecutor(1)) as work:
        for word in (b"a", b"b"):
            work.add(word)
            work.log.preempt()
        until(lambda: len(store.written) == 1)
    gate.set()
    until(lambda: threading.active_count() <= others)
    assert len(store.written) == 1


def test_truncating_removes_older_segments_of_the_subtask_from_the_spool_only(query: Query) -> None:
    for subtask in (0, 1):
        with query.batch(0, subtask=subtask) as work:
            work.add(b"lost")
            work.log.last_appended()
        with query.batch(0, subtask=subtask) as work:
            work.add(b"a")
            work.log.preempt()
            work.add(b"b")
            work.commit()
    saved = objects(query.plan)
    assert query.spooled(0) == query.spooled(1) == [(1, 0), (1, 0), (1, 1)]
    with query.batch(1) as work:
        assert (query.spooled(0), len(query.spooled(1))) == ([], 3)
        work.add(b"c")
        work.log.last_appended()
        work.log.truncate(before=place(1, checkpoint_id=2))
        assert query.spooled(0) == [(2, 0)], "its checkpoint is not whole yet"
        work.commit()
    assert saved.items() <= objects(query.plan).items()


def test_the_spool_serves_the_next_batch_and_storage_does_where_it_is_gone(query: Query) -> None:
    with query.batch(0) as work:
        work.add(b"a")
        work.log.preempt()
        work.add(b"b")
        work.commit()
    with query.batch(0, subtask=1) as work:
        work.commit()
    root = Path(query.plan.storage.removeprefix("file://"))
    files = sorted(root.rglob("*.seg"))
    hidden = [file.rename(file.with_suffix(".hidden")) for file in files]
    with query.batch(1) as work:
        assert query.local() == [b"a", b"b"]
        work.add(b"c")
        work.log.preempt()
        for file in hidden:
            file.rename(file.with_suffix(".seg"))
        work.commit()
    with query.batch(1, subtask=1) as work:
        work.commit()
    for file in query.manager.spool_directory(0).iterdir():
        file.unlink()
    with query.batch(2):
        assert query.local() == [b"a", b"b", b"c"]


changes_of_one = st.tuples(
    st.sampled_from([PUT, DELETE, DELETE_PREFIX]),
    st.sampled_from([b"\0\0a", b"\0\0ab", b"\0\1a", b"\0\1b", b"\1\0a"]),
    st.binary(max_size=2),
)


@given(appended=st.lists(st.lists(changes_of_one, min_size=1, max_size=5), min_size=1, max_size=4))
def test_changes_appended_to_one_segment_are_applied_in_that_order(
    appended: Sequence[Sequence[tuple[int, bytes, bytes]]],
) -> None:
    one_by_one, as_part = Committed(), Committed()
    parts = []
    for rows_of_call in appended:
        ordered = sorted(rows_of_call, key=lambda row: row[1])
        values = [value if op == PUT else None for op, _, value in ordered]
        parts.append(Changes([row[0] for row in ordered], [row[1] for row in ordered], values))
        one_by_one.apply(parts[-1])
    part = _by_key_group(parts)
    as_part.apply(part)
    assert as_part.entries == one_by_one.entries
    assert [key[:2] for key in part.keys] == sorted(key[:2] for key in part.keys)
