"""Rows of a history of batches in the tables of commit dbf3454, made by SQL alone."""

from __future__ import annotations

from sqlalchemy import Connection

from benchmarks.metastore_fill import (
    AFTER,
    BASE_AS_OF,
    BASE_FILE,
    BEFORE,
    FILE,
    GROUP,
    IS_DEAD,
    IS_DEAD_BASE,
    KEY_GROUPS,
    run_all,
)
from benchmarks.metastore_shape import BATCHES_A_ROUND, History, JobRef

_LIFE = 300
"""Checkpoints between a changelog segment and its release."""

_SEGMENTS = (
    f"""
    INSERT INTO cairn.segments (
        segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
        entries, first_checkpoint, as_of_checkpoint, released_checkpoint, status
    )
    SELECT
        gen_random_uuid(), :job, {FILE.replace("g)", f"{GROUP})")}, 'changelog', s,
        {KEY_GROUPS},
        (s - {GROUP} * :parallelism / :groups) * :segment_bytes,
        :segment_bytes, md5(b || 'x' || s) || md5(s || 'y' || b), 3, b + 1, b + 1,
        CASE WHEN {IS_DEAD} THEN least(b + {_LIFE}, :dead_batches + 1) END,
        CASE WHEN {IS_DEAD} THEN 'DEAD' ELSE 'LIVE' END
    FROM generate_series(0, :batches - 1) AS b
    CROSS JOIN generate_series(0, :parallelism - 1) AS s
    """,  # noqa: S608
    f"""
    INSERT INTO cairn.segments (
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
    f"""
    INSERT INTO cairn.subtask_acks (
        job_id, checkpoint_id, subtask, attempt_id, task_attempt, tm_id, input_rows, restore_ms
    )
    SELECT
        :job, b + 1, s, gen_random_uuid(), 1,
        '1-' || lpad(to_hex({GROUP}), 12, '0'), 10, 5
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
)


def fill(connection: Connection, job: JobRef, history: History) -> None:
    """Adds the rows of a history to a job that has none; its run is the first one."""
    run_all(connection, [*BEFORE, *_SEGMENTS, *AFTER], job, history)
