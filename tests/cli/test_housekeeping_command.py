"""`cairn housekeeping`, and pins that expire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count
from tests.metastore.ageing import let_time_pass

Cairn = Callable[..., Outcome]


@pytest.fixture
def clicks(job: StatefulJob) -> StatefulJob:
    """Checkpoints 1 to 4 are confirmed, 5 is not; two are retained."""
    for n in range(5):
        job.batch(put_count(1, "eu", n))
    return job


def test_a_pin_with_a_time_is_gone_after_it(cairn: Cairn, clicks: StatefulJob) -> None:
    [made] = cairn("pin", "clicks", "2", "--expires", "30d", "--json").json
    assert made["expires_at"]
    [listed] = cairn("pins", "clicks", "--json").json
    assert listed["expires_at"] == made["expires_at"]
    assert "until (UTC)" in cairn("pins", "clicks").out
    let_time_pass(clicks.url, clicks.job_id, "30 days")
    [told] = cairn("housekeeping", "clicks", "--dry-run", "--json").json
    assert told["expired_pins"] == 1
    [done] = cairn("housekeeping", "--json").json
    assert (done["job"], done["expired_pins"], done["dry_run"]) == ("clicks", 1, False)
    assert cairn("pins", "clicks", "--json").json == []


def test_without_a_time_pins_and_savepoints_stay(cairn: Cairn, clicks: StatefulJob) -> None:
    for command in ("pin", "savepoint"):
        [made] = cairn(command, "clicks", "--json").json
        assert made["expires_at"] is None
    let_time_pass(clicks.url, clicks.job_id, "3000 days")
    assert cairn("housekeeping", "clicks").code == 0
    assert len(cairn("pins", "clicks", "--json").json) == 2


@pytest.mark.parametrize("given", ["0 ms", "soon", "4000 d", ""])
def test_a_time_that_is_none_is_bad_input(cairn: Cairn, clicks: StatefulJob, given: str) -> None:
    assert cairn("pin", "clicks", "--expires", given).code == 2
    assert cairn("pins", "clicks", "--json").json == []


def test_of_an_unknown_job_it_is_bad_input(cairn: Cairn) -> None:
    assert cairn("housekeeping", "nobody").code == 2
    assert cairn("housekeeping", "--json").json == []
