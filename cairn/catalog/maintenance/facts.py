"""What circuit breakers ask of the metastore. Costs what a plan deletes, not what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Uuid, bindparam, text

from cairn.errors import FencedError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """A job besides a plan: files that stay with live segments, counted up to a number.

    `must_leave` says that some have to stay: a checkpoint is confirmed, and the newest base is not
    one of empty state. `recent_bytes` are of plans that were applied within an hour.
    `clock_behind_ms` is how far the clock is behind what it has noted.
    """

    left_files: int
    must_leave: bool
    recent_bytes: int
    clock_behind_ms: int


# Manifests are no state: one of a checkpoint that has lost all files would be left.
_NOW = text("""
    SELECT
        (
            SELECT count(*) FROM (
                SELECT FROM cairn.physical_files AS f
                WHERE f.job_id = :job_id
                  AND f.status = 'SEALED'
                  AND f.live_segments > 0
                  AND right(f.path, 10) <> '/_metadata'
                  AND f.file_id <> ALL (:files)
                LIMIT :most
            ) AS one
        ) AS left_files,
        j.dropped_at IS NULL
            AND EXISTS (
                SELECT FROM cairn.checkpoints AS c
                WHERE c.job_id = j.job_id AND c.status = 'CONFIRMED'
            )
            AND NOT EXISTS (
                SELECT FROM (
                    SELECT sum(m.entries) AS entries FROM (
                        SELECT DISTINCT ON (m.subtask) m.entries
                        FROM cairn.materializations AS m
                        WHERE m.job_id = j.job_id
                          AND m.kind = 'keyed_full'
                          AND m.finished_at IS NOT NULL
                          AND m.error IS NULL
                        ORDER BY m.subtask, m.started_at DESC
                    ) AS m
                ) AS newest
                WHERE newest.entries = 0
            ) AS must_leave,
        (
            SELECT CAST(coalesce(sum(m.planned_bytes), 0) AS bigint)
            FROM cairn.maintenance_runs AS m
            WHERE m.job_id = j.job_id
              AND m.planned_at > now() - INTERVAL '1 hour'
              AND m.status IN ('RUNNING', 'APPLIED')
        ) AS recent_bytes,
        CAST(greatest(0, ceil(1000 * extract(epoch FROM greatest(
            (
                SELECT max(m.planned_at) FROM cairn.maintenance_runs AS m
                WHERE m.job_id = j.job_id
            ),
            (
                SELECT c.began_at FROM cairn.checkpoints AS c
                WHERE c.job_id = j.job_id AND c.checkpoint_id < j.next_checkpoint_id
                ORDER BY c.checkpoint_id DESC LIMIT 1
            ),
            now()
        ) - now()))) AS bigint) AS clock_behind_ms
    FROM cairn.jobs AS j WHERE j.job_id = :job_id
""").bindparams(bindparam("files", type_=ARRAY(Uuid())))


def job_now(connection: Connection, job_id: str, files: Sequence[UUID], *, most: int) -> JobNow:
    """Returns what there is of a job besides the files of a plan, of which `most` are counted.

    Raises:
        FencedError: the job was dropped, and its rows are gone.
    """
    given = {"job_id": job_id, "files": list(files), "most": most}
    row = connection.execute(_NOW, given).one_or_none()
    if row is None:
        raise FencedError("the metastore has no such job any more: it was dropped", job=job_id)
    return JobNow(**row._mapping)
