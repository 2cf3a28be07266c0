"""What this metastore knows about the roots that it owns. Each function is in one transaction."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.fencing import lock_job
from cairn.errors import FencedError, RefusedError
from cairn.owner import Ownership, OwnFacts
from metastore.models import Job
from metastore.models import Ownership as Row

LOST_CHECKPOINTS = 10_000
"""Ids that are left free when a root is taken over: of manifests that its last owner may write."""

_FACTS = text("""
    SELECT
        m.metastore_id, cairn.database_id() AS database_id, cairn.timeline() AS timeline, j.name,
        j.storage, j.next_checkpoint_id, o.generation, o.ownership_id,
        o.database_id AS database_then, o.timeline AS timeline_then, o.began_at, o.written_at,
        (
            SELECT coalesce(max(w.generation), 0) FROM cairn.ownerships AS w
            WHERE w.job_id = j.job_id AND w.written_at IS NOT NULL
        ) AS written_generation
    FROM cairn.jobs AS j
    CROSS JOIN cairn.metastore AS m
    LEFT JOIN LATERAL (
        SELECT * FROM cairn.ownerships AS n
        WHERE n.job_id = j.job_id ORDER BY n.generation DESC LIMIT 1
    ) AS o ON TRUE
    WHERE j.job_id = :job_id
""")


def own_facts(connection: Connection, job_id: str) -> OwnFacts:
    """Returns what this metastore knows about itself and about a job's root.

    Raises:
        FencedError: the job is gone.
        RefusedError: the metastore has lost its id.
    """
    row = connection.execute(_FACTS, {"job_id": job_id}).one_or_none()
    if row is None:
        if connection.scalar(select(Job.job_id).where(Job.job_id == job_id)) is None:
            raise FencedError(
                f"the metastore has no job with the root {job_id}/ any more: it was dropped",
                job=job_id,
            )
        raise RefusedError(
            "the table cairn.metastore has lost its row, so nobody knows whose the root is: "
            "restore it from a backup",
            job=job_id,
        )
    newest = None
    if row.generation is not None:
        newest = Ownership(
            generation=row.generation,
            ownership_id=str(row.ownership_id),
            database_id=row.database_then,
            timeline=row.timeline_then,
            since=row.began_at,
            is_written=row.written_at is not None,
        )
    return OwnFacts(
        metastore_id=str(row.metastore_id),
        database_id=row.database_id,
        timeline=row.timeline,
        job=row.name,
        job_id=job_id,
        storage=row.storage,
        next_checkpoint_id=row.next_checkpoint_id,
        ownership=newest,
        written_generation=row.written_generation,
    )


def begin_ownership(
    connection: Connection,
    job_id: str,
    ownership_id: UUID,
    *,
    above_generation: int = 0,
    above_checkpoint: int | None = None,
) -> OwnFacts:
    """Records that this metastore sets out to own a root, before the owner object is written.

    One that was begun here, and whose generation is above that of storage, is continued. A new one
    has the next generation. With `above_checkpoint`, the newest in storage, the job's next
    checkpoint is far above that, so that no manifest of a lost history has its id.
    """
    lock_job(connection, job_id, exclusive=True)
    facts = own_facts(connection, job_id)
    mine = facts.ownership
    # The transaction again, after its answer was lost.
    if mine is not None and mine.ownership_id == str(ownership_id):
        return facts
    if (
        mine is not None
        and not mine.is_written
        and mine.generation > above_generation
        and (mine.database_id, mine.timeline) == (facts.database_id, facts.timeline)
    ):
        return facts
    generation = max(above_generation, 0 if mine is None else mine.generation) + 1
    connection.execute(
        insert(Row).values(
            job_id=job_id,
            generation=generation,
            ownership_id=ownership_id,
            database_id=facts.database_id,
            timeline=facts.timeline,
        )
    )
    if above_checkpoint is not None:
        lowest = func.greatest(Job.next_checkpoint_id, above_checkpoint + 1)
        connection.execute(
            update(Job)
            .where(Job.job_id == job_id)
            .values(next_checkpoint_id=lowest + LOST_CHECKPOINTS)
        )
    return own_facts(connection, job_id)


def end_ownership(connection: Connection, job_id: str, ownership_id: str) -> None:
    """Records that the owner object of an ownership is in storage."""
    connection.execute(
        update(Row)
        .where(
            Row.job_id == job_id,
            Row.ownership_id == UUID(ownership_id),
            Row.written_at.is_(None),
        )
        .values(written_at=func.now())
    )


def job_ids(connection: Connection) -> dict[str, str]:
    """Returns the id of each job by its name, in order."""
    rows = connection.execute(select(Job.name, Job.job_id).order_by(Job.name))
    return {row.name: row.job_id for row in rows}
