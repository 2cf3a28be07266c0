"""Sweeps that are killed anywhere, and two at once: the next one finishes, nothing else goes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.maintenance.sweeping import (
    let_time_pass,
    orphans_of,
    put,
    quarantine,
    swept,
)
from tests.maintenance.synthetic import SyntheticJob


@pytest.fixture
def orphans(job: SyntheticJob) -> list[str]:
    """Some are to be deleted now, the last one to be set aside."""
    *due, new = orphans_of(job)
    put(job.store, *due)
    swept(job)
    let_time_pass(job)
    put(job.store, new)
    (root(job) / "chk-3").mkdir()
    return [*due, new]


def root(job: SyntheticJob) -> Path:
    return Path(job.storage.removeprefix("file://")) / job.job_id


def start_sweep(job: SyntheticJob, *kill: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.maintenance.one_sweep", job.url, job.name, *kill],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_safe(job: SyntheticJob, orphans: list[str]) -> None:
    """All that is needed is there, and what is gone has an intent."""
    present, rows = job.objects(), quarantine(job)
    assert job.needed <= present
    gone = {path for path in orphans if path not in present}
    assert all(rows[path] in ("CONDEMNED", "DELETED") for path in gone)
    assert rows.get(orphans[-1], "QUARANTINED") == "QUARANTINED"


def assert_finished(job: SyntheticJob, orphans: list[str]) -> None:
    swept(job)
    assert job.objects() == {*job.needed, orphans[-1]}
    assert quarantine(job) == dict.fromkeys(orphans[:-1], "DELETED") | {orphans[-1]: "QUARANTINED"}
    assert not (root(job) / "chk-3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["commit", "unlink"])
def test_killed_at_any_step_the_next_sweep_finishes(
    job: SyntheticJob, orphans: list[str], kind: str
) -> None:
    # One after the other on the same root: each continues what those before have left.
    for number in range(1, 40):
        process = start_sweep(job, kind, str(number))
        process.communicate("go\n")
        assert_safe(job, orphans)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    else:
        raise AssertionError("a sweep has no 40 steps")
    assert number > (3 if kind == "unlink" else 10)
    assert_finished(job, orphans)


def test_two_sweeps_at_once_delete_each_orphan_once(job: SyntheticJob, orphans: list[str]) -> None:
    processes = [start_sweep(job) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(report["deleted"] for report in reports) == len(orphans) - 1
    assert sum(report["quarantined"] for report in reports) == 1
    assert_safe(job, orphans)
    assert_finished(job, orphans)
