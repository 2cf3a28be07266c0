"""Pins: who may set one, and that nobody subsumes what has one."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.savepoints.pins import Pinned, open_pins, pin_checkpoint, remove_pins
from cairn.errors import BadInputError, RefusedError
from metastore.enums import PinKind
from tests.metastore.rows import Rows
from tests.metastore.steps import Steps

SUBSUME = text(
    "UPDATE cairn.checkpoints SET status = 'SUBSUMED'"
    " WHERE job_id = :job_id AND checkpoint_id = :checkpoint_id"
)


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> Steps:
    """Checkpoints 1 to 4 are CONFIRMED and 5 is COMPLETED; two are retained."""
    steps = Steps(metastore_url, tmp_storage)
    epoch = steps.register()
    for batch_id in range(5):
        steps.whole_batch(epoch, batch_id)
    return steps


def pin(job: Steps, checkpoint_id: int | None, **more: Any) -> Pinned:
    facts = {"pin_id": uuid4(), "kind": PinKind.PIN, "name": None, **more}
    return job.run(lambda c: pin_checkpoint(c, job.name, checkpoint_id, **facts))


def unpin(job: Steps, checkpoint_id: int | None, name: str | None = None) -> None:
    found = job.run(lambda c: open_pins(c, job.name, checkpoint_id, name))
    job.run(lambda c: remove_pins(c, job.name, [row["pin_id"] for row in found]))


def open_ids(job: Steps) -> list[int]:
    rows = job.sql(
        "SELECT checkpoint_id FROM cairn.pins WHERE job_id = :job AND removed_at IS NULL ORDER BY 1"
    )
    return [int(checkpoint_id) for (checkpoint_id,) in rows]


def subsumed(job: Steps) -> list[int]:
    return [i for i, status in job.statuses().items() if status == "SUBSUMED"]


def test_a_pinned_checkpoint_outlives_cleanups_until_it_is_unpinned(job: Steps) -> None:
    pin(job, 2)
    job.clean()
    assert subsumed(job) == [1]
    unpin(job, 2)
    job.clean()
    assert subsumed(job) == [1, 2]


def test_the_newest_confirmed_checkpoint_is_pinned_where_none_is_named(job: Steps) -> None:
    assert pin(job, None).checkpoint_id == 4
    assert open_ids(job) == [4]


def test_pinning_twice_makes_one_pin_and_another_name_or_kind_another(job: Steps) -> None:
    first = pin(job, 3)
    again = pin(job, 3)
    assert (first.is_new, again.is_new, again.pin_id) == (True, False, first.pin_id)
    pin(job, 3, name="before the move")
    pin(job, 3, kind=PinKind.SAVEPOINT)
    assert open_ids(job) == [3, 3, 3]
    unpin(job, None, "before the move")
    assert open_ids(job) == [3, 3]
    unpin(job, 3)
    assert open_ids(job) == []


def test_a_dry_run_pins_nothing(job: Steps) -> None:
    assert pin(job, None, dry_run=True).checkpoint_id == 4
    assert open_ids(job) == []


def test_what_cannot_be_pinned_is_refused_with_what_can(job: Steps) -> None:
    with pytest.raises(RefusedError, match="5 is COMPLETED; those that can be pinned are 1, 2, 3"):
        pin(job, 5)
    with pytest.raises(RefusedError, match="77 does not exist"):
        pin(job, 77)
    with pytest.raises(BadInputError, match=f"no job 'nobody'; there are: {job.name}"):
        job.run(
            lambda c: pin_checkpoint(c, "nobody", 1, pin_id=uuid4(), kind=PinKind.PIN, name=None)
        )
    empty = Steps(job.url, job.storage)
    empty.register()
    with pytest.raises(RefusedError, match="no checkpoint is confirmed yet"):
        pin(empty, None)


def test_unpinning_what_is_not_pinned_says_what_is(job: Steps) -> None:
    with pytest.raises(BadInputError, match="no checkpoint is pinned"):
        unpin(job, 1)
    pin(job, 1, name="audit")
    with pytest.raises(BadInputError, match=r"pinned are: 1 \(audit\)"):
        unpin(job, 2)


@pytest.mark.parametrize("status", ["IN_PROGRESS", "COMPLETED", "SUBSUMED", "ABORTED"])
def test_only_a_confirmed_checkpoint_can_be_pinned_whoever_asks(rows: Rows, status: str) -> None:
    rows.checkpoint(1, status)
    with pytest.raises(RefusedError, match=f"only a CONFIRMED checkpoint .*{status}"):
        rows.pin(1)


def test_a_pinned_checkpoint_cannot_be_subsumed_whoever_asks(rows: Rows) -> None:
    for checkpoint_id in (1, 2, 3, 4):
        rows.checkpoint(checkpoint_id, "CONFIRMED")
    pin_id = rows.pin(1)
    statement = SUBSUME.bindparams(job_id=rows.job_id, checkpoint_id=1)
    with pytest.raises(RefusedError, match="a pinned checkpoint cannot be subsumed"):
        rows.execute(statement)
    remove = text("UPDATE cairn.pins SET removed_at = now() WHERE pin_id = :id")
    rows.execute(remove.bindparams(id=pin_id))
    rows.execute(statement)


def test_a_pin_that_was_removed_stays_removed_and_keeps_its_checkpoint(rows: Rows) -> None:
    rows.checkpoint(1, "CONFIRMED")
    pin_id = rows.pin(1)
    rows.execute(
        text("UPDATE cairn.pins SET removed_at = now() WHERE pin_id = :id").bindparams(id=pin_id)
    )
    for change in ("removed_at = NULL", "checkpoint_id = 2", "name = 'other'"):
        with pytest.raises(RefusedError, match="of a row never change"):
            rows.execute(
                text(f"UPDATE cairn.pins SET {change} WHERE pin_id = :id").bindparams(id=pin_id)  # noqa: S608
            )


@pytest.mark.parametrize("first", ["pin", "subsume"])
def test_of_a_pin_and_a_subsumption_at_once_the_later_is_refused(job: Steps, first: str) -> None:
    """Neither holds the job's lock: the checkpoint's row alone makes one wait for the other."""
    insert = text(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind)"
        " VALUES (gen_random_uuid(), :job_id, :checkpoint_id, 'pin')"
    )
    values = {"job_id": job.job_id, "checkpoint_id": 1}
    one, other = (insert, SUBSUME) if first == "pin" else (SUBSUME, insert)
    caught: list[Exception] = []

    def second() -> None:
        try:
            job.run(lambda c: c.execute(other, values))
        except RefusedError as error:
            caught.append(error)

    thread = threading.Thread(target=second)
    with job.catalog.begin() as connection:
        connection.execute(one, values)
        thread.start()
        job.wait_until_blocked()
    thread.join()
    assert len(caught) == 1
    assert (open_ids(job), subsumed(job)) == (([1], []) if first == "pin" else ([], [1]))


def test_pinning_waits_for_a_cleanup_and_then_sees_what_it_did(job: Steps) -> None:
    caught: list[Exception] = []

    def second() -> None:
        try:
            pin(job, 1)
        except RefusedError as error:
            caught.append(error)

    thread = threading.Thread(target=second)
    with job.catalog.begin() as connection:
        lock_job(connection, job.job_id, exclusive=True)
        thread.start()
        job.wait_until_blocked()
        connection.execute(SUBSUME, {"job_id": job.job_id, "checkpoint_id": 1})
    thread.join()
    assert "1 is SUBSUMED" in str(caught[0])


def test_the_view_lists_pins_with_sparks_names_for_the_checkpoint(job: Steps) -> None:
    pin(job, 3, name="audit")
    columns = "checkpoint_id, query_id, batch_id, kind, name, manifest, removed_at"
    rows = job.sql(f"SELECT {columns} FROM cairn.v_pins WHERE job_id = :job")  # noqa: S608
    assert rows == [(3, "q", 2, "pin", "audit", None, None)]
