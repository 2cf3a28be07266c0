"""What the guards in SQL refuse of files, segments and deletions, and the counters they keep."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Uuid, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.exc import DBAPIError, IntegrityError

from cairn.errors import RefusedError
from metastore.enums import FileStatus, SegmentKind
from metastore.models import Deletion, Directory, Job, PhysicalFile, PlacedSegment
from tests.metastore.rows import Rows


@pytest.mark.parametrize("status", ["CONDEMNED", "DELETED"])
def test_no_segment_is_made_in_a_condemned_file(rows: Rows, status: str) -> None:
    file_id = rows.file(status)
    with pytest.raises(RefusedError, match=f"no segment can be made .*{status}"):
        rows.segment(file_id)
    assert rows.execute(select(PlacedSegment.segment_id).where(rows.own(PlacedSegment))) == []


def test_no_segment_is_made_in_another_jobs_file(rows: Rows) -> None:
    other = Rows(rows.url, job_id=f"other-{uuid4().hex[:8]}")
    other.job()
    theirs = other.file()
    with pytest.raises(RefusedError, match=f"a file of their own job .*{theirs}") as no:
        rows.segment(theirs)
    assert sqlstate(no.value) == "CA003"
    assert other.counters(theirs) == (0, 0)


def test_file_with_a_live_segment_is_not_condemned(rows: Rows) -> None:
    file_id = rows.file()
    segment_id = rows.segment(file_id)
    which = PhysicalFile.file_id == file_id
    with pytest.raises(RefusedError, match=f"cannot be condemned .*{file_id}.*1 live segments"):
        rows.set_status(PhysicalFile, which, "CONDEMNED")
    rows.set_status(PlacedSegment, PlacedSegment.segment_id == segment_id, "DEAD")
    rows.set_status(PhysicalFile, which, "CONDEMNED")


def test_segment_made_while_its_file_is_being_condemned_is_refused(rows: Rows) -> None:
    file_id = rows.file()
    condemn = update(PhysicalFile).where(rows.own(PhysicalFile)).values(status="CONDEMNED")
    with ThreadPoolExecutor() as threads:
        with rows.catalog.begin() as connection:
            connection.execute(condemn)
            late = threads.submit(rows.segment, file_id)
            wait_until_blocked(rows)
        with pytest.raises(RefusedError, match="no segment can be made"):
            late.result()
    assert rows.counters(file_id) == (0, 0)


def test_condemning_a_file_while_a_segment_is_made_in_it_is_refused(rows: Rows) -> None:
    new = segment_row(uuid4(), 0, 100, rows, [rows.file()])
    with ThreadPoolExecutor() as threads:
        with rows.catalog.begin() as connection:
            connection.execute(insert(PlacedSegment).values(new))
            late = threads.submit(
                rows.execute,
                update(PhysicalFile).where(rows.own(PhysicalFile)).values(status="CONDEMNED"),
            )
            wait_until_blocked(rows)
        with pytest.raises(RefusedError, match="cannot be condemned"):
            late.result()


def wait_until_blocked(rows: Rows) -> None:
    waiting = text(
        "SELECT 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    give_up = time.monotonic() + 10
    while not rows.execute(waiting):
        assert time.monotonic() < give_up, "nobody waits for a lock"
        time.sleep(0.01)


def test_file_is_not_sealed_without_a_size(rows: Rows) -> None:
    which = PhysicalFile.file_id == rows.file("WRITING")
    with pytest.raises(RefusedError, match="a sealed file has a size"):
        rows.set_status(PhysicalFile, which, "SEALED")


@pytest.mark.parametrize(
    ("status", "size_bytes", "is_allowed"),
    [
        ("SEALED", 1001, True),
        ("SEALED", 999, False),
        ("SEALED", None, False),
        ("CONDEMNED", 1001, False),
        ("DELETED", 1001, False),
    ],
)
def test_only_a_sealed_file_grows_and_none_shrinks(
    rows: Rows, status: str, size_bytes: int | None, is_allowed: bool
) -> None:
    rows.file(status, size_bytes=1000)
    resize = update(PhysicalFile).where(rows.own(PhysicalFile)).values(size_bytes=size_bytes)
    if is_allowed:
        rows.execute(resize)
    else:
        with pytest.raises(RefusedError, match="size"):
            rows.execute(resize)


def test_a_file_that_grows_while_it_is_condemned_is_refused(rows: Rows) -> None:
    rows.file(size_bytes=1000)
    grow = update(PhysicalFile).where(rows.own(PhysicalFile)).values(size_bytes=2000)
    with pytest.raises(RefusedError, match="size_bytes"):
        rows.execute(grow.values(status=FileStatus.CONDEMNED))


@pytest.mark.parametrize("status", ["WRITING", "SEALED", "CONDEMNED"])
def test_a_directory_with_a_file_is_not_deleted(rows: Rows, status: str) -> None:
    path = rows.directory("UNCLAIMED")
    here, gone = (f"{path}/{uuid4()}.seg" for _ in range(2))
    rows.file("DELETED", path=gone)
    rows.file(path=f"{path}-2/{uuid4()}.seg")
    rows.file(status, path=here)
    with pytest.raises(RefusedError, match=f"one with a file .*{here}") as no:
        rows.set_status(Directory, Directory.path == path, "DELETED")
    assert sqlstate(no.value) == "CA003"


def test_job_retains_no_fewer_checkpoints_than_a_restart_may_need(rows: Rows) -> None:
    retain = update(Job).where(rows.own(Job))
    rows.execute(retain.values(num_retained=2))
    with pytest.raises(IntegrityError, match="ck_jobs__num_retained_enough"):
        rows.execute(retain.values(num_retained=1))


def test_segment_is_not_released_before_its_first_checkpoint(rows: Rows) -> None:
    file_id = rows.file()
    rows.segment(file_id, first_checkpoint=5, released_checkpoint=5)
    with pytest.raises(IntegrityError, match="ck_placed_segments__released_after_first"):
        rows.segment(file_id, first_checkpoint=5, released_checkpoint=4)


def test_live_counters_cannot_be_set_by_hand(rows: Rows) -> None:
    rows.file()
    with pytest.raises(RefusedError, match="live counters follow the segments"):
        rows.execute(
            update(PhysicalFile).where(rows.own(PhysicalFile)).values(live_bytes=0, live_segments=5)
        )


def test_counting_another_segment_of_a_file_writes_none_of_its_indexes(rows: Rows) -> None:
    # Where a page has no room left, the row goes to another one, and no update is heap-only. Of ten
    # files most are on a page with room.
    assert any(heap_only_updates(rows, counted_file(rows)) for _ in range(10))


def counted_file(rows: Rows) -> UUID:
    file_id = rows.file()
    rows.segment(file_id)
    return file_id


def heap_only_updates(rows: Rows, file_id: UUID) -> int:
    counting = update(PhysicalFile).where(PhysicalFile.file_id == file_id).values(live_segments=2)
    # The session's counters still hold what its earlier transactions did within the last second.
    heap_only = text(
        "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'physical_files'"
    )
    with rows.catalog.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        before = connection.scalar(heap_only) or 0
        connection.execute(counting)
        return (connection.scalar(heap_only) or 0) - before


@pytest.mark.parametrize("status", ["WRITING", "SEALED", "DELETED"])
def test_deletion_of_a_file_that_is_not_condemned_is_refused(rows: Rows, status: str) -> None:
    file_id = rows.file(status)
    with pytest.raises(RefusedError, match=f"only a condemned file .*{file_id}.*{status}") as no:
        rows.deletion(file_id)
    assert sqlstate(no.value) == "CA003"
    assert rows.execute(select(Deletion.file_id).where(rows.own(Deletion))) == []


def test_deletion_of_another_path_than_the_files_is_refused(rows: Rows) -> None:
    precious = rows.file()
    with pytest.raises(RefusedError, match=r"by its own job and path .*no such file"):
        rows.deletion(rows.file("CONDEMNED"), path=rows.path(precious))


def test_statement_that_condemns_a_file_may_ask_for_its_deletion(rows: Rows) -> None:
    rows.file()
    condemned = (
        update(PhysicalFile)
        .where(rows.own(PhysicalFile))
        .values(status=FileStatus.CONDEMNED)
        .returning(PhysicalFile.file_id, PhysicalFile.job_id, PhysicalFile.path)
        .cte("condemned")
    )
    run_id = literal(rows.maintenance_run(), Uuid())
    columns = [Deletion.file_id, Deletion.job_id, Deletion.path, Deletion.maintenance_run_id]
    rows.execute(insert(Deletion).from_select(columns, select(condemned, run_id)))
    assert len(rows.execute(select(Deletion.file_id).where(rows.own(Deletion)))) == 1


def sqlstate(refused: RefusedError) -> str:
    assert isinstance(refused.__cause__, DBAPIError)
    return str(getattr(refused.__cause__.orig, "pgcode", None))


def test_done_deletion_stays_done(rows: Rows) -> None:
    rows.deletion(rows.file("CONDEMNED"))
    rows.execute(update(Deletion).where(rows.own(Deletion)).values(done_at=text("now()")))
    with pytest.raises(RefusedError, match="a deletion that is done stays done"):
        rows.execute(update(Deletion).where(rows.own(Deletion)).values(done_at=None))


FILES = 3


# Either segments to make, as (file, size), or positions in the list of all segments to kill.
MAKE = st.lists(st.tuples(st.integers(0, FILES - 1), st.integers(1, 2**40)), min_size=1, max_size=6)


KILL = st.sets(st.integers(0, 30), max_size=8)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.one_of(MAKE, KILL), max_size=8))
def test_live_counters_are_exact_after_any_inserts_and_releases(
    rows: Rows, steps: list[list[tuple[int, int]] | set[int]]
) -> None:
    files = [rows.file() for _ in range(FILES)]
    made: list[tuple[UUID, int, int]] = []
    dead: set[UUID] = set()
    for step in steps:
        if isinstance(step, list):
            new = [(uuid4(), file, size) for file, size in step]
            rows.execute(insert(PlacedSegment).values([segment_row(*s, rows, files) for s in new]))
            made += new
        else:
            chosen = [made[i][0] for i in step if i < len(made)]
            rows.set_status(PlacedSegment, PlacedSegment.segment_id.in_(chosen), "DEAD")
            dead.update(chosen)
        for number, file_id in enumerate(files):
            live = [size for s, file, size in made if file == number and s not in dead]
            assert rows.counters(file_id) == (len(live), sum(live))


def segment_row(
    segment_id: UUID, file: int, size_bytes: int, rows: Rows, files: list[UUID]
) -> dict[str, Any]:
    return {
        "segment_id": segment_id,
        "job_id": rows.job_id,
        "file_id": files[file],
        "kind": SegmentKind.KEYED_FULL,
        "subtask": 0,
        "key_groups": Range(0, 4),
        "offset_bytes": 0,
        "size_bytes": size_bytes,
        "sha256": "00",
        "entries": 1,
        "first_checkpoint": 1,
        "as_of_checkpoint": 1,
    }
