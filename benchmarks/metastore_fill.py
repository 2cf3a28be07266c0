"""Rows of a history of batches, made by SQL alone: the tables that all versions have, and these."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from benchmarks.metastore_shape import (
    BATCHES_A_ROUND,
    QUERY_ID,
    SEGMENT_BYTES,
    History,
    JobRef,
)

# What a dead file, segment and checkpoint of batch b is, and the file of its group g.
FILE = "CAST(md5(:job || '-' || b || '-' || g) AS uuid)"
GROUP = "(((s + 1) * :groups - 1) / :parallelism)"
KEY_GROUPS = (
    "int4range((s * :max_parallelism + :parallelism - 1) / :parallelism,"
    " ((s + 1) * :max_parallelism + :parallelism - 1) / :parallelism)"
)
IS_DEAD = "b < :dead_batches"
# The same of round r of bases, each as of its last batch; those of the last one are live.
BASE_FILE = "CAST(md5(:job || '-base-' || r || '-' || s) AS uuid)"
IS_DEAD_BASE = "r < :dead_rounds"
BASE_AS_OF = f"CASE WHEN {IS_DEAD_BASE} THEN (r + 1) * {BATCHES_A_ROUND} ELSE :dead_batches END"

BEFORE = (
    "SET LOCAL session_replication_role = replica",  # no triggers and no foreign keys
    "SET LOCAL statement_timeout = 0",
    """
    UPDATE cairn.jobs SET query_id = :query_id, current_epoch = 1, next_checkpoint_id = :batches + 1
    WHERE job_id = :job
    """,
    "UPDATE cairn.runs SET query_id = :query_id, started_at = now() WHERE job_id = :job",
    """
    INSERT INTO cairn.checkpoints (
        job_id, checkpoint_id, epoch, query_id, batch_id, parallelism, parent_checkpoint, status,
        completed_at, confirmed_at, ended_at
    )
    SELECT
        :job, b + 1, 1, :query_id, b, :parallelism, nullif(b, 0),
        CASE WHEN b < :batches - 3 THEN 'SUBSUMED' ELSE 'CONFIRMED' END,
        now(), now(), CASE WHEN b < :batches - 3 THEN now() END
    FROM generate_series(0, :batches - 1) AS b
    """,
    f"""
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, batch_id, status, size_bytes, live_bytes,
        live_segments, sealed_at, condemned_at, deleted_at
    )
    SELECT
        {FILE}, :job, 1,
        :job || '/taskmanager-owned/1-' || lpad(to_hex(g), 12, '0') || '/' || {FILE} || '.seg',
        'taskmanager', b, CASE WHEN {IS_DEAD} THEN 'DELETED' ELSE 'SEALED' END,
        n.subtasks * :segment_bytes,
        CASE WHEN {IS_DEAD} THEN 0 ELSE n.subtasks * :segment_bytes END,
        CASE WHEN {IS_DEAD} THEN 0 ELSE n.subtasks END,
        now(), CASE WHEN {IS_DEAD} THEN now() END, CASE WHEN {IS_DEAD} THEN now() END
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN (
        SELECT {GROUP} AS g, count(*) AS subtasks
        FROM generate_series(0, :parallelism - 1) AS s GROUP BY g
    ) AS n
    """,  # noqa: S608 - fixed texts
    f"""
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, status, size_bytes, live_bytes, live_segments,
        sealed_at, condemned_at, deleted_at
    )
    SELECT
        {BASE_FILE}, :job, 1,
        :job || '/shared/subtask-' || s || '-' || :parallelism || '/' || {BASE_FILE} || '.seg',
        'shared', CASE WHEN {IS_DEAD_BASE} THEN 'DELETED' ELSE 'SEALED' END, :segment_bytes,
        CASE WHEN {IS_DEAD_BASE} THEN 0 ELSE :segment_bytes END,
        CASE WHEN {IS_DEAD_BASE} THEN 0 ELSE 1 END,
        now(), CASE WHEN {IS_DEAD_BASE} THEN now() END, CASE WHEN {IS_DEAD_BASE} THEN now() END
    FROM generate_series(0, :dead_rounds) AS r
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
)
"""Before the segments: jobs, runs, checkpoints, files."""

_COMMITS = (
    f"""
    INSERT INTO cairn.group_commits (
        commit_id, job_id, checkpoint_id, file_id, tm_id, parallelism, max_parallelism, status,
        subtasks, attempt_ids, task_attempts, input_rows, restore_ms, segment_ids,
        segment_subtasks, offsets_bytes, sizes_bytes, sha256s, entries, key_groups, uploaded_files,
        uploaded_segments, uploaded_bytes, requests, retries, hedges, hedge_wins, failed_attempts,
        winning_attempt, failed_uploads, queue_size, wait_ms, upload_ms, longest_request_ms,
        pool_wait_ms
    )
    SELECT
        gen_random_uuid(), :job, b + 1, {FILE}, '1-' || lpad(to_hex(g), 12, '0'),
        :parallelism, :max_parallelism, CASE WHEN {IS_DEAD} THEN 'DEAD' ELSE 'LIVE' END,
        n.subtasks, n.ids, n.ones, n.ones, n.ones, n.ids, n.subtasks, n.offsets, n.sizes,
        n.sha256s, n.entries, n.key_groups, 1, cardinality(n.subtasks),
        cardinality(n.subtasks) * :segment_bytes, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, 5, 0
    FROM generate_series(:bare_batches, :batches - 1) AS b
    CROSS JOIN LATERAL (
        SELECT
            {GROUP} AS g, array_agg(s) AS subtasks, array_agg(gen_random_uuid()) AS ids,
            array_agg(1) AS ones, array_agg(3) AS entries,
            array_agg((s - {GROUP} * :parallelism / :groups) * :segment_bytes) AS offsets,
            array_agg(CAST(:segment_bytes AS bigint)) AS sizes,
            string_agg(sha256(CAST(b || 'x' || s AS bytea)), '') AS sha256s,
            range_agg({KEY_GROUPS}) AS key_groups
        FROM generate_series(0, :parallelism - 1) AS s GROUP BY g
    ) AS n
    """,  # noqa: S608
    """
    INSERT INTO cairn.materialization_totals (
        job_id, subtask, started, completed, epoch, run_started, run_completed, run_bytes,
        last_duration_ms, last_full_bytes, last_completed_at
    )
    SELECT :job, s, n, n, 1, n, n, n * :segment_bytes, 1000, :segment_bytes, now()
    FROM generate_series(0, :parallelism - 1) AS s CROSS JOIN (SELECT :dead_rounds + 1) AS t (n)
    """,
    """
    INSERT INTO cairn.upload_totals
    SELECT
        job_id, 1, tm_id, count(*), sum(requests), 0, sum(uploaded_bytes), sum(upload_ms),
        sum(winning_attempt), sum(uploaded_segments), 0
    FROM cairn.group_commits WHERE job_id = :job GROUP BY job_id, tm_id
    """,
    f"""
    INSERT INTO cairn.placed_segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint, released_checkpoint, status
    )
    SELECT
        gen_random_uuid(), :job, {BASE_FILE}, 'keyed_full', s, {KEY_GROUPS}, 0, :segment_bytes,
        md5('x' || s) || md5('y' || s), 3, {BASE_AS_OF} + 1, {BASE_AS_OF},
        CASE WHEN {IS_DEAD_BASE} THEN {BASE_AS_OF} + {BATCHES_A_ROUND} + 1 END,
        CASE WHEN {IS_DEAD_BASE} THEN 'DEAD' ELSE 'LIVE' END
    FROM generate_series(0, :dead_rounds) AS r
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
)

AFTER = (
    f"""
    INSERT INTO cairn.materializations (
        materialization_id, job_id, epoch, subtask, started_at, finished_at, kind,
        as_of_checkpoint, segments, entries, size_bytes
    )
    SELECT
        gen_random_uuid(), :job, 1, s, now() - (:dead_rounds - r) * INTERVAL '10 minutes', now(),
        'keyed_full', {BASE_AS_OF}, 1, 3, :segment_bytes
    FROM generate_series(0, :dead_rounds) AS r
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
    """
    INSERT INTO cairn.maintenance_runs (
        maintenance_run_id, job_id, action, plan, plan_sha256, status, result, finished_at
    )
    SELECT CAST(md5(:job) AS uuid), :job, 'subsumption', '{}', '', 'APPLIED', '{}', now()
    """,
    """
    INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id, attempts, done_at)
    SELECT file_id, job_id, path, CAST(md5(:job) AS uuid), 1, now()
    FROM cairn.physical_files WHERE job_id = :job AND status = 'DELETED'
    """,
)
"""What is the same whatever segments there are."""


def fill(connection: Connection, job: JobRef, history: History) -> None:
    """Adds the rows of a history to a job that has none; its run is the first one."""
    run_all(connection, [*BEFORE, *_COMMITS, *AFTER], job, history)


def run_all(
    connection: Connection, statements: Sequence[str], job: JobRef, history: History
) -> None:
    """Runs statements, each with what it names of the job and its history."""
    facts = {
        "job": job.job_id,
        "query_id": QUERY_ID,
        "parallelism": job.parallelism,
        "max_parallelism": history.max_parallelism,
        "segment_bytes": SEGMENT_BYTES,
        "groups": history.groups,
        "batches": history.batches,
        "bare_batches": history.bare_batches,
        "dead_batches": history.dead_batches,
        "dead_rounds": history.dead_rounds,
    }
    for sql in statements:
        statement = text(sql)
        used = statement.compile().params.keys()
        connection.execute(statement, {name: facts[name] for name in used})
