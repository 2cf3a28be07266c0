"""No row refers to another job's, which could not be deleted any more, or would look otherwise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from threading import Thread

import pytest
from sqlalchemy import update

from cairn.catalog.cleanup.drop import mark_dropped, rename_job
from cairn.catalog.cleanup.snapshot import read_snapshot
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.job.run_ends import record_run_end
from cairn.catalog.jobs import find_job
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.cleanup import record_plan
from cairn.maintenance.subsumption import plan_subsumption
from metastore.models import Job
from tests.metastore.steps import Steps


def with_batches(url: str, storage: str, name: str) -> Steps:
    """Returns a job with four batches, whose run has ended."""
    job = Steps(url, storage, name)
    epoch = job.register()
    for batch_id in range(4):
        job.whole_batch(epoch, batch_id)
    job.run(lambda c: record_run_end(c, job.ref(epoch, 0)))
    return job


@pytest.fixture
def jobs(metastore_url: str, tmp_storage: str) -> tuple[Steps, Steps]:
    ours, theirs = (with_batches(metastore_url, tmp_storage, name) for name in ("ours", "theirs"))
    return ours, theirs


def test_a_file_retries_none_of_another_job(jobs: tuple[Steps, Steps]) -> None:
    ours, theirs = jobs
    [(file_id,), *_] = theirs.sql("SELECT file_id FROM cairn.physical_files WHERE job_id = :job")
    retry = (
        "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, retry_of)"
        " VALUES (gen_random_uuid(), :job, 1, :job || '/chk-9/_metadata', 'shared', :first)"
    )
    with pytest.raises(RefusedError, match="a retry is of a file of its own job"):
        ours.sql(retry, first=file_id)
    theirs.sql(retry, first=file_id)


def test_a_deletion_is_by_no_plan_of_another_job(jobs: tuple[Steps, Steps]) -> None:
    ours, _ = jobs
    plans = []
    for job in jobs:
        snapshot = job.run(partial(read_snapshot, job_name=job.name))
        plans.append(record_plan(job.catalog, snapshot.job, plan_subsumption(snapshot)).run_id)
    batch = ours.ref(ours.register(), 4)
    ours.begin(batch)
    file = ours.intend(batch)
    asks = (
        "WITH c AS (UPDATE cairn.physical_files SET status = 'CONDEMNED'"
        " WHERE file_id = CAST(:file AS uuid) RETURNING file_id, job_id, path)"
        " INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id)"
        " SELECT file_id, job_id, path, CAST(:plan AS uuid) FROM c"
    )
    with pytest.raises(RefusedError, match="a deletion is of a plan of its own job"):
        ours.sql(asks, file=file.file_id, plan=str(plans[1]))
    ours.sql(asks, file=file.file_id, plan=str(plans[0]))


def test_no_job_has_the_id_of_another_one_for_a_name(jobs: tuple[Steps, Steps]) -> None:
    """A job that is dropped is called by its id: that would be refused for as long."""
    ours, theirs = jobs
    with pytest.raises(RefusedError, match="is the id of another job"):
        replace(ours, name=theirs.job_id).register()
    with pytest.raises(RefusedError, match="is the id of another job"):
        ours.run(lambda c: rename_job(c, ours.job_id, theirs.job_id))
    theirs.run(lambda c: mark_dropped(c, theirs.job_id))
    with pytest.raises(RefusedError, match="was dropped, and its state is being deleted"):
        Steps(ours.url, ours.storage, theirs.job_id).register()


def test_a_start_that_waited_gets_the_job_that_has_the_name_then(
    jobs: tuple[Steps, Steps],
) -> None:
    """It was renamed meanwhile, and another one has its name."""
    ours, theirs = jobs
    found: list[str] = []

    def look() -> None:
        found.append(str(ours.run(lambda c: find_job(c, "ours", locked=True)).job_id))

    waiting = Thread(target=look)
    held = ours.catalog.begin()
    with held as connection:
        lock_job(connection, ours.job_id, exclusive=True)
        waiting.start()
        ours.wait_until_blocked()
        for job_id, name in ((ours.job_id, "letters"), (theirs.job_id, "ours")):
            connection.execute(update(Job).where(Job.job_id == job_id).values(name=name))
        # Who has the job's lock does not have the other one's.
        held_too = theirs.catalog.begin()
        other = held_too.__enter__()
        lock_job(other, theirs.job_id, exclusive=True)
    ours.wait_until_blocked()
    held_too.__exit__(None, None, None)
    waiting.join(10)
    assert found == [theirs.job_id]


def test_a_start_that_waited_for_a_rename_says_which_jobs_there_are(
    jobs: tuple[Steps, Steps],
) -> None:
    ours, _ = jobs
    said: list[BaseException] = []

    def look() -> None:
        try:
            ours.run(lambda c: find_job(c, "ours", locked=True))
        except BadInputError as error:
            said.append(error)

    waiting = Thread(target=look)
    with ours.catalog.begin() as connection:
        lock_job(connection, ours.job_id, exclusive=True)
        waiting.start()
        ours.wait_until_blocked()
        rename_job(connection, ours.job_id, "letters")
    waiting.join(10)
    assert [str(one) for one in said] == ["no job 'ours'; there are: letters, theirs"]
