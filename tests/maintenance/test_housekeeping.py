"""Housekeeping: expired pins, replaced runs, history beyond what a cleanup trims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog.cleanup import history
from cairn.catalog.savepoints.pins import Pinned, pin_checkpoint
from cairn.errors import BadInputError
from cairn.maintenance import cleanup
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.housekeeping import HousekeepingReport, housekeep_job
from metastore.enums import PinKind
from tests.maintenance.history_job import (
    TRIMMED_CHECKPOINTS,
    TRIMMED_FILES,
    continue_with,
    job_with_history,
    totals,
)
from tests.maintenance.synthetic import dump
from tests.metastore.ageing import let_time_pass
from tests.metastore.steps import Steps

DAY_MS = 86_400_000


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    return job_with_history(metastore_url, tmp_storage)


def pin(job: Steps, lasts_ms: int | None, **changes: Any) -> Pinned:
    facts = {"pin_id": uuid4(), "kind": PinKind.PIN, "name": None, **changes}
    return job.run(lambda c: pin_checkpoint(c, job.name, None, lasts_ms=lasts_ms, **facts))


def housekeep(job: Steps, *, dry_run: bool = False) -> HousekeepingReport:
    return housekeep_job(job.catalog, job.name, dry_run=dry_run)


def open_pins(job: Steps) -> int:
    [(count,)] = job.sql(
        "SELECT count(*) FROM cairn.pins WHERE job_id = :job AND removed_at IS NULL"
    )
    return int(count)


def test_a_pin_is_removed_once_its_time_is_over_and_not_before(steps: Steps) -> None:
    pinned = pin(steps, 30 * DAY_MS)
    pin(steps, None, name="for good")
    assert pinned.expires_at is not None
    let_time_pass(steps.url, steps.job_id, "29 days 23 hours 59 minutes")
    assert housekeep(steps).expired_pins == 0
    assert open_pins(steps) == 2
    let_time_pass(steps.url, steps.job_id, "1 minute")
    assert housekeep(steps).expired_pins == 1
    [(name,)] = steps.sql(
        "SELECT name FROM cairn.v_pins WHERE job_id = :job AND removed_at IS NULL"
    )
    assert name == "for good"


def test_what_a_pin_kept_is_subsumed_by_the_cleanup_after_it_was_removed(steps: Steps) -> None:
    pinned = pin(steps, DAY_MS)
    for batch_id in range(16, 20):
        continue_with(steps, batch_id)
    steps.clean()
    assert steps.statuses()[pinned.checkpoint_id] == "CONFIRMED"
    let_time_pass(steps.url, steps.job_id, "2 days")
    # It expires, and is in force until it is removed: nobody subsumes by a clock.
    steps.clean()
    assert steps.statuses()[pinned.checkpoint_id] == "CONFIRMED"
    housekeep(steps)
    steps.clean()
    assert steps.statuses()[pinned.checkpoint_id] == "SUBSUMED"


def test_pinning_again_changes_when_a_pin_expires(steps: Steps) -> None:
    first = pin(steps, DAY_MS)
    longer = pin(steps, 2 * DAY_MS)
    assert (longer.pin_id, longer.is_new) == (first.pin_id, False)
    assert first.expires_at is not None
    assert longer.expires_at is not None
    assert longer.expires_at - first.expires_at >= timedelta(days=1)
    assert pin(steps, None).expires_at is None
    let_time_pass(steps.url, steps.job_id, "3 days")
    assert housekeep(steps).expired_pins == 0
    assert open_pins(steps) == 1


def test_replaced_runs_are_closed_and_the_current_one_is_not(steps: Steps) -> None:
    report = housekeep(steps)
    assert report.closed_runs == 1
    ends = steps.sql("SELECT epoch, ended_at IS NULL FROM cairn.runs WHERE job_id = :job")
    assert sorted(ends) == [(1, False), (2, True)]
    continue_with(steps)
    assert housekeep(steps).closed_runs == 0


def test_a_lost_run_of_the_current_epoch_is_shown_as_lost_and_goes_on(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    housekeep(steps)
    state = "SELECT run_state FROM cairn.v_jobs WHERE job_id = :job"
    assert steps.sql(state) == [("lost",)]
    continue_with(steps)
    assert steps.sql(state) == [("running",)]


def test_it_trims_what_the_cleanup_leaves_and_no_total_changes(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "TRIM_ROWS", 1)
    monkeypatch.setattr(cleanup, "_TRIM_STEPS", 2)
    let_time_pass(steps.url, steps.job_id, "8 days")
    before = totals(steps)
    cleaned = cleanup_job(steps.catalog, steps.name)
    assert (cleaned.trimmed_checkpoints, cleaned.trimmed_files) == (2, 2)
    report = housekeep(steps)
    assert report.trimmed_checkpoints == TRIMMED_CHECKPOINTS - 2
    assert report.trimmed_files == TRIMMED_FILES - 2
    assert totals(steps) == before
    assert housekeep(steps).trimmed_rows == 0


def test_a_dry_run_foretells_and_changes_nothing(steps: Steps) -> None:
    pin(steps, DAY_MS)
    let_time_pass(steps.url, steps.job_id, "8 days")
    before = dump(steps.url)
    forecast = housekeep(steps, dry_run=True)
    assert dump(steps.url) == before
    done = housekeep(steps)
    rows = done.trimmed_rows
    assert rows >= forecast.trimmed_rows > 0
    assert replace(forecast, dry_run=False, trimmed_rows=rows) == done
    assert done.expired_pins == 1


def test_two_at_once_count_each_thing_once(steps: Steps) -> None:
    pin(steps, DAY_MS)
    let_time_pass(steps.url, steps.job_id, "8 days")
    with ThreadPoolExecutor() as threads:
        doing = [threads.submit(housekeep, steps) for _ in range(2)]
        reports = [one.result() for one in doing]
    for name, expected in (
        ("expired_pins", 1),
        ("closed_runs", 1),
        ("trimmed_checkpoints", TRIMMED_CHECKPOINTS),
        ("trimmed_files", TRIMMED_FILES),
    ):
        assert sum(getattr(report, name) for report in reports) == expected, name


def test_a_pin_that_is_extended_meanwhile_stays(steps: Steps) -> None:
    pin(steps, DAY_MS)
    let_time_pass(steps.url, steps.job_id, "2 days")
    with steps.catalog.begin() as connection, ThreadPoolExecutor() as threads:
        pin_checkpoint(
            connection,
            steps.name,
            None,
            pin_id=uuid4(),
            kind=PinKind.PIN,
            name=None,
            lasts_ms=DAY_MS,
        )
        removing = threads.submit(housekeep, steps)
        connection.commit()
        assert removing.result().expired_pins == 0
    assert open_pins(steps) == 1


def test_an_unknown_job_is_bad_input(steps: Steps) -> None:
    with pytest.raises(BadInputError, match="no job 'nobody'"):
        housekeep_job(steps.catalog, "nobody")


def test_the_maintainers_role_is_enough(steps: Steps) -> None:
    user = f"keeper_{uuid4().hex[:8]}"
    steps.sql(f"CREATE ROLE {user} LOGIN IN ROLE cairn_maintainer")
    pin(steps, DAY_MS)
    let_time_pass(steps.url, steps.job_id, "8 days")
    keeper = replace(steps, url=steps.url.replace("postgres@", f"{user}@"))
    report = housekeep(keeper)
    assert (report.expired_pins, report.closed_runs) == (1, 1)
    assert report.trimmed_checkpoints == TRIMMED_CHECKPOINTS


def test_what_was_damaged_and_is_whole_again_is_forgotten_with_the_history(steps: Steps) -> None:
    steps.sql(
        "INSERT INTO cairn.damaged_segments (file_id, segment_id, job_id, damage, resolved_at)"
        " SELECT file_id, gen_random_uuid(), job_id, 'missing', r.at FROM cairn.physical_files"
        " CROSS JOIN (VALUES (now()), (NULL)) AS r (at)"
        " WHERE job_id = :job AND live_segments > 0"
    )
    let_time_pass(steps.url, steps.job_id, "8 days")
    housekeep(steps)
    left = steps.sql("SELECT DISTINCT resolved_at IS NULL FROM cairn.damaged_segments")
    assert left == [(True,)]
