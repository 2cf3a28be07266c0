"""Sweeps that are killed anywhere, and two at once: the next one finishes, nothing else goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import Forked
from tests.maintenance.killed import sweep
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


def start_sweep(job: SyntheticJob, kill_at: tuple[str, int] | None = None) -> Forked:
    return Forked(sweep, job.url, job.name, kill_at=kill_at)


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
        is_over = start_sweep(job, (kind, number)).run()
        assert_safe(job, orphans)
        if is_over:
            break
    else:
        raise AssertionError("a sweep has no 40 steps")
    assert number > (3 if kind == "unlink" else 10)
    assert_finished(job, orphans)


def test_two_sweeps_at_once_delete_each_orphan_once(job: SyntheticJob, orphans: list[str]) -> None:
    processes = [start_sweep(job) for _ in range(2)]
    for process in processes:
        process.go()
    assert [process.end() for process in processes] == [True, True]
    assert sum(process.result.deleted for process in processes) == len(orphans) - 1
    assert sum(process.result.quarantined for process in processes) == 1
    assert_safe(job, orphans)
    assert_finished(job, orphans)
