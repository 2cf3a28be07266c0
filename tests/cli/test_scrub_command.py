"""`cairn scrub`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count

Cairn = Callable[..., Outcome]


def test_of_a_whole_job_it_says_what_it_read(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    done = cairn("scrub", "clicks", "--dry-run")
    assert (done.code, done.out) == (0, "")
    assert "would be read: 1 segments in 1 of 1 files" in done.err
    for arguments in ([], ["--whole"], ["--sample", "50%", "--max-rate", "1gb"]):
        done = cairn("scrub", "clicks", *arguments)
        assert (done.code, done.out) == (0, "")
        assert "read: 1 segments in 1 of 1 files" in done.err
        assert "no damage is known" in done.err
    assert cairn("scrub", "clicks", "--json").json == []


def test_damage_ends_it_with_5_and_says_who_needs_what(cairn: Cairn, job: StatefulJob) -> None:
    first = job.batch(put_count(1, "eu", 1))
    [file] = Path(job.storage.removeprefix("file://")).rglob("*.seg")
    job.batch(put_count(1, "us", 1))
    file.unlink()
    done = cairn("scrub", "clicks", "--whole")
    assert done.code == 5
    assert "missing" in done.out
    assert file.name in done.out
    assert "1 segments that checkpoints need are damaged" in done.err
    done = cairn("scrub", "clicks", "--dry-run", "--json")
    [row] = json.loads(done.out)
    assert row["damage"] == "missing"
    assert row["checkpoints"] == [first, first + 1]
    listed = cairn("checkpoints", "clicks", "--json").json
    assert [one["damaged_segments"] for one in listed] == [1, 1]
    assert "damaged" in cairn("checkpoints", "clicks").out


def test_the_column_of_damage_is_there_only_where_something_is(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 1))
    assert "damaged" not in cairn("checkpoints", "clicks").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("nobody",),
        ("clicks", "--sample", "0"),
        ("clicks", "--sample", "nan"),
        ("clicks", "--sample", "4", "--whole"),
        ("clicks", "--max-rate", "0b"),
        ("clicks", "--max-rate", "fast"),
    ],
)
def test_wrong_arguments_are_bad_input(
    cairn: Cairn, job: StatefulJob, arguments: tuple[str, ...]
) -> None:
    job.batch(put_count(1, "eu", 1))
    assert cairn("scrub", *arguments).code == 2
