"""Compaction on a directory, on moto and on a real S3 server, and killed at each of its steps."""

from __future__ import annotations

import os
import signal

import pytest

from cairn.maintenance.actions import apply_plan
from cairn.maintenance.compaction import compact_job, plan_job
from cairn.maintenance.compaction_plan import CompactionOptions
from cairn.storage.ranges import LEAST_PART_BYTES
from tests.maintenance.wasteful_job import WastefulJob
from tests.runtime.forks import FORKS
from tests.storage import killed_compaction

OPTIONS = CompactionOptions()
FEWEST_STEPS = 4
"""Before and after the bytes, and the lease, the intent, the swap and the end; or the request."""


@pytest.fixture
def job(shared_metastore_url: str, url: str) -> WastefulJob:
    storage = url if url.startswith("s3://") else f"file://{url}"
    return WastefulJob(shared_metastore_url, storage, size_bytes=LEAST_PART_BYTES).create()


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("CAIRN_STORAGES", url)


def aws() -> dict[str, str]:
    return {name: v for name, v in os.environ.items() if name.startswith(("AWS_", "CAIRN_"))}


def test_the_store_itself_copies_what_is_moved(job: WastefulJob) -> None:
    path = job.waste()
    live = job.content(job.confirmed)
    report = compact_job(job.catalog, job.name, OPTIONS)
    assert report.done is not None
    assert (report.done.copied_bytes, report.done.passed_bytes) == (LEAST_PART_BYTES, 0)
    job.subsume()
    assert job.content(job.confirmed) == live
    assert path not in job.objects()
    assert job.objects() == job.known()


def test_killed_at_any_step_a_retry_by_another_process_finishes(job: WastefulJob) -> None:
    for number in range(1, 100):
        path = job.waste()
        kept, live = job.retained(), job.content(job.confirmed)
        planned = plan_job(job.catalog, job.name, OPTIONS)
        assert planned.plan_id is not None
        given = (job.url, str(planned.plan_id), aws(), number, job.storage.startswith("s3"))
        process = FORKS.Process(target=killed_compaction.run, args=given)
        process.start()
        process.join(60)
        assert job.retained() == kept, f"killed at step {number}"
        is_killed = process.exitcode == -signal.SIGKILL
        assert is_killed or process.exitcode == 0
        job.end_leases()
        done = apply_plan(job.catalog, planned.plan_id)
        assert done["rewritten_files"] in (0, 1)
        job.let_writes_end()
        job.subsume()
        assert job.content(job.confirmed) == live, f"killed at step {number}"
        assert path not in job.objects(), f"killed at step {number}"
        assert job.objects() == job.known(), f"killed at step {number}"
        copies = [one for one in job.objects() if "/maintenance/" in one]
        assert len(copies) == 1, (
            f"killed at step {number}: one copy is left, and it is the live one"
        )
        if not is_killed:
            break
    assert number > FEWEST_STEPS
