"""Rows of quarantined objects: what sets one aside, what is refused, what a plan covers."""

# ruff: noqa: S608 - names of the schema and of fixtures

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from cairn.catalog.cleanup import history
from cairn.catalog.cleanup.quarantine import (
    Orphan,
    Place,
    known_places,
    restore,
    set_aside,
)
from cairn.catalog.maintenance.leases import take_lease
from cairn.errors import FencedError, RefusedError
from cairn.layout import shared_file, task_manager_file
from cairn.maintenance import sweep
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.housekeeping import housekeep_job
from cairn.maintenance.orphans import Clocks, Reason, clocks_of
from cairn.maintenance.plans import pass_breakers
from metastore.enums import MaintenanceAction
from tests.maintenance.sweeping import (
    ANY_AGE,
    ANY_SHARE,
    lease_of,
    let_time_pass,
    put,
    quarantine,
    swept,
    unguarded,
)
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.metastore import ageing


def orphan(path: str) -> Orphan:
    return Orphan(
        quarantine_id=uuid4(),
        place=Place(path),
        reason=Reason.NO_ROW,
        size_bytes=100,
        version="1",
        modified_at=datetime.now(UTC),
    )


def test_what_gets_a_row_after_the_snapshot_is_not_set_aside(job: SyntheticJob) -> None:
    path, other = (task_manager_file(job.job_id, "tm-1", str(uuid4())) for _ in range(2))
    places = [Place(path), Place(other)]
    known = job.catalog.run("reading", lambda c: known_places(c, job.job_id, places))
    assert [known[place].keeper for place in places] == [None, None]
    job.catalog.run("intent", lambda c: job.add_file(c, path, segments=1, seal=False))
    lease, found = lease_of(job), [orphan(path), orphan(other)]
    counted = job.catalog.run(
        "setting aside", lambda c: set_aside(c, job.job_id, lease, found, quarantine_ms=1000)
    )
    assert counted == (1, 100)
    assert quarantine(job) == {other: "QUARANTINED"}


Change = Callable[[SyntheticJob, str], str]


REFUSED: dict[str, tuple[Change, str]] = {
    "an object that a row knows": (
        lambda job, path: insertion(job, min(job.needed)),
        "no orphan: its row is",
    ),
    "a status that is not the first": (
        lambda job, path: insertion(job, path, status="CONDEMNED"),
        "status of a new row cannot be CONDEMNED",
    ),
    "an object that is due later": (
        lambda job, path: "UPDATE cairn.quarantined_objects SET status = 'CONDEMNED'",
        "cannot be condemned before",
    ),
    "an object without an intent": (
        lambda job, path: "UPDATE cairn.quarantined_objects SET status = 'DELETED'",
        "cannot change from QUARANTINED to DELETED",
    ),
    "another object": (
        lambda job, path: "UPDATE cairn.quarantined_objects SET version = 'other'",
        "never change",
    ),
    "an earlier end": (
        lambda job, path: "UPDATE cairn.quarantined_objects SET quarantined_until = now()",
        "never change",
    ),
    "a row that is open": (
        lambda job, path: "DELETE FROM cairn.quarantined_objects",
        "DELETED or RELEASED more than an hour ago",
    ),
}


def insertion(job: SyntheticJob, path: str, status: str = "QUARANTINED") -> str:
    return (
        "INSERT INTO cairn.quarantined_objects (quarantine_id, job_id, path, reason, size_bytes,"
        " version, modified_at, maintenance_run_id, status, quarantined_until) VALUES"
        f" (gen_random_uuid(), '{job.job_id}', '{path}', 'a test', 1, '1', now(),"
        f" gen_random_uuid(), '{status}', now() + interval '7 days')"
    )


@pytest.mark.parametrize("what", REFUSED)
def test_the_metastore_refuses_whoever_asks(
    job: SyntheticJob, orphans: list[str], what: str
) -> None:
    swept(job)
    change, said = REFUSED[what]
    free = shared_file(job.job_id, 1, 2, str(uuid4()))
    with pytest.raises(RefusedError, match=said):
        job.execute(change(job, free))
    job.execute(insertion(job, free))


@pytest.mark.parametrize("path", ["owner/00000000000000000001", "../other-1a2b3c4d/a.seg"])
def test_no_row_leads_out_of_the_root_or_to_its_owner(job: SyntheticJob, path: str) -> None:
    below = path.removeprefix("../") if path.startswith("..") else f"{job.job_id}/{path}"
    with pytest.raises(IntegrityError, match="below_job"):
        job.execute(insertion(job, below))


def test_two_sweeps_that_set_aside_the_same_do_it_once(
    job: SyntheticJob, orphans: list[str]
) -> None:
    path = orphans[1]
    both = [
        job.catalog.run(
            "setting aside",
            partial(
                set_aside,
                job_id=job.job_id,
                lease=lease_of(job),
                orphans=[orphan(path)],
                quarantine_ms=1000,
            ),
        )
        for _ in range(2)
    ]
    assert both == [(1, 100), (0, 0)]
    rows = job.catalog.run(
        "counting", lambda c: c.scalar(text("SELECT count(*) FROM cairn.quarantined_objects"))
    )
    assert rows == 1


def test_a_sweep_that_has_lost_its_lease_sets_nothing_aside(
    job: SyntheticJob, orphans: list[str]
) -> None:
    lease = lease_of(job)
    unguarded(job, "UPDATE cairn.maintenance_runs SET leased_until = now() - interval '1 s'")
    job.catalog.run("taking over", lambda c: take_lease(c, lease.run_id, uuid4()))
    with pytest.raises(FencedError, match="another process has taken it over"):
        job.catalog.run(
            "late",
            lambda c: set_aside(c, job.job_id, lease, [orphan(orphans[0])], quarantine_ms=1000),
        )
    assert quarantine(job) == {}


@pytest.fixture
def refused(job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch) -> UUID:
    """The plan of a sweep of most of a root, of any age."""
    for name in ANY_SHARE:
        monkeypatch.delenv(name)
    monkeypatch.setattr(Clocks, "is_old", lambda *_: True)
    rows = dump(job.url)["quarantined_objects"]
    with pytest.raises(
        RefusedError, match=r"a circuit breaker spoke.*7 files would be deleted and 6 kept.*--by"
    ):
        swept(job)
    assert dump(job.url)["quarantined_objects"] == rows
    [(run_id, status)] = job.execute(
        "SELECT maintenance_run_id, status FROM cairn.maintenance_runs"
        " WHERE action = 'orphan_sweep'"
    )
    assert status == "REFUSED"
    return UUID(str(run_id))


def test_a_sweep_of_most_of_a_root_waits_for_a_person(
    job: SyntheticJob, orphans: list[str], refused: UUID
) -> None:
    pass_breakers(job.catalog, refused, ["share", "match-rate"], "jo")
    assert apply_plan(job.catalog, refused)["quarantined"] == len(orphans)
    assert apply_plan(job.catalog, refused)["quarantined"] == 0, "it was applied"
    assert set(quarantine(job)) == set(orphans)


def test_a_plan_that_was_passed_covers_no_more_than_it_says(
    job: SyntheticJob, orphans: list[str], refused: UUID
) -> None:
    pass_breakers(job.catalog, refused, ["share", "match-rate"], "jo")
    put(job.store, shared_file(job.job_id, 0, 2, str(uuid4())))
    with pytest.raises(RefusedError, match=r"was of 7 objects .*now there are 8"):
        apply_plan(job.catalog, refused)
    assert quarantine(job) == {}


def test_what_left_the_quarantine_is_trimmed_in_steps_and_what_is_in_it_stays(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "TRIM_ROWS", 2)
    swept(job)
    kept, *others = orphans
    job.catalog.run("restoring", lambda c: restore(c, job.job_id, [kept]))
    let_time_pass(job)
    assert swept(job).deleted == len(others)
    put(job.store, new := shared_file(job.job_id, 0, 2, str(uuid4())))
    swept(job)
    housekeep_job(job.catalog, job.name)
    over = dict.fromkeys(others, "DELETED")
    assert quarantine(job) == over | {kept: "RESTORED", new: "QUARANTINED"}
    ageing.let_time_pass(job.url, job.job_id, "30 days")
    took: list[int] = []
    housekeep_job(job.catalog, job.name, progress=lambda _, rows: took.append(rows))
    assert quarantine(job) == {kept: "RESTORED", new: "QUARANTINED"}
    assert len(took) > len(over) / 2


@pytest.mark.parametrize("status", ["QUARANTINED", "CONDEMNED", "RESTORED", "DELETED"])
def test_a_row_of_the_quarantine_is_deleted_by_nobody_before_its_time(
    job: SyntheticJob, orphans: list[str], status: str
) -> None:
    """One that is over for less than an hour may still be what somebody acts upon."""
    swept(job)
    unguarded(job, f"UPDATE cairn.quarantined_objects SET status = '{status}', deleted_at = now()")
    with pytest.raises(RefusedError, match="DELETED or RELEASED more than an hour ago"):
        job.execute("DELETE FROM cairn.quarantined_objects WHERE job_id = :job")


def test_a_plan_of_a_sweep_says_what_it_would_do(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clocks, "is_old", lambda *_: True)
    stored = plan_action(job.catalog, MaintenanceAction.ORPHAN_SWEEP, job.name)
    assert stored is not None
    assert (stored.files, stored.plan["orphans"]) == (len(orphans), len(orphans))
    assert set(stored.plan["sample"]) == set(orphans)
    assert quarantine(job) == {}
    assert apply_plan(job.catalog, stored.run_id)["quarantined"] == len(orphans)
    assert plan_action(job.catalog, MaintenanceAction.ORPHAN_SWEEP, job.name) is None


def test_a_plan_of_a_sweep_does_not_take_what_became_old_enough_after_it(
    job: SyntheticJob, orphans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sweep, "clocks_of", lambda *now, **_: clocks_of(*now, unsafe_min_age=ANY_AGE)
    )
    swept(job)
    let_time_pass(job)
    put(job.store, young := shared_file(job.job_id, 0, 2, str(uuid4())))
    time.sleep(0.1)  # files have the time of the kernel's last tick, up to 10 ms ago
    later = orphans[0]
    due_at = "UPDATE cairn.quarantined_objects SET quarantined_until = now()"
    unguarded(job, f"{due_at} + interval '1 h' WHERE path = '{later}'")
    stored = plan_action(job.catalog, MaintenanceAction.ORPHAN_SWEEP, job.name)
    assert stored is not None
    assert (stored.plan["orphans"], stored.plan["due"]) == (1, len(orphans) - 1)
    put(job.store, younger := shared_file(job.job_id, 1, 2, str(uuid4())))
    unguarded(job, f"{due_at} WHERE path = '{later}'")
    done = apply_plan(job.catalog, stored.run_id)
    assert (done["quarantined"], done["deleted"]) == (1, len(orphans) - 1)
    rows = quarantine(job)
    assert (rows[later], rows[young]) == ("QUARANTINED", "QUARANTINED")
    assert younger not in rows
    assert younger in job.objects()
