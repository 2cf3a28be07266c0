"""`cairn verify`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count

Cairn = Callable[..., Outcome]


def test_a_whole_job_is_verified_with_exit_code_0(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    for arguments in ([], ["--checksums"]):
        done = cairn("verify", "clicks", *arguments)
        assert (done.code, done.out) == (0, "")
        assert "job clicks is whole" in done.err
    assert cairn("verify", "clicks", "--json").json == []


def test_what_is_missing_ends_it_with_5_and_the_next_command(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 1))
    root = Path(job.storage.removeprefix("file://"))
    [file] = root.rglob("*.seg")
    file.unlink()
    (root / job.job_id / "odd\nname").touch()
    done = cairn("verify", "clicks")
    assert done.code == 5
    assert "missing" in done.out
    assert str(file.relative_to(root)) in done.out
    assert "odd\\nname" in done.out
    assert "`cairn files clicks` says which checkpoints" in done.err
    assert "1 objects cost storage only" in done.err
    rows = json.loads(cairn("verify", "clicks", "--json").out)
    assert sorted(row["problem"] for row in rows) == ["missing", "no row knows it"]


def test_objects_that_nobody_needs_are_listed_with_exit_code_0(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 1))
    (Path(job.storage.removeprefix("file://")) / job.job_id / "nobodys").touch()
    done = cairn("verify", "clicks")
    assert done.code == 0
    assert "no row knows it" in done.out
    assert "job clicks is whole" in done.err


def test_an_unknown_job_is_bad_input(cairn: Cairn) -> None:
    assert cairn("verify", "nobody").code == 2
