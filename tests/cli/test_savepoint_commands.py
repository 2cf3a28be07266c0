"""savepoint, pin, unpin, pins and metastore rebuild, from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from cairn.cli import main
from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count

Cairn = Callable[..., Outcome]


@pytest.fixture
def clicks(job: StatefulJob) -> StatefulJob:
    """Checkpoints 1 to 4 are confirmed, 5 is not; two are retained."""
    for n in range(5):
        job.batch(put_count(1, "eu", n))
    return job


def root(job: StatefulJob) -> Path:
    return Path(unquote(urlsplit(job.storage).path))


def manifests(job: StatefulJob) -> list[str]:
    return sorted(path.parent.name for path in root(job).glob("*/chk-*/_metadata"))


def test_savepoint_prints_the_url_of_the_newest_confirmed_checkpoint(
    cairn: Cairn, clicks: StatefulJob
) -> None:
    [made] = cairn("savepoint", "clicks", "--name", "move", "--json").json
    url = f"{clicks.storage}/{clicks.job_id}/chk-4/_metadata"
    assert (made["manifest"], made["checkpoint_id"], made["batch_id"]) == (url, 4, 3)
    assert Path(unquote(urlsplit(url).path)).is_file()
    [listed] = cairn("pins", "clicks", "--json").json
    assert (listed["kind"], listed["name"], listed["manifest"]) == ("savepoint", "move", url)
    assert url in cairn("savepoint", "clicks").out


def test_a_pinned_checkpoint_is_read_after_cleanups_until_it_is_unpinned(
    cairn: Cairn, clicks: StatefulJob
) -> None:
    [made] = cairn("pin", "clicks", "2", "--json").json
    assert (made["kind"], made["checkpoint_id"], made["is_new"]) == ("pin", 2, True)
    assert cairn("cleanup").code == 0
    [entry] = cairn("state", "clicks", "--checkpoint", "2", "--json").json
    assert entry["value"] == {"n": 1}
    [gone] = cairn("unpin", "clicks", "2", "--json").json
    assert gone["checkpoint_id"] == 2
    assert cairn("pins", "clicks", "--json").json == []
    assert cairn("cleanup").code == 0
    assert cairn("state", "clicks", "--checkpoint", "2").code == 2
    assert manifests(clicks) == []


def test_a_dry_run_changes_nothing(cairn: Cairn, clicks: StatefulJob) -> None:
    [told] = cairn("pin", "clicks", "3", "--dry-run", "--json").json
    assert (told["checkpoint_id"], told["dry_run"]) == (3, True)
    assert cairn("savepoint", "clicks", "--dry-run", "--json").json[0]["checkpoint_id"] == 4
    assert (cairn("pins", "clicks", "--json").json, manifests(clicks)) == ([], [])
    cairn("pin", "clicks", "3")
    assert cairn("unpin", "clicks", "3", "--dry-run", "--json").json[0]["checkpoint_id"] == 3
    assert len(cairn("pins", "clicks", "--json").json) == 1


def test_unpin_by_name_takes_all_of_that_name(cairn: Cairn, clicks: StatefulJob) -> None:
    for checkpoint in ("2", "3"):
        cairn("pin", "clicks", checkpoint, "--name", "audit")
    cairn("pin", "clicks", "4")
    assert len(cairn("unpin", "clicks", "--name", "audit", "--json").json) == 2
    assert [row["checkpoint_id"] for row in cairn("pins", "clicks", "--json").json] == [4]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pin", "clikcs"], 2, "no job 'clikcs'; did you mean clicks? there are: clicks"),
        (["pin", "clicks", "5"], 4, "5 is COMPLETED; those that can be pinned are 1, 2, 3, 4"),
        (["unpin", "clicks", "2"], 2, "no checkpoint is pinned"),
        (["unpin", "clicks"], 2, "unpin takes a checkpoint, a --name, or both"),
        (["metastore", "rebuild", "ftp://nowhere"], 2, "storage is one of s3://"),
    ],
)
def test_what_cannot_be_done_is_refused_on_one_line(
    cairn: Cairn, clicks: StatefulJob, arguments: list[str], code: int, says: str
) -> None:
    outcome = cairn(*arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


def rebuild(url: str, job: StatefulJob, *more: str) -> list[str]:
    return ["metastore", "rebuild", job.storage, "--metastore", url, *more]


def test_a_metastore_is_rebuilt_from_storage(
    cairn: Cairn, clicks: StatefulJob, other_url: str, capfd: Any
) -> None:
    cairn("savepoint", "clicks")
    for more in (["--dry-run"], []):
        [back] = cairn(*rebuild(other_url, clicks, "--json", *more)).json
        assert (back["job"], back["checkpoints"], back["batch_id"]) == ("clicks", 1, 3)
    assert back["unknown_files"] == 1, "the changelog of checkpoint 5"
    known = ["--metastore", other_url, "--json"]
    [entry] = cairn("state", "clicks", *known).json
    assert entry["value"] == {"n": 3}
    [listed] = cairn("pins", "clicks", *known).json
    assert (listed["checkpoint_id"], listed["name"]) == (4, "rebuilt")
    again = cairn(*rebuild(other_url, clicks))
    assert again.code == 4
    assert "the metastore has a job 'clicks'" in again.err


def test_what_cannot_be_rebuilt_is_told_by_file(
    cairn: Cairn, clicks: StatefulJob, other_url: str
) -> None:
    none = cairn(*rebuild(other_url, clicks))
    assert none.code == 2
    assert f"not used: {clicks.job_id}: no manifest" in none.err
    cairn("savepoint", "clicks")
    cairn("pin", "clicks", "2")
    [damaged] = root(clicks).glob("*/chk-2/_metadata")
    damaged.write_bytes(b"x")
    outcome = cairn(*rebuild(other_url, clicks))
    assert outcome.code == 5
    assert "chk-2/_metadata: the object is not a manifest" in outcome.err
    shutil.rmtree(root(clicks))
    assert main(rebuild(other_url, clicks)) == 3


def test_a_pin_has_a_name_that_can_be_printed(cairn: Cairn, job: StatefulJob) -> None:
    outcome = cairn("savepoint", "clicks", "--name", "\x1b[2J")
    assert outcome.code == 2
    assert "the name of a pin" in outcome.err
    assert "\x1b" not in outcome.err
