"""The lease of a maintenance run: one process applies a stored plan, whatever is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.leases import (
    finish,
    release_lease,
    renew_lease,
    require_lease,
    take_lease,
)
from cairn.errors import BadInputError, FencedError, MetastoreError, RefusedError
from metastore.enums import MaintenanceStatus
from tests.forked import Forked
from tests.metastore.rows import Rows

Call = Callable[[Connection, UUID, UUID], None]
CALLS: list[Call] = [
    require_lease,
    renew_lease,
    release_lease,
    lambda c, run, holder: finish(c, run, holder, MaintenanceStatus.APPLIED, {}),
]


def do(rows: Rows, call: Call, run: UUID, holder: UUID) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("SET LOCAL ROLE cairn_maintainer"))
        call(connection, run, holder)

    rows.catalog.run("testing", work)


def state(rows: Rows, run: UUID) -> tuple[str, UUID | None, bool]:
    [row] = rows.execute(
        text(
            "SELECT status, holder, leased_until > now() AS is_leased FROM cairn.maintenance_runs"
            " WHERE maintenance_run_id = :run"
        ).bindparams(run=run)
    )
    return row["status"], row["holder"], bool(row["is_leased"])


def let_lease_end(rows: Rows, run: UUID) -> None:
    rows.execute(
        text(
            "UPDATE cairn.maintenance_runs SET leased_until = now() - interval '1 ms'"
            " WHERE maintenance_run_id = :run"
        ).bindparams(run=run)
    )


@pytest.fixture
def run(rows: Rows) -> UUID:
    return rows.maintenance_run()


@pytest.fixture
def holder() -> UUID:
    return uuid4()


def test_of_two_processes_one_gets_the_lease(rows: Rows, run: UUID, holder: UUID) -> None:
    do(rows, take_lease, run, holder)
    with pytest.raises(FencedError, match=f"another process applies.*job {rows.job_id}"):
        do(rows, take_lease, run, uuid4())
    for call in CALLS:
        with pytest.raises(FencedError, match="another process has taken it over"):
            do(rows, call, run, uuid4())
    assert state(rows, run) == ("RUNNING", holder, True)


def test_the_holder_takes_again_what_it_has_as_after_a_lost_answer(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    for _ in range(2):
        do(rows, take_lease, run, holder)
    for _ in range(2):
        do(rows, CALLS[-1], run, holder)
    assert state(rows, run)[:2] == ("APPLIED", holder)


@pytest.mark.parametrize("call", [take_lease, *CALLS])
def test_a_lease_that_has_ended_is_lost_to_its_holder(
    rows: Rows, run: UUID, holder: UUID, call: Call
) -> None:
    do(rows, take_lease, run, holder)
    let_lease_end(rows, run)
    with pytest.raises(FencedError, match=r"its lease ended at .* UTC"):
        do(rows, call, run, holder)
    assert state(rows, run) == ("RUNNING", holder, False)


def test_a_lost_lease_is_not_regained_even_when_its_next_holder_has_lost_it_too(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    do(rows, take_lease, run, holder)
    let_lease_end(rows, run)
    do(rows, take_lease, run, uuid4())
    with pytest.raises(FencedError, match="another process has taken it over"):
        do(rows, take_lease, run, holder)
    let_lease_end(rows, run)
    with pytest.raises(FencedError, match="another process has taken it over"):
        do(rows, take_lease, run, holder)
    last = uuid4()
    do(rows, take_lease, run, last)
    assert state(rows, run) == ("RUNNING", last, True)


def test_a_lease_ends_by_the_databases_clock_while_a_transaction_waits(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    do(rows, take_lease, run, holder)

    def work(connection: Connection) -> None:
        # The transaction, and with it now(), began before the lease has ended.
        connection.execute(text("SELECT now()"))
        renew_lease(connection, run, holder, lease_ms=20)
        connection.execute(text("SELECT pg_sleep(0.03)"))
        require_lease(connection, run, holder)

    with pytest.raises(FencedError, match="its lease ended"):
        rows.catalog.run("testing", work)


def test_a_renewed_lease_lasts_from_then_on(rows: Rows, run: UUID, holder: UUID) -> None:
    do(rows, lambda c, *ids: take_lease(c, *ids, lease_ms=60_000), run, holder)
    do(rows, lambda c, *ids: renew_lease(c, *ids, lease_ms=3_600_000), run, holder)
    [row] = rows.execute(
        text(
            "SELECT leased_until > now() + interval '59 min' AS is_long"
            " FROM cairn.maintenance_runs WHERE maintenance_run_id = :run"
        ).bindparams(run=run)
    )
    assert row["is_long"]


def test_a_lease_that_was_given_up_is_another_ones_at_once(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    do(rows, take_lease, run, holder)
    do(rows, release_lease, run, holder)
    do(rows, take_lease, run, uuid4())


def test_nobody_takes_the_lease_while_its_holder_writes(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    do(rows, lambda c, *ids: take_lease(c, *ids, lease_ms=100), run, holder)
    with rows.catalog.begin() as writing:
        require_lease(writing, run, holder)
        # Its lease ends meanwhile, but what it writes is the holder's until it has committed.
        writing.execute(text("SELECT pg_sleep(0.12)"))
        impatient = Catalog(rows.url, timeout_ms=50)
        with pytest.raises(MetastoreError, match="canceling statement due to"):
            impatient.run("testing", lambda c: take_lease(c, run, uuid4()))
    do(rows, take_lease, run, uuid4())


@pytest.mark.parametrize("status", ["APPLIED", "FAILED", "REFUSED"])
def test_a_run_that_is_over_or_refused_is_not_taken(rows: Rows, holder: UUID, status: str) -> None:
    run = rows.maintenance_run(status)
    with pytest.raises(RefusedError, match=f"{rows.job_id} is {status}"):
        do(rows, take_lease, run, holder)


def test_a_plan_older_than_an_hour_is_not_begun_and_not_taken_over(
    rows: Rows, run: UUID, holder: UUID
) -> None:
    age = text("UPDATE cairn.maintenance_runs SET planned_at = now() - interval '61 min'")
    do(rows, take_lease, run, holder)
    rows.execute(age)
    do(rows, renew_lease, run, holder)  # whoever has begun goes on
    let_lease_end(rows, run)
    for one in (run, rows.maintenance_run()):
        rows.execute(age)
        with pytest.raises(RefusedError, match=r"older than 60 min.*Make a new plan"):
            do(rows, take_lease, one, uuid4())


def test_a_fold_of_a_job_that_was_dropped_holds_no_lease(rows: Rows, run: UUID) -> None:
    rows.execute(text("UPDATE cairn.runs SET ended_at = now()"))
    for action, is_lost in (("materialization", True), ("subsumption", False)):
        one, holder = uuid4(), uuid4()
        rows.execute(
            text(
                "INSERT INTO cairn.maintenance_runs (maintenance_run_id, job_id, action, plan,"
                " plan_sha256) VALUES (:run, :job, :action, '{}', '')"
            ).bindparams(run=one, job=rows.job_id, action=action)
        )
        do(rows, take_lease, one, holder)
        rows.execute(
            text(
                "UPDATE cairn.jobs SET dropped_at = now(), current_epoch = 99, name = job_id"
                " WHERE job_id = :job AND dropped_at IS NULL"
            ).bindparams(job=rows.job_id)
        )
        if is_lost:
            with pytest.raises(FencedError, match="its job was dropped"):
                do(rows, require_lease, one, holder)
        else:
            do(rows, require_lease, one, holder)


def test_a_run_that_the_metastore_does_not_know_is_nobodys(rows: Rows, holder: UUID) -> None:
    for call in (take_lease, *CALLS):
        with pytest.raises(FencedError, match="has no maintenance run"):
            do(rows, call, uuid4(), holder)


def change(rows: Rows, run: UUID, columns: str, **values: Any) -> None:
    statement = f"UPDATE cairn.maintenance_runs SET {columns} WHERE maintenance_run_id = :run"  # noqa: S608
    rows.execute(text(statement).bindparams(run=run, **values))


def test_triggers_guard_a_lease_whoever_writes(rows: Rows, run: UUID, holder: UUID) -> None:
    do(rows, take_lease, run, holder)
    with pytest.raises(FencedError, match="another process holds the lease"):
        change(rows, run, "holder = :other", other=uuid4())
    let_lease_end(rows, run)
    with pytest.raises(FencedError, match="a lease that has ended is not renewed"):
        change(rows, run, "leased_until = now() + interval '1 hour'")
    change(rows, run, "holder = :other", other=uuid4())
    with pytest.raises(FencedError, match="does not get it again"):
        change(rows, run, "holder = :holder", holder=holder)
    with pytest.raises(FencedError, match="follow the holder and cannot be set"):
        change(rows, run, "former_holders = '{}'")


def test_a_run_whose_breaker_spoke_is_not_begun_before_somebody_has_passed_it(
    rows: Rows, run: UUID
) -> None:
    spoke = 'breakers = \'[{"breaker": "empty live set"}]\''
    with pytest.raises(IntegrityError, match="ck_maintenance_runs__breakers_passed"):
        change(rows, run, spoke)
    change(rows, run, f"status = 'REFUSED', {spoke}")
    with pytest.raises(IntegrityError, match="ck_maintenance_runs__breakers_passed"):
        change(rows, run, "status = 'PLANNED'")
    change(rows, run, "status = 'PLANNED', passed_by = 'ada', passed_at = now()")
    with pytest.raises(RefusedError, match="once passed"):
        change(rows, run, "passed_by = 'eve'")


def take_and_finish(url: str, run: UUID, holder: UUID) -> None:
    """Does all that a process does with a lease, each in a transaction."""
    catalog, done = Catalog(url), {"by": str(holder)}
    for call in (take_lease, renew_lease, require_lease):
        catalog.run("testing", partial(call, run_id=run, holder=holder))
    catalog.run("testing", lambda c: finish(c, run, holder, MaintenanceStatus.APPLIED, done))


def test_killed_before_any_commit_another_process_applies_the_plan_once(rows: Rows) -> None:
    for killed_at in range(1, 6):
        run, first, second = rows.maintenance_run(), uuid4(), uuid4()
        process = Forked(take_and_finish, rows.url, run, first, kill_at=("commit", killed_at))
        assert process.run() is (killed_at == 5)
        if killed_at == 5:
            assert state(rows, run)[:2] == ("APPLIED", first)
            break
        if killed_at > 1:
            with pytest.raises(FencedError, match="another process applies"):
                do(rows, take_lease, run, second)
            let_lease_end(rows, run)
        do(rows, take_lease, run, second)
        do(rows, CALLS[-1], run, second)
        assert state(rows, run)[:2] == ("APPLIED", second)
        for call in (take_lease, *CALLS):
            with pytest.raises((FencedError, RefusedError)):
                do(rows, call, run, first)


def test_a_job_takes_no_lease_of_a_maintenance_run(rows: Rows, run: UUID) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("SET LOCAL ROLE cairn_writer"))
        take_lease(connection, run, uuid4())

    with pytest.raises(BadInputError, match="permission denied"):
        rows.catalog.run("testing", work)
