"""Applying a stored plan: every row is decided again, whatever happened since it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.cleanup.apply import Applied
from cairn.catalog.cleanup.snapshot import JobFacts, read_snapshot
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import RefusedError
from cairn.maintenance.cleanup import apply_stored, record_plan
from cairn.maintenance.plans import digest_of
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from metastore.enums import SegmentKind
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.metastore.rows import unguarded

NOTHING = Applied(0, 0, 0)


@dataclass
class Stored:
    """A plan on its way from the planner to the applier."""

    job: SyntheticJob
    facts: JobFacts
    plan: SubsumptionPlan
    stored: StoredPlan

    @classmethod
    def of(cls, job: SyntheticJob) -> Stored:
        snapshot = job.catalog.run("reading", lambda c: read_snapshot(c, job.name))
        plan = plan_subsumption(snapshot)
        return cls(job, snapshot.job, plan, record_plan(job.catalog, snapshot.job, plan))

    def apply(self) -> Applied:
        return apply_stored(self.job.catalog, self.facts, self.stored)


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def test_a_plan_applied_twice_changes_nothing_the_second_time(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    first = stored.apply()
    assert first == Applied(job.SUBSUMED, job.DEAD, job.DOOMED)
    before = dump(job.url)
    assert stored.apply() == first
    assert dump(job.url) == before


def test_a_zombies_plan_changes_nothing_after_another_cleanup(job: SyntheticJob) -> None:
    zombie, other = Stored.of(job), Stored.of(job)
    other.apply()
    assert zombie.apply() == NOTHING
    assert len(job.execute("SELECT FROM cairn.deletions")) == job.DOOMED


def test_a_plan_is_stored_with_its_digest(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    [(plan, sha256)] = job.execute("SELECT plan, plan_sha256 FROM cairn.maintenance_runs")
    assert (plan, sha256) == (stored.plan.to_json(), digest_of(stored.plan.to_json()))


def test_checkpoints_stay_that_the_job_retains_since(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    job.execute("UPDATE cairn.jobs SET num_retained = 4 WHERE job_id = :job")
    # 2 to 5 are retained now, and 2 needs the changelog of 1: only leftovers go.
    assert stored.apply() == Applied(subsumed_checkpoints=1, dead_segments=0, condemned_files=3)


def test_checkpoints_stay_that_were_pinned_since_and_the_others_are_subsumed(
    job: SyntheticJob,
) -> None:
    stored = Stored.of(job)
    job.execute(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind)"
        " VALUES (gen_random_uuid(), :job, 2, 'pin')"
    )
    # 2 needs the changelogs of 1 and of itself, which are 4 segments in 2 files.
    assert stored.apply() == Applied(
        job.SUBSUMED - 1, dead_segments=job.DEAD - 4, condemned_files=job.DOOMED - 2
    )
    again = Stored.of(job)
    assert again.plan.is_empty


def release(job: SyntheticJob, checkpoint: str) -> None:
    """Changes the release of the segments of checkpoint 2, which the guards refuse."""

    def work(connection: Connection) -> None:
        statement = f"UPDATE cairn.placed_segments SET released_checkpoint = {checkpoint}"  # noqa: S608
        with unguarded(connection, "placed_segments"):
            of_job = text(f"{statement} WHERE job_id = :job AND first_checkpoint = 2")
            connection.execute(of_job, {"job": job.job_id})

    job.catalog.run("releasing", work)


def test_segments_stay_that_are_not_released_any_more(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    release(job, "NULL")
    assert stored.apply() == Applied(
        job.SUBSUMED, dead_segments=job.DEAD - 2, condemned_files=job.DOOMED - 1
    )


def test_segments_stay_that_serve_a_checkpoint_for_longer_now(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    release(job, "5")
    assert stored.apply() == Applied(
        job.SUBSUMED, dead_segments=job.DEAD - 2, condemned_files=job.DOOMED - 1
    )


def test_a_file_stays_that_got_a_segment(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    [(losing,)] = job.execute(
        "SELECT file_id FROM cairn.physical_files WHERE status = 'SEALED' AND live_segments = 0"
    )

    def reuse(connection: Connection) -> None:
        job.add_segments(connection, losing, SegmentKind.CHANGELOG, 7, 7)

    job.catalog.run("adding a segment", reuse)
    assert stored.apply().condemned_files == job.DOOMED - 1


def test_a_file_stays_that_its_fenced_writer_managed_to_seal(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    [(file_id,)] = job.execute(
        "SELECT min(file_id::text)::uuid FROM cairn.physical_files"
        " WHERE status = 'WRITING' AND epoch = 1"
    )

    def seal(connection: Connection) -> None:
        job.seal(connection, file_id, 2)
        job.add_segments(connection, file_id, SegmentKind.CHANGELOG, 7, 7)

    job.catalog.run("sealing a file", seal)
    assert stored.apply().condemned_files == job.DOOMED - 1


def test_a_file_stays_whose_object_may_still_appear(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    job.execute(
        "UPDATE cairn.physical_files SET created_at = now() WHERE status = 'WRITING' AND epoch = 1"
    )
    assert stored.apply().condemned_files == job.DOOMED - 2


def test_a_file_stays_whose_batch_takes_acks_again(job: SyntheticJob) -> None:
    query = "SELECT status FROM cairn.physical_files WHERE batch_id = :batch"
    job.execute(
        "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, batch_id,"
        " created_at) VALUES (gen_random_uuid(), :job, 2,"
        " :job || '/shared/subtask-0-2/' || gen_random_uuid() || '.seg', 'shared', 7,"
        " now() - interval '1 hour')"
    )
    stored = Stored.of(job)
    job.execute(
        "INSERT INTO cairn.checkpoints (job_id, checkpoint_id, epoch, query_id, batch_id,"
        " parallelism) VALUES (:job, 7, 2, 'query', 7, 2)"
    )
    assert stored.apply().condemned_files == job.DOOMED
    assert job.execute(query, batch=7) == [("WRITING",)]


def test_another_jobs_plan_touches_nothing(job: SyntheticJob) -> None:
    other = SyntheticJob(job.url, job.storage).create()
    stored = Stored.of(job)
    stored.facts = Stored.of(other).facts
    with pytest.raises(RefusedError, match=r"no plan .* is stored"):
        stored.apply()


def test_a_plan_that_is_not_the_stored_one_is_refused(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    other = dict(stored.stored.plan) | {"subsumed_checkpoints": []}
    stored.stored = replace(stored.stored, plan=other)
    rows = dump(job.url)
    with pytest.raises(RefusedError, match=f"no plan .* with the hash {digest_of(other)}"):
        stored.apply()
    assert dump(job.url) == rows


def test_a_plan_older_than_an_hour_is_refused_for_good(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    job.execute("UPDATE cairn.maintenance_runs SET planned_at = now() - interval '61 minutes'")
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"older than 60 min.*Run the cleanup again"):
            stored.apply()
    [(status,)] = job.execute("SELECT status FROM cairn.maintenance_runs")
    assert status == "FAILED"
    assert not job.execute("SELECT FROM cairn.deletions")


def test_a_plan_of_59_minutes_is_applied(job: SyntheticJob) -> None:
    stored = Stored.of(job)
    job.execute("UPDATE cairn.maintenance_runs SET planned_at = now() - interval '59 minutes'")
    assert stored.apply().condemned_files == job.DOOMED
