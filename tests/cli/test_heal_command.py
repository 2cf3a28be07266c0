"""`cairn heal`: what it prints, and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count

Cairn = Callable[..., Outcome]


def test_of_a_whole_job_it_says_so(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    done = cairn("heal", "clicks")
    assert done.code == 0
    assert "no damage is known" in done.err
    [row] = cairn("heal", "clicks", "--dry-run", "--json").json
    assert (row["damaged"], row["healed"], row["dry_run"]) == (0, 0, True)


def test_what_is_lost_ends_it_with_5_and_says_what_to_do(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    [file] = Path(job.storage.removeprefix("file://")).rglob("*.seg")
    job.batch(put_count(1, "us", 1))
    file.unlink()
    assert "cairn heal clicks" in cairn("scrub", "clicks", "--whole").err
    for options in ((), ("--dry-run",)):
        done = cairn("heal", "clicks", *options)
        assert done.code == 5
        assert (
            f"lost: changelog of subtask 0 as of checkpoint 1, key groups 0 to 3, in {job.job_id}"
            in done.err
        )
        assert "No confirmed checkpoint is whole. Put the objects back" in done.err
    refused = cairn("plan", "heal", "clicks")
    assert refused.code == 4
    assert "no retained checkpoint has their state" in refused.err


def test_an_unknown_job_is_bad_input(cairn: Cairn, job: StatefulJob) -> None:
    assert cairn("heal", "nobody").code == 2
