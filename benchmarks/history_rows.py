"""Batches and cleanups as rows, many at once, each row through all the states that a job takes it.

Like the job's own transactions, each statement is a transaction of its own, so tables get the dead
rows that they get from a job. Only the times are not the clock's: a batch a second, long ago.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, TextClause, text

from benchmarks.metastore_shape import QUERY_ID, JobRef
from cairn.catalog.catalog import Catalog

PARALLELISM, MAX_PARALLELISM, SEGMENT_BYTES = 4, 128, 1000

_BATCHES = (
    """
    INSERT INTO cairn.checkpoints (
        job_id, checkpoint_id, epoch, query_id, batch_id, parallelism, parent_checkpoint,
        processing_ms, began_at
    )
    SELECT :job, n + 1, 1, :query, n, 4, nullif(n, 0), 1000 * n, :start + n * interval '1 s'
    FROM generate_series(:first, :last) AS n
    """,
    """
    INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, batch_id, created_at)
    SELECT f.id, :job, 1, :job || '/taskmanager-owned/1-0123456789ab/' || f.id || '.seg',
        'taskmanager', n, :start + n * interval '1 s'
    FROM generate_series(:first, :last) AS n
    CROSS JOIN LATERAL (SELECT gen_random_uuid() AS id WHERE n >= 0) AS f
    """,
    """
    UPDATE cairn.physical_files
    SET status = 'SEALED', size_bytes = 4 * :size, sealed_at = created_at
    WHERE job_id = :job AND status = 'WRITING'
    """,
    """
    INSERT INTO cairn.group_commits (
        commit_id, job_id, checkpoint_id, file_id, tm_id, parallelism, max_parallelism, subtasks,
        attempt_ids, task_attempts, input_rows, restore_ms, segment_ids, segment_subtasks,
        offsets_bytes, sizes_bytes, sha256s, entries, uploaded_files, uploaded_segments,
        uploaded_bytes, requests, retries, hedges, hedge_wins, failed_attempts, winning_attempt,
        failed_uploads, queue_size, wait_ms, upload_ms, longest_request_ms, pool_wait_ms, acked_at
    )
    SELECT
        gen_random_uuid(), :job, f.batch_id + 1, f.file_id, '1-0123456789ab', 4, 128, '{0,1,2,3}',
        u.ids, ARRAY[4 * f.batch_id, 4 * f.batch_id + 1, 4 * f.batch_id + 2, 4 * f.batch_id + 3],
        '{1000,1001,999,1003}', '{0,0,0,0}', u.segments, '{0,1,2,3}',
        ARRAY[0, :size, 2 * :size, 3 * :size], ARRAY[:size, :size, :size, :size], u.digests,
        '{100,101,99,103}', 1, 4, 4 * :size, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, 5, 0, f.created_at
    FROM cairn.physical_files AS f
    CROSS JOIN LATERAL (
        SELECT
            array_agg(gen_random_uuid()) AS ids, array_agg(gen_random_uuid()) AS segments,
            string_agg(sha256(CAST(CAST(gen_random_uuid() AS text) AS bytea)), '') AS digests
        FROM generate_series(1, 4) WHERE f.batch_id >= 0
    ) AS u
    WHERE f.job_id = :job AND f.batch_id BETWEEN :first AND :last AND f.live_segments = 0
    """,
    """
    UPDATE cairn.checkpoints SET status = 'COMPLETED', completed_at = began_at
    WHERE job_id = :job AND status = 'IN_PROGRESS'
    """,
    """
    UPDATE cairn.checkpoints SET status = 'CONFIRMED', confirmed_at = began_at
    WHERE job_id = :job AND status = 'COMPLETED' AND checkpoint_id <= :last
    """,
    """
    UPDATE cairn.jobs SET query_id = :query, current_epoch = 1, next_checkpoint_id = :last + 2
    WHERE job_id = :job
    """,
)
"""As their begins, intents and acks."""

_BASES = (
    """
    INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, created_at)
    SELECT f.id, :job, 1, :job || '/shared/subtask-' || s || '-4/' || f.id || '.seg', 'shared',
        :start + :last * interval '1 s'
    FROM generate_series(0, 3) AS s
    CROSS JOIN LATERAL (SELECT gen_random_uuid() AS id WHERE s >= 0) AS f
    """,
    """
    UPDATE cairn.physical_files
    SET status = 'SEALED', size_bytes = 100 * :size, sealed_at = created_at
    WHERE job_id = :job AND status = 'WRITING'
    """,
    """
    INSERT INTO cairn.placed_segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint, created_at
    )
    SELECT
        gen_random_uuid(), :job, f.file_id, 'keyed_full', s.number - 1,
        int4range(CAST(32 * (s.number - 1) AS integer), CAST(32 * s.number AS integer)), 0,
        100 * :size, encode(sha256(CAST(CAST(f.file_id AS text) AS bytea)), 'hex'), 10000,
        :last - 2, :last - 3, f.created_at
    FROM (
        SELECT file_id, created_at, row_number() OVER (ORDER BY path) AS number
        FROM cairn.physical_files
        WHERE job_id = :job AND batch_id IS NULL AND status = 'SEALED' AND live_segments = 0
    ) AS s
    JOIN cairn.physical_files AS f ON f.file_id = s.file_id
    """,
    """
    UPDATE cairn.placed_segments SET released_checkpoint = :last - 2
    WHERE job_id = :job AND status = 'LIVE' AND first_checkpoint < :last - 2
    """,
    """
    INSERT INTO cairn.materializations (
        materialization_id, job_id, epoch, subtask, started_at, finished_at, kind,
        as_of_checkpoint, segments, entries, size_bytes
    )
    SELECT gen_random_uuid(), :job, 1, s, m.moment, m.moment, 'keyed_full', :last - 3, 1, 10000,
        100 * :size
    FROM generate_series(0, 3) AS s
    CROSS JOIN (SELECT :start + :last * interval '1 s' AS moment) AS m
    """,
)
"""As the materializations of an interval."""

_CLEANUP = (
    """
    INSERT INTO cairn.maintenance_runs (
        maintenance_run_id, job_id, action, plan, plan_sha256, planned_at
    )
    SELECT :run, :job, 'subsumption', jsonb_build_object(
        'job', :job, 'epoch', 1, 'freed_bytes', 4000 * count(*),
        'subsumed_checkpoints', jsonb_agg(c.checkpoint_id),
        'dead_commits', jsonb_agg(c.commit_id),
        'condemned_files', jsonb_agg(jsonb_build_object(
            'file_id', f.file_id, 'path', f.path, 'size_bytes', f.size_bytes, 'reason',
            'sealed, and no retained checkpoint needs its last live segments (4)'
        ))
    ), encode(sha256('plan'), 'hex'), :start + :last * interval '1 s'
    FROM cairn.group_commits AS c JOIN cairn.physical_files AS f ON f.file_id = c.file_id
    WHERE c.job_id = :job AND c.status = 'LIVE' AND c.checkpoint_id < :last - 2
    """,
    """
    UPDATE cairn.checkpoints SET status = 'SUBSUMED', ended_at = :start + :last * interval '1 s'
    WHERE job_id = :job AND status = 'CONFIRMED' AND checkpoint_id < :last - 2
    """,
    """
    UPDATE cairn.group_commits SET status = 'DEAD'
    WHERE job_id = :job AND status = 'LIVE' AND checkpoint_id < :last - 2
    """,
    """
    UPDATE cairn.placed_segments SET status = 'DEAD'
    WHERE job_id = :job AND status = 'LIVE' AND released_checkpoint IS NOT NULL
    """,
    """
    WITH condemned AS (
        UPDATE cairn.physical_files
        SET status = 'CONDEMNED', condemned_at = :start + :last * interval '1 s'
        WHERE job_id = :job AND status = 'SEALED' AND live_segments = 0
        RETURNING file_id, job_id, path
    )
    INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id, requested_at)
    SELECT file_id, job_id, path, :run, :start + :last * interval '1 s' FROM condemned
    """,
    """
    UPDATE cairn.maintenance_runs
    SET status = 'APPLIED', finished_at = planned_at,
        result = '{"dead_segments": 2400, "condemned_files": 604, "subsumed_checkpoints": 600}'
    WHERE maintenance_run_id = :run
    """,
    """
    UPDATE cairn.deletions SET attempts = 1, done_at = requested_at
    WHERE job_id = :job AND done_at IS NULL
    """,
    """
    UPDATE cairn.physical_files
    SET status = 'DELETED', deleted_at = :start + :last * interval '1 s'
    WHERE job_id = :job AND status = 'CONDEMNED'
    """,
)
"""As a cleanup's plan, its application and its deletes."""


def add_batches(catalog: Catalog, job: JobRef, start: object, first: int, last: int) -> None:
    """Adds batches, the bases shortly before their end, and what a cleanup makes of all of it.

    Batch n began `start` plus n seconds.
    """
    run = catalog.run("naming a plan", lambda c: c.scalar(text("SELECT gen_random_uuid()")))
    facts = {
        "job": job.job_id,
        "query": QUERY_ID,
        "start": start,
        "first": first,
        "last": last,
        "size": SEGMENT_BYTES,
        "run": run,
    }
    steps = (
        (_BATCHES, facts | {"last": last - 4}),
        # Bases are part of checkpoints to come only.
        (_BASES, facts),
        (_BATCHES, facts | {"first": last - 3}),
        (_CLEANUP, facts),
    )
    for statements, given in steps:
        for statement in map(text, statements):
            used = {name: given[name] for name in statement.compile().params}
            catalog.run("adding batches", partial(_execute, statement=statement, facts=used))


def _execute(connection: Connection, statement: TextClause, facts: dict[str, Any]) -> None:
    connection.execute(statement, facts)
