"""The command that rewrites files which are mostly dead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Outcome
from tests.maintenance.wasteful_job import WastefulJob

Cairn = Callable[..., Outcome]


@pytest.fixture
def wasteful(metastore_url: str, tmp_storage: str) -> WastefulJob:
    return WastefulJob(metastore_url, tmp_storage).create()


def test_a_dry_run_shows_the_files_and_a_run_rewrites_them(
    cairn: Cairn, wasteful: WastefulJob
) -> None:
    path = wasteful.waste()
    shown = cairn("compact", wasteful.name, "--dry-run")
    assert (shown.code, path in shown.out) == (0, True)
    assert "would copy 1000 bytes of 1 files. 3000 more bytes are free once" in shown.err
    [report] = cairn("compact", wasteful.name, "--json").json
    assert report["done"]["rewritten_files"] == 1
    assert [file["path"] for file in report["files"]] == [path]
    again = cairn("compact", wasteful.name)
    assert "nothing to rewrite" in again.err
    assert "they go with checkpoints that are retained now" in again.out


def test_the_plan_is_one_that_cairn_apply_takes(cairn: Cairn, wasteful: WastefulJob) -> None:
    wasteful.waste()
    assert cairn("plan", "compaction", wasteful.name).code == 0
    [(plan_id,)] = wasteful.sql(
        "SELECT maintenance_run_id FROM cairn.maintenance_runs"
        " WHERE job_id = :job AND action = 'compaction'"
    )
    assert cairn("apply", str(plan_id)).code == 0
    [(status,)] = wasteful.sql(
        "SELECT status FROM cairn.maintenance_runs WHERE job_id = :job AND action = 'compaction'"
    )
    assert status == "APPLIED"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--start", "1", "--stop", "2"], "the second is from 1 to the first"),
        (["--input-size", "many"], "'many' is no size such as 512mb"),
        (["--drain-parallelism", "2"], "the job runs with a parallelism of 2"),
    ],
)
def test_what_makes_no_sense_is_told(
    cairn: Cairn, wasteful: WastefulJob, arguments: list[str], said: str
) -> None:
    wasteful.waste()
    assert said in cairn("compact", wasteful.name, *arguments).err
