"""`cairn sweep` and `cairn quarantine`: what they print, and their exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from cairn.maintenance import orphans
from cairn.ownership.objects import write_owner
from tests.cli.conftest import Outcome
from tests.maintenance.sweeping import allow_any_share, cleaned_job, let_time_pass, orphans_of, put
from tests.maintenance.synthetic import SyntheticJob
from tests.ownership.test_two_metastores import another

Cairn = Callable[..., Outcome]


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, monkeypatch: pytest.MonkeyPatch) -> SyntheticJob:
    allow_any_share(monkeypatch)
    return cleaned_job(metastore_url, tmp_storage)


@pytest.fixture
def found(job: SyntheticJob, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Orphans, of any age."""
    monkeypatch.setattr(orphans.Clocks, "is_old", lambda *_: True)
    paths = orphans_of(job)
    put(job.store, *paths)
    return paths


def test_orphans_are_set_aside_taken_out_and_deleted(
    cairn: Cairn, job: SyntheticJob, found: list[str]
) -> None:
    put(job.store, f"{job.job_id}/notes")
    [forecast] = cairn("sweep", job.name, "--dry-run", "--json").json
    assert (forecast["quarantined"], forecast["dry_run"]) == (len(found), True)
    assert cairn("quarantine", "list", job.name, "--json").json == []
    done = cairn("sweep", job.name, "--quarantine", "30 d")
    assert done.code == 0
    assert f"1 objects have a name that nothing of Cairn's has, and stay, such as {job.job_id}" in (
        done.err
    )
    rows = cairn("quarantine", "list", job.name, "--json").json
    assert {row["path"]: row["status"] for row in rows} == dict.fromkeys(found, "QUARANTINED")
    restored = cairn("quarantine", "restore", job.name, found[0], found[1])
    assert (restored.code, restored.out.count("RESTORED")) == (0, 2)
    let_time_pass(job, days=8)
    assert cairn("sweep", job.name, "--json").json[0]["deleted"] == 0
    let_time_pass(job, days=23)
    assert cairn("sweep", job.name, "--json").json[0]["deleted"] == len(found) - 2
    late = cairn("quarantine", "restore", job.name, found[0], found[2])
    assert late.code == 4
    assert f"1 of 2 objects are not in quarantine, such as {found[2]}" in late.err
    assert job.objects() == {*job.needed, *found[:2], f"{job.job_id}/notes"}


def test_what_another_metastore_left_waits_for_a_confirmation(
    cairn: Cairn, job: SyntheticJob, found: list[str]
) -> None:
    assert cairn("metastore", "take-over", job.name).code == 0
    done = cairn("sweep", job.name, "--json")
    assert done.json[0]["orphans"] == 0
    assert f"{len(found)} objects are from before this metastore had the root" in done.err
    assert cairn("sweep", job.name, "--confirm", "--dry-run").code == 2
    assert cairn("sweep", job.name, "--confirm", "--json").json[0]["quarantined"] == len(found)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nobody"],
        ["job", "--root", "/tmp"],
        ["job", "--quarantine", "23 h"],
        ["job", "--quarantine", "soon"],
    ],
)
def test_wrong_arguments_are_bad_input(
    cairn: Cairn, job: SyntheticJob, arguments: list[str]
) -> None:
    given = [job.name if one == "job" else one for one in arguments]
    assert cairn("sweep", *given).code == 2


def test_a_storage_is_surveyed_root_by_root_and_nothing_changes(
    cairn: Cairn, job: SyntheticJob, found: list[str]
) -> None:
    root = Path(job.storage.removeprefix("file://"))
    theirs, nobodys = "theirs-1a2b3c4d", "nobodys-1a2b3c4d"
    write_owner(job.store, theirs, another(3))
    put(job.store, f"{nobodys}/shared/a.seg", "a-file")
    for name in (f".cairn-probe-{uuid4()}", f".tmp-{uuid4()}"):
        (root / name).write_bytes(b"left")
    before = {one.as_posix() for one in root.rglob("*")}
    rows = {row["name"]: row for row in cairn("sweep", "--root", job.storage, "--json").json}
    assert {one.as_posix() for one in root.rglob("*")} == before
    assert rows[job.job_id]["job"] == job.name
    assert rows[job.job_id]["objects"] == len(job.objects()) + 1
    assert rows[theirs]["place"] == "another metastore's root"
    assert rows[theirs]["owner"]
    assert rows[nobodys]["place"].startswith("no root of a job")
    assert rows["a-file"]["place"] == "nothing of Cairn's"
    assert sorted(row["place"] for name, row in rows.items() if name.startswith(".")) == [
        "a write probe that was left",
        "an unfinished write",
    ]
