"""Rows of a history of batches in the tables of commit dbf3454, made by SQL alone."""

from __future__ import annotations

from sqlalchemy import Connection, text

from benchmarks.metastore_shape import MAX_PARALLELISM, QUERY_ID, SEGMENT_BYTES, History, JobRef

_LIFE = 300
"""Checkpoints between a changelog segment and its release."""

# What a dead file, segment and checkpoint of batch b is, and the file of its group g.
_FILE = "CAST(md5(:job || '-' || b || '-' || g) AS uuid)"
_GROUP = "(((s + 1) * :groups - 1) / :parallelism)"
_KEY_GROUPS = (
    "int4range((s * :max_parallelism + :parallelism - 1) / :parallelism,"
    " ((s + 1) * :max_parallelism + :parallelism - 1) / :parallelism)"
)
_IS_DEAD = "b < :dead_batches"

_STATEMENTS = (
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
        {_FILE}, :job, 1,
        :job || '/taskmanager-owned/1-' || lpad(to_hex(g), 12, '0') || '/' || {_FILE} || '.seg',
        'taskmanager', b, CASE WHEN {_IS_DEAD} THEN 'DELETED' ELSE 'SEALED' END,
        n.subtasks * :segment_bytes,
        CASE WHEN {_IS_DEAD} THEN 0 ELSE n.subtasks * :segment_bytes END,
        CASE WHEN {_IS_DEAD} THEN 0 ELSE n.subtasks END,
        now(), CASE WHEN {_IS_DEAD} THEN now() END, CASE WHEN {_IS_DEAD} THEN now() END
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN (
        SELECT {_GROUP} AS g, count(*) AS subtasks
        FROM generate_series(0, :parallelism - 1) AS s GROUP BY g
    ) AS n
    """,  # noqa: S608 - fixed texts
    f"""
    INSERT INTO cairn.segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint, released_checkpoint, status
    )
    SELECT
        gen_random_uuid(), :job, {_FILE.replace("g)", f"{_GROUP})")}, 'changelog', s,
        {_KEY_GROUPS},
        (s - {_GROUP} * :parallelism / :groups) * :segment_bytes,
        :segment_bytes, md5(b || 'x' || s) || md5(s || 'y' || b), 3, b + 1, b + 1,
        CASE WHEN {_IS_DEAD} THEN least(b + {_LIFE}, :dead_batches + 1) END,
        CASE WHEN {_IS_DEAD} THEN 'DEAD' ELSE 'LIVE' END
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
    """
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, status, size_bytes, live_bytes, live_segments,
        sealed_at
    )
    SELECT
        CAST(md5(:job || '-base-' || s) AS uuid), :job, 1,
        :job || '/shared/subtask-' || s || '-' || :parallelism || '/'
            || CAST(md5(:job || '-base-' || s) AS uuid) || '.seg',
        'shared', 'SEALED', :segment_bytes, :segment_bytes, 1, now()
    FROM generate_series(0, :parallelism - 1) AS s
    """,
    f"""
    INSERT INTO cairn.segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint
    )
    SELECT
        gen_random_uuid(), :job, CAST(md5(:job || '-base-' || s) AS uuid), 'keyed_full', s,
        {_KEY_GROUPS}, 0, :segment_bytes,
        md5('x' || s) || md5('y' || s), 3, :dead_batches + 1, :dead_batches
    FROM generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
    f"""
    INSERT INTO cairn.subtask_acks (
        job_id, checkpoint_id, subtask, attempt_id, task_attempt, tm_id, input_rows, restore_ms
    )
    SELECT
        :job, b + 1, s, gen_random_uuid(), 1,
        '1-' || lpad(to_hex({_GROUP}), 12, '0'), 10, 5
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
    """
    INSERT INTO cairn.upload_stats (
        commit_id, job_id, checkpoint_id, tm_id, files, segments, size_bytes, requests, retries,
        hedges, hedge_wins, failed_attempts, winning_attempt, failed_uploads, queue_size, wait_ms,
        upload_ms, longest_request_ms
    )
    SELECT
        gen_random_uuid(), :job, b + 1, '1-' || lpad(to_hex(g), 12, '0'), 1,
        :parallelism / :groups, :parallelism / :groups * :segment_bytes, 1, 0, 0, 0, 0, 1, 0, 0, 0,
        5, 5
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN generate_series(0, :groups - 1) AS g
    """,
    """
    INSERT INTO cairn.upload_totals
    SELECT
        job_id, 1, tm_id, count(*), sum(requests), 0, sum(size_bytes), sum(upload_ms),
        sum(winning_attempt), sum(segments), 0
    FROM cairn.upload_stats WHERE job_id = :job GROUP BY job_id, tm_id
    """,
    """
    INSERT INTO cairn.materializations (
        materialization_id, job_id, epoch, subtask, finished_at, kind, as_of_checkpoint, segments,
        entries, size_bytes
    )
    SELECT gen_random_uuid(), :job, 1, s, now(), 'keyed_full', :dead_batches, 1, 3, :segment_bytes
    FROM generate_series(0, :parallelism - 1) AS s
    """,
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


def fill(connection: Connection, job: JobRef, history: History) -> None:
    """Adds the rows of a history to a job that has none; its run is the first one."""
    facts = {
        "job": job.job_id,
        "query_id": QUERY_ID,
        "parallelism": job.parallelism,
        "max_parallelism": MAX_PARALLELISM,
        "segment_bytes": SEGMENT_BYTES,
        "groups": history.groups,
        "batches": history.batches,
        "dead_batches": history.dead_batches,
    }
    for sql in _STATEMENTS:
        statement = text(sql)
        used = statement.compile().params.keys()
        connection.execute(statement, {name: facts[name] for name in used})
