"""Every transaction on a large job touches what it changes and returns, not the job's history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, text

from metastore.definitions import VIEWS
from metastore.models import Base
from tests.databases import Databases, connect
from tests.metastore.large_calls import BASES, CALLS, COMMITS, FILES, LIVE, Limit
from tests.metastore.large_job import NEWEST, LargeJob
from tests.metastore.watched import Statement, watching

pytestmark = pytest.mark.slow

TABLES = ", ".join(map(str, Base.metadata.sorted_tables))


@pytest.fixture(scope="module")
def job(databases: Databases) -> Iterator[LargeJob]:
    with databases.large() as url:
        yield LargeJob.create(url)


@contextmanager
def rolled_back(job: LargeJob) -> Iterator[Connection]:
    with job.catalog.begin() as connection:
        yield connection
        connection.rollback()
    # What was rolled back is found until then, in indexes too, even if there is little of it.
    with connect(job.url) as connection:
        connection.execute(text(f"VACUUM (INDEX_CLEANUP ON) {TABLES}"))


@pytest.mark.parametrize("name", CALLS)
def test_a_transaction_touches_what_it_changes_and_returns(job: LargeJob, name: str) -> None:
    prepare, limit = CALLS[name]
    with rolled_back(job) as connection:
        work = prepare(job, connection)
        with watching() as seen:
            work(connection)
    require_within(seen, limit)


def require_within(seen: list[Statement], limit: Limit) -> None:
    story = "\n".join(map(str, seen))
    rows, pages = sum(one.rows for one in seen), sum(one.pages for one in seen)
    assert [str(one) for one in seen if one.full_scans] == [], "no table of history is scanned"
    assert rows <= limit.rows, f"{rows} rows:\n{story}"
    assert pages <= limit.pages, f"{pages} pages:\n{story}"


# --------------------------------------------------------------------------- views

OF_JOB = "WHERE job_id = :job_id"
RECENT = f"{OF_JOB} AND checkpoint_id > {NEWEST - 10}"
ONE_RUN = (
    "WHERE job_id = :job_id AND maintenance_run_id = (SELECT m.maintenance_run_id"
    " FROM cairn.maintenance_runs AS m WHERE m.job_id = :job_id ORDER BY m.planned_at LIMIT 1)"
)
ONE_FILE = (
    "WHERE job_id = :job_id AND path = (SELECT f.path FROM cairn.physical_files AS f"
    " WHERE f.job_id = :job_id AND f.status = 'SEALED' LIMIT 1)"
)
UNDELETED = f"{OF_JOB} AND status <> 'DELETED'"
QUERIES: dict[str, tuple[str, Limit]] = {
    "v_jobs": ("", Limit(20, 20)),
    "v_checkpoint_history": (RECENT, Limit(30 * COMMITS, 30 * COMMITS)),
    "v_changelog_storage": (RECENT, Limit(15 * COMMITS, 11 * COMMITS)),
    "v_damaged_segments": (OF_JOB, Limit(10, 40)),
    "v_directories": (UNDELETED, Limit(2 * FILES, 2 * FILES)),
    "v_files": (UNDELETED, Limit(30 * FILES, 20 * FILES)),
    "v_keepers": (ONE_FILE, Limit(50, 150)),
    "v_lost_uploads": (OF_JOB, Limit(10, 20)),
    "v_maintenance_decisions": (ONE_RUN, Limit(10, 20)),
    "v_maintenance_runs": (f"{OF_JOB} ORDER BY planned_at DESC LIMIT 100", Limit(600, 1000)),
    "v_materialization": (OF_JOB, Limit(LIVE + 5 * BASES, LIVE)),
    "v_metrics": ("", Limit(6 * LIVE, 6 * LIVE)),
    "v_pins": (f"{OF_JOB} AND removed_at IS NULL", Limit(10, 20)),
    "v_run_requests": (f"{OF_JOB} ORDER BY requested_at DESC", Limit(10, 20)),
    "v_space": (OF_JOB, Limit(3 * FILES, 2 * FILES)),
    "v_space_amplification": (OF_JOB, Limit(2 * FILES, 2 * FILES)),
    "v_unneeded_files": (OF_JOB, Limit(2 * FILES, 2 * FILES)),
    "segments": (f"{OF_JOB} AND first_checkpoint = {NEWEST}", Limit(5 * BASES, 10 * BASES)),
    "subtask_acks": (f"{OF_JOB} AND checkpoint_id = {NEWEST}", Limit(2 * COMMITS, 2 * COMMITS)),
}
"""By view, as the CLI, Prometheus and people ask it."""
WHOLE_HISTORY = {"v_history_by_day", "v_native_comparison"}
"""Views that sum over all batches of a job."""


def test_every_view_is_asked() -> None:
    assert {path.stem for path in VIEWS} == QUERIES.keys() | WHOLE_HISTORY


@pytest.mark.parametrize("view", QUERIES)
def test_a_view_touches_what_it_returns(job: LargeJob, view: str) -> None:
    where, limit = QUERIES[view]
    query = text(f"SELECT * FROM cairn.{view} {where}")  # noqa: S608 - fixed texts
    facts = {"job_id": job.job_id} if where else {}
    with rolled_back(job) as connection, watching() as seen:
        connection.execute(query, facts).all()
    require_within(seen, limit)
