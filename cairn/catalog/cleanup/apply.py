"""Applying a stored plan of the cleanup: one transaction that decides every row again.

The planner decides from a snapshot; `apply_plan` trusts none of it and checks each row in SQL,
under the job's lock. Lock order: the job, then the maintenance run's row, then the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Row,
    Uuid,
    any_,
    bindparam,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.cleanup.needs import (
    any_uuid,
    is_kept,
    is_needed,
    multirange,
)
from cairn.catalog.cleanup.snapshot import RETAINED, UNNEEDED_FILES, JobFacts
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN
from cairn.errors import RefusedError
from metastore.enums import CheckpointStatus, FileStatus, MaintenanceStatus, SegmentStatus
from metastore.models import Checkpoint, Deletion, MaintenanceRun, PlacedSegment


@dataclass(frozen=True, slots=True)
class Applied:
    """How many rows an applied plan changed."""

    subsumed_checkpoints: int
    dead_segments: int
    condemned_files: int


def apply_plan(
    connection: Connection,
    job: JobFacts,
    run_id: UUID,
    *,
    plan_sha256: str,
    checkpoints: Sequence[int],
    segments: Sequence[UUID],
    commits: Sequence[UUID],
    files: Sequence[UUID],
) -> Applied | None:
    """Executes those steps of a stored plan that still hold and returns the changes.

    Every row is decided again under the job's lock; rows that no longer qualify are left alone.
    Delete intents for the condemned files commit with it, and decisions about the others. A plan
    that was applied before changes nothing, and its changes then are returned. Returns None for a
    plan older than `PLAN_LIFE_MIN`, which is FAILED from then on.

    Raises:
        RefusedError: the plan is not the stored one.
    """
    num_retained = lock_job(connection, job.job_id, exclusive=True).num_retained
    run = _lock_run(connection, job, run_id, plan_sha256)
    # Applied by a first try whose answer was lost, so its changes are the answer.
    if run.status == MaintenanceStatus.APPLIED:
        return Applied(**run.result)
    if run.status == MaintenanceStatus.REFUSED:
        raise RefusedError(
            f"a circuit breaker spoke about plan {run_id}, and nobody has passed it", job=job.name
        )
    if run.status == MaintenanceStatus.FAILED or run.expired:
        # No error is raised here: it would roll the status back.
        _finish(connection, run_id, MaintenanceStatus.FAILED, {"refused": "expired"})
        return None
    applied = Applied(
        # In this order: a segment dies by what is retained, a file by which segments are live.
        subsumed_checkpoints=_subsume(connection, job, checkpoints, num_retained),
        dead_segments=_let_die(connection, job, segments)
        + _let_commits_die(connection, job, commits),
        condemned_files=_condemn(connection, job, files, run_id),
    )
    if applied.condemned_files < len(files):
        _note_skipped(connection, job, files, run_id)
    _finish(connection, run_id, MaintenanceStatus.APPLIED, asdict(applied))
    return applied


def _lock_run(connection: Connection, job: JobFacts, run_id: UUID, plan_sha256: str) -> Row[Any]:
    age = func.now() - MaintenanceRun.planned_at
    run = connection.execute(
        select(
            MaintenanceRun.status,
            MaintenanceRun.result,
            (age > func.make_interval(0, 0, 0, 0, 0, PLAN_LIFE_MIN)).label("expired"),
        )
        .where(
            MaintenanceRun.maintenance_run_id == run_id,
            MaintenanceRun.job_id == job.job_id,
            MaintenanceRun.plan_sha256 == plan_sha256,
        )
        .with_for_update()
    ).one_or_none()
    if run is None:
        raise RefusedError(
            f"no plan {run_id} with the hash {plan_sha256} is stored. Apply a plan as it was "
            "stored, or run the cleanup again: it makes a new plan",
            job=job.name,
        )
    return run


def _finish(
    connection: Connection, run_id: UUID, status: MaintenanceStatus, result: dict[str, Any]
) -> None:
    connection.execute(
        update(MaintenanceRun)
        .where(
            MaintenanceRun.maintenance_run_id == run_id,
            MaintenanceRun.status == MaintenanceStatus.PLANNED,
        )
        .values(status=status, result=result, finished_at=func.now())
    )


def _subsume(
    connection: Connection, job: JobFacts, checkpoints: Sequence[int], num_retained: int
) -> int:
    newest = (
        select(Checkpoint.checkpoint_id)
        .where(Checkpoint.job_id == job.job_id, Checkpoint.status == CheckpointStatus.CONFIRMED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(num_retained)
        .subquery()
    )
    return connection.execute(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job.job_id,
            Checkpoint.checkpoint_id == any_(literal(list(checkpoints), ARRAY(BigInteger))),
            Checkpoint.status == CheckpointStatus.CONFIRMED,
            Checkpoint.checkpoint_id < select(func.min(newest.c.checkpoint_id)).scalar_subquery(),
            ~is_kept(job.job_id),
        )
        .values(status=CheckpointStatus.SUBSUMED, ended_at=func.now())
    ).rowcount


def _let_die(connection: Connection, job: JobFacts, segments: Sequence[UUID]) -> int:
    # As a multirange: a join would also visit every checkpoint that this transaction subsumed.
    retained = multirange(
        Checkpoint.checkpoint_id, Checkpoint.job_id == job.job_id, Checkpoint.status.in_(RETAINED)
    )
    return connection.execute(
        update(PlacedSegment)
        .where(
            PlacedSegment.job_id == job.job_id,
            PlacedSegment.segment_id == any_uuid(segments),
            PlacedSegment.status == SegmentStatus.LIVE,
            ~is_needed(retained),
        )
        .values(status=SegmentStatus.DEAD)
    ).rowcount


_COMMITS_DIE = text("""
    WITH chosen AS MATERIALIZED (
        -- The oldest retained checkpoint that may need it; whatever that one does not need, newer
        -- ones do not.
        SELECT
            c.commit_id,
            (
                SELECT min(t.checkpoint_id) FROM cairn.checkpoints AS t
                WHERE t.job_id = :job_id
                  AND t.checkpoint_id >= c.checkpoint_id
                  AND t.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
            ) AS oldest
        FROM cairn.group_commits AS c
        WHERE c.job_id = :job_id AND c.commit_id = ANY (:commits) AND c.status = 'LIVE'
    ),
    covered AS MATERIALIZED (
        SELECT r.oldest, cairn.covered_until(:job_id, r.oldest) AS until
        FROM (SELECT DISTINCT oldest FROM chosen WHERE oldest IS NOT NULL) AS r
    ),
    to_come AS MATERIALIZED (
        SELECT cairn.covered_until(:job_id, NULL) AS until
    )
    UPDATE cairn.group_commits AS c
    SET status = 'DEAD'
    FROM chosen LEFT JOIN covered USING (oldest) CROSS JOIN to_come
    WHERE c.commit_id = chosen.commit_id
      AND c.status = 'LIVE'
      AND cairn.is_covered(c.key_groups, c.checkpoint_id, to_come.until)
      AND (
        chosen.oldest IS NULL
        OR NOT cairn.is_needed_by(c.checkpoint_id, c.key_groups, chosen.oldest, covered.until)
    )
    RETURNING (
        SELECT count(*) FROM unnest(c.segment_subtasks) AS s (subtask)
        WHERE s.subtask <> ALL (c.replaced_subtasks)
    )
""").bindparams(bindparam("commits", type_=ARRAY(Uuid())))


def _let_commits_die(connection: Connection, job: JobFacts, commits: Sequence[UUID]) -> int:
    """Returns how many segments died."""
    died = connection.scalars(_COMMITS_DIE, {"job_id": job.job_id, "commits": list(commits)})
    return sum(died)


_NOTE_SKIPPED = text("""
    INSERT INTO cairn.maintenance_decisions (maintenance_run_id, job_id, decision, reason, path)
    SELECT
        :run_id, f.job_id, 'SKIPPED',
        CASE
            WHEN f.status IN ('CONDEMNED', 'DELETED') THEN 'another cleanup has condemned it'
            ELSE 'something needs it, or may seal it, since the plan was made'
        END,
        f.path
    FROM cairn.physical_files AS f
    LEFT JOIN cairn.deletions AS d
        ON d.file_id = f.file_id AND d.maintenance_run_id = :run_id
    WHERE f.job_id = :job_id AND f.file_id = ANY (:files) AND d.file_id IS NULL
    ON CONFLICT DO NOTHING
""").bindparams(bindparam("run_id", type_=Uuid()), bindparam("files", type_=ARRAY(Uuid())))


def _note_skipped(
    connection: Connection, job: JobFacts, files: Sequence[UUID], run_id: UUID
) -> None:
    """Records which files of a plan stay, and why."""
    facts = {"run_id": run_id, "job_id": job.job_id, "files": list(files)}
    connection.execute(_NOTE_SKIPPED, facts)


def _condemn(connection: Connection, job: JobFacts, files: Sequence[UUID], run_id: UUID) -> int:
    """Condemns files and adds their delete intents in one statement."""
    unneeded = UNNEEDED_FILES.c
    # Through the view, so that a row that changed meanwhile is decided again as it is now.
    condemned = (
        update(UNNEEDED_FILES)
        .where(
            unneeded.job_id == job.job_id,
            unneeded.file_id == any_uuid(files),
            unneeded.is_condemnable,
        )
        .values(status=FileStatus.CONDEMNED, condemned_at=func.now())
        .returning(unneeded.file_id, unneeded.job_id, unneeded.path)
        .cte("condemned")
    )
    columns = [Deletion.file_id, Deletion.job_id, Deletion.path, Deletion.maintenance_run_id]
    return connection.execute(
        # With the status, in one statement: nothing is condemned without its intent, or the
        # reverse.
        insert(Deletion).from_select(columns, select(condemned, literal(run_id, Uuid())))
    ).rowcount
