"""Which subtasks of a job are due to be folded, and which are folded together."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.maintenance.fold_facts import (
    FoldFacts,
    ShareFacts,
    jobs_left_to_maintenance,
    read_fold_facts,
)
from cairn.catalog.maintenance.folds import Share
from cairn.cli import main
from cairn.keygroups import KeyGroupRange
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.fold_plan import (
    LIGHT_BYTES,
    TOGETHER,
    TOGETHER_BYTES,
    DueShare,
    due_shares,
    of_json,
    to_json,
    together,
)
from cairn.maintenance.materialization import materialize_job
from metastore.enums import MaterializedBy
from tests.maintenance.folds import FoldedJob
from tests.metastore.steps import Steps

INTERVAL_MS = 600_000


def facts(
    *, base_bytes: int = 0, increment_bytes: int = 0, changelog_bytes: int = 1, age_ms: int = 0
) -> FoldFacts:
    share = ShareFacts(
        share=Share(0, KeyGroupRange(0, 8)),
        base_bytes=base_bytes,
        increment_bytes=increment_bytes,
        changelog_bytes=changelog_bytes,
        age_ms=age_ms,
    )
    job = JobFacts(
        job_id="words-00000000",
        name="words",
        storage="file:///nowhere",
        num_retained=2,
        file_retention_ms=0,
        current_epoch=1,
    )
    return FoldFacts(
        job=job,
        materialized_by=MaterializedBy.MAINTENANCE,
        interval_ms=INTERVAL_MS,
        checkpoint_id=1,
        shares=(share,),
    )


def test_a_subtask_is_due_once_the_interval_has_passed_and_it_has_changelog() -> None:
    assert not due_shares(facts(age_ms=INTERVAL_MS - 1))
    assert due_shares(facts(age_ms=INTERVAL_MS))
    assert not due_shares(facts(age_ms=INTERVAL_MS, changelog_bytes=0, increment_bytes=10))


def test_a_subtask_is_due_earlier_where_a_restore_would_read_too_much() -> None:
    assert not due_shares(facts(changelog_bytes=LIGHT_BYTES))
    assert due_shares(facts(changelog_bytes=LIGHT_BYTES, increment_bytes=1))
    assert not due_shares(facts(changelog_bytes=LIGHT_BYTES + 1, base_bytes=5 * LIGHT_BYTES))


shares = st.lists(st.integers(0, TOGETHER_BYTES * 2), max_size=60).map(
    lambda sizes: [
        DueShare(share=Share(n, KeyGroupRange(n, n + 1)), base_bytes=size, change_bytes=1)
        for n, size in enumerate(sizes)
    ]
)


@given(shares)
def test_shares_that_are_folded_together_are_few_and_small_and_none_is_lost(
    due: list[DueShare],
) -> None:
    groups = list(together(due))
    assert [one for group in groups for one in group] == due
    assert all(len(group) <= TOGETHER for group in groups)
    assert all(
        len(group) == 1 or sum(one.size_bytes for one in group) <= TOGETHER_BYTES
        for group in groups
    )
    assert of_json(to_json(due)) == due


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> FoldedJob:
    return FoldedJob(metastore_url, tmp_storage, str(tmp_path / "local"))


def test_facts_are_those_of_the_rows(job: FoldedJob) -> None:
    job.run(3)
    before = job.catalog.run("", lambda c: read_fold_facts(c, "words"))
    assert [one.base_bytes for one in before.shares] == [0, 0]
    assert all(one.changelog_bytes > 0 for one in before.shares)
    job.fold()
    job.run(1)
    after = job.catalog.run("", lambda c: read_fold_facts(c, "words"))
    assert after.checkpoint_id == 3
    assert all(one.base_bytes > 0 for one in after.shares)
    assert all(
        one.changelog_bytes < two.changelog_bytes
        for one, two in zip(after.shares, before.shares, strict=True)
    )


def test_a_dry_run_says_what_is_due_and_changes_nothing(
    job: FoldedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(3)
    job.make_due()
    report = materialize_job(job.catalog, "words", dry_run=True)
    assert (report.due, report.folded) == (2, 0)
    assert report.due_bytes > 0
    assert job.sql("SELECT 1 FROM cairn.maintenance_runs") == []
    arguments = ["materialize", "words", "--json", "--metastore", job.catalog.url]
    assert main([*arguments, "--dry-run"]) == 0
    assert '"folded": 0' in capsys.readouterr().out
    assert main(arguments) == 0
    assert '"folded": 2' in capsys.readouterr().out
    assert job.sql("SELECT status FROM cairn.maintenance_runs") == [("APPLIED",)]


def test_the_platform_takes_the_jobs_whose_runs_leave_it_to_it(job: FoldedJob) -> None:
    assert job.catalog.run("", jobs_left_to_maintenance) == []
    job.sql("UPDATE cairn.jobs SET materialized_by = 'maintenance' WHERE job_id = :job")
    assert job.catalog.run("", jobs_left_to_maintenance) == ["words"]


def test_a_maintainers_login_may_fold_and_clean_up_after_it(job: FoldedJob) -> None:
    user = f"maintainer_{uuid4().hex[:8]}"
    job.sql(f"CREATE ROLE {user} LOGIN IN ROLE cairn_maintainer")
    url = make_url(job.catalog.url).set(username=user).render_as_string(False)
    try:
        for _ in range(2):
            job.run(3)
            job.make_due()
            assert materialize_job(Catalog(url), "words").folded == 2
        job.run(3)
        assert cleanup_job(Catalog(url), "words").deleted_files > 0
    finally:
        dispose_engines()
        job.sql(f"DROP ROLE {user}")


def test_who_materializes_becomes_the_jobs_with_a_runs_first_batch(
    metastore_url: str, tmp_storage: str
) -> None:
    steps = Steps(metastore_url, tmp_storage)
    epoch = steps.register(materialized_by=MaterializedBy.MAINTENANCE, materialize_interval_ms=5000)
    found = "SELECT materialized_by, materialize_interval_ms FROM cairn.jobs WHERE job_id = :job"
    assert steps.sql(found) == [("stream", 600_000)]
    steps.begin(steps.ref(epoch, 0))
    assert steps.sql(found) == [("maintenance", 5000)]
