"""The transactions of the catalog on a large job, each with how much it may touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.cleanup.apply import apply_plan
from cairn.catalog.cleanup.deletions import open_intents, record_outcome, total_open
from cairn.catalog.cleanup.snapshot import PLAN_ROWS, read_snapshot
from cairn.catalog.cleanup.verification import live_segments_of
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.directories import given_up_directories, record_removed
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.materializations import (
    Materialized,
    Replay,
    install,
    record_end,
    record_start,
    replay_of,
)
from cairn.catalog.job.runs import register_run
from cairn.catalog.job.segments import current_epoch, lineage_of, read_one_instant, segments_at
from cairn.catalog.maintenance.leased_files import LeaseRef, intend_leased_file
from cairn.catalog.maintenance.leases import take_lease
from cairn.catalog.maintenance.moves import movable_segments, swap_in
from cairn.catalog.maintenance.plans import NewPlan, store_plan
from cairn.catalog.maintenance.wasteful_files import FIRST, rewritable_files, wasteful_page
from cairn.catalog.savepoints.manifest_rows import (
    describe_checkpoint,
    intend_manifest,
    newest_manifest,
    seal_manifest,
)
from cairn.catalog.savepoints.pins import open_pins, pin_checkpoint, remove_pins
from cairn.cli.inspect import find_content
from cairn.keygroups import range_of
from cairn.maintenance.plans import digest_of
from cairn.maintenance.subsumption import SubsumptionPlan, plan_subsumption
from metastore.enums import MaintenanceAction, PinKind, SegmentKind
from tests.metastore.large_job import (
    EXECUTORS,
    LIVE_BATCHES,
    MAX_PARALLELISM,
    NEWEST,
    PARALLELISM,
    LargeJob,
)

COMMITS = EXECUTORS
"""Of a checkpoint."""
LIVE = LIVE_BATCHES * COMMITS
BASES = PARALLELISM
FILES = LIVE + BASES
OWN = range_of(7, PARALLELISM, MAX_PARALLELISM)
NOTHING = Replay(lineage=None, bases=[], changes=[], is_based=True)

Work = Callable[[Connection], object]
Prepare = Callable[[LargeJob, Connection], Work]
"""Does what comes before in a transaction, and returns what is watched."""


@dataclass(frozen=True)
class Limit:
    """How many rows and index entries, and how many pages, a call may touch."""

    rows: int
    pages: int


# ------------------------------------------------------------------------- a batch


def first_begin(job: LargeJob, connection: Connection) -> Work:
    return partial(begin_batch, batch=job.batch(), subtasks=job.subtasks())


def other_begin(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    return partial(begin_batch, batch=job.batch(), subtasks=job.subtasks(1), with_lists=True)


def begin_of_a_newer_run(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    job.ack_of_others(connection)
    newer = job.registration()
    epoch = register_run(connection, newer).epoch
    return partial(begin_batch, batch=job.batch(epoch, newer.run_id), subtasks=job.subtasks())


def registration(job: LargeJob, connection: Connection) -> Work:
    return partial(register_run, registration=job.registration())


def intent(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    return job.intend


def last_ack(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    job.ack_of_others(connection)
    return job.commit(job.intend(connection))


# ----------------------------------------------------- materialization and restore


def start_of_a_materialization(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    return partial(record_start, batch=job.batch(), subtask=7, materialization_id=uuid4())


def end_of_a_materialization(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    materialization_id = uuid4()
    record_start(connection, job.batch(), 7, materialization_id)
    made = Materialized.of([job.base(connection)[1]])
    return partial(record_end, materialization_id=materialization_id, made=made, error=None)


def installation_of_a_base(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    base = job.base(connection)
    return partial(install, batch=job.batch(), subtask=7, segments=[base])


def installation_of_an_increment(job: LargeJob, connection: Connection) -> Work:
    job.begin(connection)
    increment = job.base(connection, SegmentKind.KEYED_INCREMENT)
    return partial(install, batch=job.batch(), subtask=7, segments=[increment], replaced=NOTHING)


def one_instant(read: Callable[[LargeJob, Connection], object]) -> Prepare:
    """Returns a call that reads one instant, as its transaction does."""

    def prepare(job: LargeJob, connection: Connection) -> Work:
        read_one_instant(connection)
        return partial(read, job)

    return prepare


def content(job: LargeJob, connection: Connection) -> object:
    return find_content(connection, job.ref.name, None)


# ---------------------------------------------------------------- pins, manifests


def pin(job: LargeJob, connection: Connection) -> Work:
    return partial(
        pin_checkpoint,
        job_name=job.ref.name,
        checkpoint_id=None,
        pin_id=uuid4(),
        kind=PinKind.PIN,
        name=None,
    )


def unpin(job: LargeJob, connection: Connection) -> Work:
    pin(job, connection)(connection)

    def work(connection: Connection) -> None:
        [found] = open_pins(connection, job.ref.name, NEWEST, None)
        remove_pins(connection, job.ref.name, [found["pin_id"]])

    return work


def manifests_rows(job: LargeJob, connection: Connection) -> Work:
    manifest = describe_checkpoint(connection, job.job_id, NEWEST)

    def work(connection: Connection) -> None:
        newest_manifest(connection, job.job_id)
        seal_manifest(connection, intend_manifest(connection, manifest), b"manifest")

    return work


# ------------------------------------------------------------------------- cleanup


def snapshot_of_much(job: LargeJob, connection: Connection) -> Work:
    job.materialize(connection, NEWEST - 10)
    return partial(snapshot_here, job)


def snapshot_here(job: LargeJob, connection: Connection) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # This transaction has written already.
        patch.setattr("cairn.catalog.cleanup.snapshot.read_one_instant", lambda c: None)
        return read_snapshot(connection, job.ref.name)


def planned(job: LargeJob, connection: Connection) -> tuple[SubsumptionPlan, Work]:
    """Returns a plan as large as plans get, and how it is applied; it is stored."""
    job.materialize(connection, NEWEST - 10)
    snapshot = snapshot_here(job, connection)
    plan = plan_subsumption(snapshot)
    assert len(plan.dead_commits) == len(plan.condemned_files) == PLAN_ROWS
    run_id = uuid4()
    content = plan.to_json()
    store_plan(
        connection,
        run_id,
        NewPlan(
            job_id=snapshot.job.job_id,
            action=MaintenanceAction.SUBSUMPTION,
            plan=content,
            sha256=digest_of(content),
        ),
    )
    return plan, partial(
        apply_plan,
        job=snapshot.job,
        run_id=run_id,
        plan_sha256=digest_of(plan.to_json()),
        checkpoints=plan.subsumed_checkpoints,
        segments=plan.dead_segments,
        commits=plan.dead_commits,
        files=[file.file_id for file in plan.condemned_files],
    )


def application(job: LargeJob, connection: Connection) -> Work:
    return planned(job, connection)[1]


def intents_and_outcome(job: LargeJob, connection: Connection) -> Work:
    """Returns what a cleanup does with intents that are due, of many that are not."""
    planned(job, connection)[1](connection)
    job.age_intents(connection)

    def work(connection: Connection) -> None:
        found = open_intents(connection, job.job_id, after=None, limit=1000)
        failed = {found[0].file_id: "no"}
        gone = [intent.file_id for intent in found[1:]]
        assert record_outcome(connection, gone=gone, failed=failed).files == PLAN_ROWS - 1
        assert open_intents(connection, job.job_id, after=found[-1], limit=1000) == []

    return work


def total_of_open_intents(job: LargeJob, connection: Connection) -> Work:
    planned(job, connection)[1](connection)
    return partial(total_open, job_id=job.job_id)


def live_segments_of_files(job: LargeJob, connection: Connection) -> Work:
    """Returns the read of what `cairn verify --checksums` checks at once: half of it committed."""
    file_ids = [
        file_id
        for table in ("group_commits", "placed_segments")
        for file_id in connection.scalars(
            text(
                f"SELECT file_id FROM cairn.{table}"  # noqa: S608 - fixed names
                " WHERE job_id = :job AND status = 'LIVE' LIMIT 25"
            ),
            {"job": job.job_id},
        )
    ]

    def work(connection: Connection) -> None:
        assert len(live_segments_of(connection, file_ids)) > len(file_ids)

    return work


def removal_of_directories(job: LargeJob, connection: Connection) -> Work:
    """Returns the removal of those of an earlier run, of as many that are kept."""
    job.give_up_directories(connection)

    def work(connection: Connection) -> None:
        paths = given_up_directories(connection, job.job_id, limit=1000)
        assert len(paths) == EXECUTORS
        record_removed(connection, job.job_id, paths)

    return work


# Of what is read of group commits a restore compares each live one with its key groups.
WASTEFUL = 30


def files_to_rewrite(job: LargeJob, connection: Connection) -> Work:
    job.waste(connection, WASTEFUL)

    def work(connection: Connection) -> None:
        places = wasteful_page(connection, job.job_id, 1.5, FIRST)
        files = rewritable_files(connection, job.job_id, [one.file_id for one in places])
        assert [one.held_by for one in files] == [None] * WASTEFUL

    return work


def swap_of_a_copy(job: LargeJob, connection: Connection) -> Work:
    lease, file_id = LeaseRef(job.job_id, uuid4(), uuid4()), uuid4()
    plan = NewPlan(job_id=job.job_id, action=MaintenanceAction.COMPACTION, plan={}, sha256="")
    store_plan(connection, lease.run_id, plan)
    take_lease(connection, lease.run_id, lease.holder)
    path = intend_leased_file(connection, lease, file_id)
    [source] = connection.scalars(
        text(
            "SELECT file_id FROM cairn.placed_segments"
            " WHERE job_id = :job AND status = 'LIVE' AND kind = 'keyed_full' LIMIT 1"
        ),
        {"job": job.job_id},
    )

    def work(connection: Connection) -> None:
        [original] = movable_segments(connection, job.job_id, [source])
        copy = replace(original.handle, segment_id=str(uuid4()), path=path, offset=0)
        file = WrittenFile(str(file_id), copy.size_bytes)
        assert swap_in(connection, lease, file, [(original, copy)])

    return work


CALLS: dict[str, tuple[Prepare, Limit]] = {
    "registration": (registration, Limit(20, 100)),
    "first begin": (first_begin, Limit(BASES + 5 * COMMITS, 300)),
    "other begin, with lists": (other_begin, Limit(BASES + 5 * COMMITS, 300)),
    "begin of a newer run": (begin_of_a_newer_run, Limit(BASES + 15 * COMMITS, 6000)),
    "intent": (intent, Limit(10, 60)),
    "last ack": (last_ack, Limit(15 * COMMITS, 500)),
    "start of a materialization": (start_of_a_materialization, Limit(5, 40)),
    "end of a materialization": (end_of_a_materialization, Limit(10, 60)),
    "installation of a base": (installation_of_a_base, Limit(30, 150)),
    # With the indexes of what a plan looks for: three pages a file.
    "installation of an increment": (installation_of_an_increment, Limit(20, 100)),
    "replay of a subtask": (
        one_instant(lambda job, c: replay_of(c, job.job_id, NEWEST, OWN)),
        Limit(LIVE + 500, 3000),
    ),
    "restore of a subtask": (
        one_instant(
            lambda job, c: (
                segments_at(c, job.job_id, NEWEST, OWN),
                lineage_of(c, job.job_id, NEWEST),
                current_epoch(c, job.job_id),
            )
        ),
        Limit(LIVE + 500, 3000),
    ),
    "manifest": (
        one_instant(lambda job, c: describe_checkpoint(c, job.job_id, NEWEST)),
        Limit(3 * FILES, 4 * FILES),
    ),
    "state": (
        one_instant(content),
        Limit(3 * FILES, 4 * FILES),
    ),
    "intent and seal of a manifest": (manifests_rows, Limit(50, 150)),
    "pin": (pin, Limit(20, 60)),
    "unpin": (unpin, Limit(20, 60)),
    "snapshot of nothing to do": (
        one_instant(snapshot_here),
        Limit(3 * FILES, 2 * FILES),
    ),
    "snapshot of much to do": (snapshot_of_much, Limit(4 * FILES, 3 * FILES)),
    "application of a plan": (application, Limit(LIVE + 80 * PLAN_ROWS, 200 * PLAN_ROWS)),
    "delete intents and their outcome": (
        intents_and_outcome,
        Limit(40 * PLAN_ROWS, 120 * PLAN_ROWS),
    ),
    "total of the open delete intents": (
        total_of_open_intents,
        Limit(6 * PLAN_ROWS, 12 * PLAN_ROWS),
    ),
    "live segments of 50 files": (live_segments_of_files, Limit(2 * BASES, 3 * BASES)),
    "files to rewrite": (files_to_rewrite, Limit(12 * WASTEFUL, 30 * WASTEFUL)),
    "swap of a copy": (swap_of_a_copy, Limit(40, 150)),
    "removal of directories": (removal_of_directories, Limit(5 * FILES, 5 * FILES)),
}
