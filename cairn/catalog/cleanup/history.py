"""Trimming the history: rows that nothing needs any more are deleted after a while, by policy.

Each call is one short transaction that leaves a consistent history: a checkpoint is deleted with
its group commits, a file with its segments and its deletion. It takes no lock that a batch waits
for. What may be deleted at all, triggers decide (`metastore/triggers/history.sql`); what is deleted
is added to sums by day in the same transaction (`history_sums.sql`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Connection, Uuid, bindparam, text

from cairn.errors import FencedError

TRIM_ROWS = 1_000
"""Most checkpoints, and most uploads, of one transaction."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Rows that were deleted, or would be: checkpoints, files, and all."""

    checkpoints: int
    files: int
    rows: int


# Of two cleanups of a job, one trims at a time. Not the job's lock, which batches wait for.
LOCK_HISTORY = text("SELECT pg_advisory_xact_lock(hashtextextended(:job_id, 1))")

# What ended before this moment is trimmed. By the database's clock, and never the last hour, in
# which a request, a plan or an attempt that was held up may still come.
_HORIZON = text("""
    SELECT least(
        now() - INTERVAL '1 hour',
        greatest(
            now() - make_interval(secs => j.history_retention_ms / 1000.0),
            -- Null where it is trimmed already: then there are fewer than the most that may stay.
            (
                SELECT c.began_at FROM cairn.checkpoints AS c
                WHERE c.job_id = j.job_id
                  AND c.checkpoint_id = j.next_checkpoint_id - j.history_max_checkpoints
            )
        )
    )
    FROM cairn.jobs AS j WHERE j.job_id = :job_id
""")

# With OFFSET 0 a subquery is asked for each row, of an index. As a join it would read whole tables
# whenever there is much to trim.
_CHECKPOINTS = text("""
    SELECT c.checkpoint_id FROM cairn.checkpoints AS c
    WHERE c.job_id = :job_id
      AND c.status IN ('SUBSUMED', 'ABORTED')
      AND c.ended_at < :horizon
      AND c.checkpoint_id < (
        SELECT max(newer.checkpoint_id) FROM cairn.checkpoints AS newer
        WHERE newer.job_id = :job_id AND newer.status = 'CONFIRMED'
      )
      AND NOT EXISTS (
        SELECT FROM cairn.pins AS p
        WHERE p.job_id = c.job_id
          AND p.checkpoint_id = c.checkpoint_id
          AND (p.removed_at < :horizon) IS NOT TRUE
        OFFSET 0
      )
      AND NOT EXISTS (
        SELECT FROM cairn.group_commits AS g
        LEFT JOIN cairn.physical_files AS f ON f.file_id = g.file_id
        WHERE g.job_id = c.job_id
          AND g.checkpoint_id = c.checkpoint_id
          AND (g.status = 'LIVE' OR f.status <> 'DELETED' OR f.deleted_at >= :horizon)
        OFFSET 0
      )
    ORDER BY c.ended_at
    LIMIT :most
""")

# All requests of an upload at once: the first by which the others are found, and the others.
_FILES = text("""
    WITH firsts AS MATERIALIZED (
        SELECT f.file_id FROM cairn.physical_files AS f
        WHERE f.job_id = :job_id
          AND f.status = 'DELETED'
          AND f.deleted_at < :horizon
          AND f.retry_of IS NULL
          AND NOT EXISTS (
            SELECT FROM cairn.group_commits AS g
            WHERE g.file_id = f.file_id AND g.checkpoint_id <> ALL (:deleted)
            OFFSET 0
          )
          AND NOT EXISTS (
            SELECT FROM cairn.physical_files AS r
            WHERE r.retry_of = f.file_id
              AND (r.status <> 'DELETED' OR r.deleted_at >= :horizon OR EXISTS (
                SELECT FROM cairn.group_commits AS g
                WHERE g.file_id = r.file_id AND g.checkpoint_id <> ALL (:deleted)
              ))
            OFFSET 0
          )
          AND NOT (right(f.path, 10) = '/_metadata' AND EXISTS (
            SELECT FROM cairn.checkpoints AS c
            WHERE c.job_id = f.job_id
              AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
              AND f.path = c.job_id || '/chk-' || c.checkpoint_id || '/_metadata'
            OFFSET 0
          ))
        ORDER BY f.deleted_at
        LIMIT :most
    )
    SELECT file_id FROM firsts
    UNION ALL
    SELECT r.file_id FROM firsts JOIN cairn.physical_files AS r ON r.retry_of = firsts.file_id
""").bindparams(bindparam("deleted", type_=ARRAY(BigInteger)))

_IDS = bindparam("ids", type_=ARRAY(BigInteger))
_FILE_IDS = bindparam("ids", type_=ARRAY(Uuid))

_OF_CHECKPOINTS = tuple(
    text(
        f"DELETE FROM cairn.{table} WHERE job_id = :job_id AND checkpoint_id = ANY (:ids)"  # noqa: S608
    ).bindparams(_IDS)
    for table in ("pins", "group_commits", "checkpoints")
)
"""In the order of their references."""

OF_FILES = tuple(
    text(f"DELETE FROM cairn.{table} WHERE file_id = ANY (:ids)").bindparams(_FILE_IDS)  # noqa: S608
    for table in ("damaged_segments", "placed_segments", "deletions", "physical_files")
)
"""In the order of their references."""

_OTHERS = tuple(
    text(statement)
    for statement in (
        """
        DELETE FROM cairn.maintenance_decisions WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM cairn.maintenance_runs AS m
            JOIN cairn.maintenance_decisions AS d
                ON d.maintenance_run_id = m.maintenance_run_id
            WHERE m.job_id = :job_id
              AND m.planned_at < :horizon
              AND coalesce(m.finished_at, greatest(m.planned_at, m.leased_until)) < :horizon
              AND d.decided_at < :horizon
            LIMIT :most
        ))
        """,
        """
        DELETE FROM cairn.maintenance_runs WHERE maintenance_run_id IN (
            SELECT m.maintenance_run_id FROM cairn.maintenance_runs AS m
            WHERE m.job_id = :job_id
              AND m.planned_at < :horizon
              AND coalesce(m.finished_at, greatest(m.planned_at, m.leased_until)) < :horizon
              AND NOT EXISTS (
                SELECT FROM cairn.deletions AS d
                WHERE d.maintenance_run_id = m.maintenance_run_id
                OFFSET 0
              )
              AND NOT EXISTS (
                SELECT FROM cairn.physical_files AS f
                WHERE f.maintenance_run_id = m.maintenance_run_id
                OFFSET 0
              )
              AND NOT EXISTS (
                SELECT FROM cairn.maintenance_decisions AS d
                WHERE d.maintenance_run_id = m.maintenance_run_id
                OFFSET 0
              )
            LIMIT :most
        )
        """,
        # The last of each kind and end stays: it is what metrics show.
        """
        DELETE FROM cairn.materializations WHERE materialization_id IN (
            SELECT m.materialization_id FROM cairn.materializations AS m
            JOIN cairn.jobs AS j ON j.job_id = m.job_id
            WHERE m.job_id = :job_id
              AND coalesce(m.finished_at, m.started_at) < :horizon
              AND (m.finished_at IS NOT NULL OR m.epoch < j.current_epoch)
              AND EXISTS (
                SELECT FROM cairn.materializations AS later
                WHERE later.job_id = m.job_id
                  AND later.subtask = m.subtask
                  AND later.started_at > m.started_at
                  AND later.epoch >= m.epoch
                  AND later.kind IS NOT DISTINCT FROM m.kind
                  AND (later.error IS NULL) = (m.error IS NULL)
                  AND (later.finished_at IS NULL) = (m.finished_at IS NULL)
              )
            LIMIT :most
        )
        """,
        """
        DELETE FROM cairn.directories
        WHERE job_id = :job_id AND status = 'DELETED' AND deleted_at < :horizon
        """,
        # What was restored is kept by its row.
        """
        DELETE FROM cairn.quarantined_objects WHERE quarantine_id IN (
            SELECT q.quarantine_id FROM cairn.quarantined_objects AS q
            WHERE q.job_id = :job_id
              AND q.status IN ('DELETED', 'RELEASED')
              AND coalesce(q.deleted_at, q.released_at) < :horizon
            ORDER BY coalesce(q.deleted_at, q.released_at)
            LIMIT :most
        )
        """,
        # Damage that is not over stays as long as its file's row.
        """
        DELETE FROM cairn.damaged_segments
        WHERE job_id = :job_id AND resolved_at < :horizon
        """,
        # A run's totals are deleted with the last of its checkpoints.
        """
        DELETE FROM cairn.upload_totals AS u
        WHERE u.job_id = :job_id
          AND u.epoch < (SELECT j.current_epoch FROM cairn.jobs AS j WHERE j.job_id = :job_id)
          AND NOT EXISTS (
            SELECT FROM cairn.checkpoints AS c WHERE c.job_id = u.job_id AND c.epoch = u.epoch
          )
        """,
    )
)


def trim_history(connection: Connection, job_id: str) -> Trimmed:
    """Deletes up to `TRIM_ROWS` checkpoints and uploads beyond the policy, oldest first.

    Where it returns no rows, there is nothing to trim.

    Raises:
        FencedError: the job was dropped, and its rows are gone.
    """
    connection.execute(LOCK_HISTORY, {"job_id": job_id})
    facts = {"job_id": job_id, "horizon": _horizon(connection, job_id)}
    checkpoints = _checkpoints(connection, facts, TRIM_ROWS)
    rows = 0
    if checkpoints:
        for statement in _OF_CHECKPOINTS:
            gone = connection.execute(statement, {"job_id": job_id, "ids": checkpoints})
            rows += gone.rowcount
    # After the group commits that name them.
    files = _files(connection, facts, TRIM_ROWS)
    if files:
        rows += sum(connection.execute(s, {"ids": files}).rowcount for s in OF_FILES)
    rows += sum(
        connection.execute(statement, {**facts, "most": TRIM_ROWS}).rowcount
        for statement in _OTHERS
    )
    return Trimmed(len(checkpoints), len(files), rows)


def forecast_history(connection: Connection, job_id: str, *, most: int) -> Trimmed:
    """Returns what would be trimmed now, of checkpoints and uploads at most `most`.

    `rows` are those of checkpoints and files alone.
    """
    facts = {"job_id": job_id, "horizon": _horizon(connection, job_id)}
    checkpoints = _checkpoints(connection, facts, most)
    files = _files(connection, facts, most, deleted=checkpoints)
    return Trimmed(len(checkpoints), len(files), len(checkpoints) + len(files))


def _horizon(connection: Connection, job_id: str) -> datetime:
    horizon: datetime | None = connection.execute(_HORIZON, {"job_id": job_id}).scalar()
    if horizon is None:
        raise FencedError("the metastore has no such job any more: it was dropped", job=job_id)
    return horizon


def _checkpoints(connection: Connection, facts: Mapping[str, Any], most: int) -> list[int]:
    return list(connection.scalars(_CHECKPOINTS, {**facts, "most": most}))


def _files(
    connection: Connection, facts: Mapping[str, Any], most: int, deleted: list[int] | None = None
) -> list[UUID]:
    return list(connection.scalars(_FILES, {**facts, "most": most, "deleted": deleted or []}))
