"""What a retained checkpoint needs stays, and nothing goes backwards, whoever asks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.exc import DBAPIError

from cairn.errors import RefusedError
from metastore.enums import SegmentKind
from metastore.models import Checkpoint, Job, PlacedSegment, Run
from tests.metastore.rows import Rows

RETAINED = 3
"""Of the job that `rows` makes."""


def refused(rows: Rows, statement: Any, code: str, match: str) -> None:
    with pytest.raises(RefusedError, match=match) as no:
        rows.execute(statement)
    assert isinstance(no.value.__cause__, DBAPIError)
    assert getattr(no.value.__cause__.orig, "pgcode", None) == code


def own(rows: Rows, change: str) -> Any:
    """Returns a statement on the job's rows."""
    table, _, values = change.partition(" ")
    statement = f"UPDATE cairn.{table} SET {values} AND job_id = :job"  # noqa: S608 - fixed texts
    return text(statement).bindparams(job=rows.job_id)


def base(rows: Rows, first: int, as_of: int, key_groups: tuple[int, int] = (0, 8)) -> UUID:
    """Makes a base that is part of all checkpoints from `first` on."""
    segment_id = rows.file()  # of the same id as its file
    rows.execute(
        insert(PlacedSegment).values(
            segment_id=segment_id,
            job_id=rows.job_id,
            file_id=segment_id,
            kind=SegmentKind.KEYED_FULL,
            subtask=0,
            key_groups=Range(*key_groups),
            offset_bytes=0,
            size_bytes=100,
            sha256="00",
            entries=1,
            first_checkpoint=first,
            as_of_checkpoint=as_of,
        )
    )
    return segment_id


def committed(rows: Rows, *checkpoint_ids: int) -> None:
    """Makes confirmed checkpoints with a group commit each."""
    for checkpoint_id in checkpoint_ids:
        rows.checkpoint(checkpoint_id)
        rows.packed(rows.file(), checkpoint_id, 0, 1)
        rows.set_status(Checkpoint, Checkpoint.checkpoint_id == checkpoint_id, "COMPLETED")
        rows.set_status(Checkpoint, Checkpoint.checkpoint_id == checkpoint_id, "CONFIRMED")


# ------------------------------------------------------------------ placed segments


@pytest.mark.parametrize(
    ("released", "may_die"), [(None, False), (2, True), (3, False), (4, False), (9, False)]
)
def test_a_segment_that_a_retained_checkpoint_or_one_to_come_needs_does_not_die(
    rows: Rows, released: int | None, may_die: bool
) -> None:
    rows.checkpoint(1, "SUBSUMED")
    rows.checkpoint(2, "CONFIRMED")
    rows.segment(rows.file(), first_checkpoint=1, released_checkpoint=released)
    die = own(rows, "placed_segments status = 'DEAD' WHERE true")
    if may_die:
        rows.execute(die)
    else:
        refused(rows, die, "CA009", "one that a retained checkpoint or one to come needs")


@pytest.mark.parametrize("status", ["IN_PROGRESS", "COMPLETED", "CONFIRMED"])
def test_whatever_has_not_ended_keeps_its_segments(rows: Rows, status: str) -> None:
    rows.checkpoint(5, status)
    rows.segment(rows.file(), first_checkpoint=1, released_checkpoint=6)
    die = own(rows, "placed_segments status = 'DEAD' WHERE true")
    refused(rows, die, "CA009", f"needs cannot die .*job id {rows.job_id}")


def test_of_a_statement_that_kills_many_segments_one_that_is_needed_stops_all(rows: Rows) -> None:
    other = Rows(rows.url, job_id="other-00000001")
    other.job()
    other.segment(other.file(), first_checkpoint=1, released_checkpoint=1)
    rows.checkpoint(2, "CONFIRMED")
    for released in (1, 2, 3):
        rows.segment(rows.file(), first_checkpoint=1, released_checkpoint=released)
    refused(rows, text("UPDATE cairn.placed_segments SET status = 'DEAD'"), "CA009", "needs")


def test_a_segment_is_released_once_and_from_the_next_checkpoint_on(rows: Rows) -> None:
    rows.execute(update(Job).where(rows.own(Job)).values(next_checkpoint_id=7))
    rows.segment(rows.file(), first_checkpoint=1)
    for released in (1, 6):
        release = own(rows, f"placed_segments released_checkpoint = {released} WHERE true")
        refused(rows, release, "CA009", "a segment is released once, and from the next checkpoint")
    rows.execute(own(rows, "placed_segments released_checkpoint = 7 WHERE true"))
    for again in ("8", "6", "NULL"):
        release = own(rows, f"placed_segments released_checkpoint = {again} WHERE true")
        refused(rows, release, "CA009", "a segment is released once")


def test_a_base_is_not_added_to_a_checkpoint_that_there_is(rows: Rows) -> None:
    committed(rows, 1, 2)
    with pytest.raises(RefusedError, match="a base is part of checkpoints to come"):
        base(rows, 1, 2)
    with pytest.raises(RefusedError, match="a base is part of checkpoints to come"):
        base(rows, 2, 2)
    base(rows, 3, 2)


# ------------------------------------------------------------------- group commits


def test_changelog_that_no_base_replaces_does_not_die_whatever_is_retained(rows: Rows) -> None:
    committed(rows, 1)
    rows.set_status(Checkpoint, Checkpoint.checkpoint_id == 1, "SUBSUMED")
    die = own(rows, "group_commits status = 'DEAD' WHERE true")
    refused(rows, die, "CA009", "one to come needs cannot die .*checkpoint id 1")
    base(rows, 2, 1, (0, 4))
    refused(rows, die, "CA009", "one to come needs cannot die .*checkpoint id 1")
    base(rows, 2, 1, (4, 8))
    rows.execute(die)


def test_changelog_of_a_retained_checkpoint_and_of_its_lineage_does_not_die(rows: Rows) -> None:
    committed(rows, 1, 2, 3)
    base(rows, 4, 3)
    committed(rows, 4)
    # Checkpoints 1 to 3 replay it; of 4, the base is.
    for checkpoint_id in (1, 2, 3, 4):
        die = own(rows, f"group_commits status = 'DEAD' WHERE checkpoint_id = {checkpoint_id}")
        refused(rows, die, "CA009", f"cannot die .*checkpoint id {checkpoint_id}")
    for checkpoint_id in (1, 2):
        rows.set_status(Checkpoint, Checkpoint.checkpoint_id == checkpoint_id, "SUBSUMED")
    # Those before a retained checkpoint are replayed, too, although the base replaces them later.
    for newest in (2, 3):
        die = own(rows, f"group_commits status = 'DEAD' WHERE checkpoint_id <= {newest}")
        refused(rows, die, "CA009", "needs cannot die")
    rows.set_status(Checkpoint, Checkpoint.checkpoint_id == 3, "SUBSUMED")
    rows.execute(own(rows, "group_commits status = 'DEAD' WHERE checkpoint_id < 4"))


def test_a_pinned_checkpoint_keeps_the_changelog_before_it(rows: Rows) -> None:
    committed(rows, 1, 2)
    rows.pin(2)
    base(rows, 3, 2)
    committed(rows, 3, 4, 5)
    rows.set_status(Checkpoint, Checkpoint.checkpoint_id == 1, "SUBSUMED")
    refused(
        rows, own(rows, "group_commits status = 'DEAD' WHERE checkpoint_id = 1"), "CA009", "needs"
    )


def test_a_group_commit_is_aborted_with_its_checkpoint_only(rows: Rows) -> None:
    committed(rows, 1)
    abort = own(rows, "group_commits status = 'ABORTED' WHERE true")
    refused(rows, abort, "CA009", "it is aborted with its checkpoint, .*checkpoint id 1")
    rows.checkpoint(2)
    rows.packed(rows.file(), 2, 0, 1)
    rows.execute(own(rows, "checkpoints status = 'ABORTED' WHERE checkpoint_id = 2"))
    rows.execute(own(rows, "group_commits status = 'ABORTED' WHERE checkpoint_id = 2"))


def test_attempts_are_replaced_only_while_their_checkpoint_takes_acks(rows: Rows) -> None:
    rows.checkpoint(1)
    rows.packed(rows.file(), 1, 0, 1)
    replace = own(rows, "group_commits replaced_subtasks = '{0}' WHERE true")
    rows.execute(replace)
    rows.set_status(Checkpoint, Checkpoint.checkpoint_id == 1, "COMPLETED")
    rows.execute(own(rows, "group_commits replaced_subtasks = '{0,1}' WHERE true"))
    committed(rows, 2)
    late = own(rows, "group_commits replaced_subtasks = '{0}' WHERE checkpoint_id = 2")
    refused(rows, late, "CA009", "attempts are replaced while that takes acks")


# --------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("role", ["postgres", "cairn_writer", "cairn_maintainer"])
def test_the_newest_confirmed_checkpoints_are_not_subsumed_whoever_asks(
    rows: Rows, role: str
) -> None:
    for checkpoint_id in range(1, 6):
        rows.checkpoint(checkpoint_id, "CONFIRMED")
    rows.checkpoint(6, "COMPLETED")  # does not count: it may run again
    rows.role = role
    for which in ("true", "checkpoint_id = 5", "checkpoint_id >= 3", "checkpoint_id = 3"):
        subsume = own(
            rows, f"checkpoints status = 'SUBSUMED' WHERE status = 'CONFIRMED' AND {which}"
        )
        refused(rows, subsume, "CA005", f"the newest {RETAINED} that are confirmed")
    rows.execute(own(rows, "checkpoints status = 'SUBSUMED' WHERE checkpoint_id < 3"))


def test_a_checkpoint_of_the_current_run_is_not_aborted(rows: Rows) -> None:
    rows.checkpoint(1, "COMPLETED")
    rows.execute(update(Job).where(rows.own(Job)).values(current_epoch=1))
    abort = own(rows, "checkpoints status = 'ABORTED' WHERE true")
    refused(rows, abort, "CA009", "one of the current run cannot be aborted .*epoch 1")
    rows.run(2, 2)
    rows.execute(update(Job).where(rows.own(Job)).values(current_epoch=2))
    rows.execute(abort)


@pytest.mark.parametrize(
    ("before", "after"),
    [("IN_PROGRESS", "COMPLETED"), ("COMPLETED", "CONFIRMED"), ("IN_PROGRESS", "ABORTED")],
)
def test_the_maintainer_subsumes_checkpoints_and_takes_them_nowhere_else(
    rows: Rows, before: str, after: str
) -> None:
    rows.checkpoint(1, before)
    step = own(rows, f"checkpoints status = '{after}' WHERE true")
    rows.role = "cairn_maintainer"
    refused(rows, step, "CA009", "cairn_maintainer may subsume checkpoints, and not")
    rows.role = "cairn_writer"
    rows.execute(step)


# ----------------------------------------------------------------------- backwards


BACKWARDS: list[tuple[type[Any], dict[str, Any]]] = [
    (Job, {"current_epoch": 1}),
    (Job, {"next_checkpoint_id": 8}),
    (Job, {"query_id": "other"}),
    (Job, {"query_id": None}),
    (Job, {"time_mode": "none"}),
    (Run, {"started_at": text("now() - interval '1 day'")}),
    (Run, {"started_at": None}),
    (Checkpoint, {"completed_at": None}),
    (Checkpoint, {"confirmed_at": text("now() + interval '1 day'")}),
    (Checkpoint, {"ended_at": text("now() - interval '1 day'")}),
    (Checkpoint, {"watermark_ms": 7}),
    (Checkpoint, {"processing_ms": 7}),
    (Checkpoint, {"max_event_ms": [7]}),
]


@pytest.mark.parametrize(
    ("table", "change"),
    [pytest.param(t, c, id=f"{next(iter(c))}-{n}") for n, (t, c) in enumerate(BACKWARDS)],
)
def test_nothing_goes_backwards(rows: Rows, table: type[Any], change: dict[str, Any]) -> None:
    rows.run(2, 2)
    rows.checkpoint(1, "CONFIRMED")
    moments = ("completed_at", "confirmed_at", "ended_at")
    rows.execute(
        update(Checkpoint).where(rows.own(Checkpoint)).values(dict.fromkeys(moments, text("now()")))
    )
    rows.execute(update(Run).where(rows.own(Run)).values(started_at=text("now()")))
    bound = {"current_epoch": 2, "next_checkpoint_id": 9, "query_id": "q", "time_mode": "eventtime"}
    rows.execute(update(Job).where(rows.own(Job)).values(bound))
    step = update(table).where(rows.own(table)).values(change)
    refused(rows, step, "CA002", f"{next(iter(change))}.* of a row never change")
