"""Views for people who query by SQL, with the text they have at this revision.

`metastore/views/*.sql` holds the text of the newest revision; a test compares the two.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

V_JOBS = """
SELECT
    j.job_id,
    j.name AS job_name,
    j.storage,
    r.parallelism,
    j.max_parallelism,
    j.num_retained,
    r.epoch,
    j.query_id,
    c.checkpoints,
    c.last_checkpoint,
    c.last_completed_at,
    j.created_at
FROM cairn.jobs AS j
LEFT JOIN LATERAL (
    SELECT runs.epoch, runs.parallelism
    FROM cairn.runs
    WHERE runs.job_id = j.job_id
    ORDER BY runs.epoch DESC
    LIMIT 1
) AS r ON TRUE
CROSS JOIN LATERAL (
    SELECT
        count(*) AS checkpoints,
        max(checkpoints.checkpoint_id) AS last_checkpoint,
        max(checkpoints.completed_at) AS last_completed_at
    FROM cairn.checkpoints
    WHERE checkpoints.job_id = j.job_id
      AND checkpoints.status IN ('COMPLETED', 'CONFIRMED')
) AS c
"""

V_CHECKPOINT_HISTORY = """
SELECT
    c.job_id,
    j.name AS job_name,
    c.checkpoint_id,
    c.query_id,
    c.batch_id,
    c.status,
    c.epoch,
    a.acks,
    c.parallelism,
    CAST(round(extract(EPOCH FROM c.completed_at - c.began_at) * 1000) AS bigint) AS duration_ms,
    a.restore_ms,
    a.input_rows,
    coalesce(s.new_segments, 0) AS new_segments,
    coalesce(s.new_bytes, 0) AS new_bytes,
    coalesce(s.new_files, 0) AS new_files,
    c.began_at,
    c.completed_at,
    c.confirmed_at,
    c.ended_at
FROM cairn.checkpoints AS c
JOIN cairn.jobs AS j ON j.job_id = c.job_id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS acks,
        max(subtask_acks.restore_ms) AS restore_ms,
        CAST(coalesce(sum(subtask_acks.input_rows), 0) AS bigint) AS input_rows
    FROM cairn.subtask_acks
    WHERE subtask_acks.job_id = c.job_id
      AND subtask_acks.checkpoint_id = c.checkpoint_id
) AS a
LEFT JOIN (
    SELECT
        segments.job_id,
        segments.first_checkpoint,
        count(*) AS new_segments,
        CAST(sum(segments.size_bytes) AS bigint) AS new_bytes,
        count(DISTINCT segments.file_id) AS new_files
    FROM cairn.segments
    GROUP BY segments.job_id, segments.first_checkpoint
) AS s ON s.job_id = c.job_id AND s.first_checkpoint = c.checkpoint_id
"""

V_FILES = """
SELECT
    f.job_id,
    j.name AS job_name,
    f.file_id,
    f.path,
    f.scope,
    f.status,
    f.size_bytes,
    f.live_bytes,
    f.live_segments,
    CAST(f.size_bytes AS double precision) / nullif(f.live_bytes, 0) AS amplification,
    n.oldest_checkpoint,
    n.newest_checkpoint,
    CASE
        WHEN f.status = 'DELETED' THEN 'not kept: deleted'
        WHEN f.status = 'CONDEMNED' AND d.file_id IS NULL
            THEN 'condemned: the next cleanup asks for its deletion'
        WHEN f.status = 'CONDEMNED'
            THEN 'condemned: deletion asked for, tried ' || d.attempts || ' times'
                || coalesce(', last error: ' || d.last_error, '')
        WHEN f.status = 'WRITING' THEN 'write intent of run ' || f.epoch || ': not sealed yet'
        WHEN f.live_segments = 0 THEN 'nothing in it is live: the next cleanup condemns it'
        WHEN n.oldest_checkpoint = n.newest_checkpoint
            THEN 'needed by checkpoint ' || n.oldest_checkpoint
        WHEN n.oldest_checkpoint IS NOT NULL
            THEN 'needed by checkpoints ' || n.oldest_checkpoint || ' to ' || n.newest_checkpoint
        WHEN n.future_checkpoint IS NOT NULL
            THEN 'needed from checkpoint ' || n.future_checkpoint || ' on'
        ELSE 'no retained checkpoint needs it: the next cleanup releases it'
    END AS kept_because,
    f.created_at,
    f.deleted_at
FROM cairn.physical_files AS f
JOIN cairn.jobs AS j ON j.job_id = f.job_id
LEFT JOIN cairn.deletions AS d ON d.file_id = f.file_id
CROSS JOIN LATERAL (
    SELECT
        min(checkpoints.checkpoint_id) AS oldest_checkpoint,
        max(checkpoints.checkpoint_id) AS newest_checkpoint,
        min(segments.first_checkpoint)
            FILTER (WHERE segments.released_checkpoint IS NULL) AS future_checkpoint
    FROM cairn.segments
    LEFT JOIN cairn.checkpoints
        ON checkpoints.job_id = segments.job_id
        AND checkpoints.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
        AND checkpoints.checkpoint_id >= segments.first_checkpoint
        AND (
            segments.released_checkpoint IS NULL
            OR checkpoints.checkpoint_id < segments.released_checkpoint
        )
    WHERE segments.file_id = f.file_id
      AND segments.status = 'LIVE'
) AS n
"""

V_SPACE_AMPLIFICATION = """
SELECT
    s.*,
    s.physical_bytes - s.live_bytes AS dead_bytes,
    CAST(s.physical_bytes AS double precision) / nullif(s.live_bytes, 0) AS ratio
FROM (
    SELECT
        j.job_id,
        j.name AS job_name,
        count(f.file_id) AS files,
        CAST(coalesce(sum(f.size_bytes), 0) AS bigint) AS physical_bytes,
        CAST(coalesce(sum(f.live_bytes), 0) AS bigint) AS live_bytes,
        CAST(coalesce(sum(f.size_bytes) FILTER (WHERE f.scope = 'shared'), 0) AS bigint)
            AS shared_physical_bytes,
        CAST(coalesce(sum(f.live_bytes) FILTER (WHERE f.scope = 'shared'), 0) AS bigint)
            AS shared_live_bytes,
        CAST(coalesce(sum(f.size_bytes) FILTER (WHERE f.scope = 'taskmanager'), 0) AS bigint)
            AS taskmanager_physical_bytes,
        CAST(coalesce(sum(f.live_bytes) FILTER (WHERE f.scope = 'taskmanager'), 0) AS bigint)
            AS taskmanager_live_bytes
    FROM cairn.jobs AS j
    LEFT JOIN cairn.physical_files AS f
        ON f.job_id = j.job_id AND f.status IN ('SEALED', 'CONDEMNED')
    GROUP BY j.job_id, j.name
) AS s
"""

V_NATIVE_COMPARISON = """
SELECT
    j.job_id,
    j.name AS job_name,
    b.batches,
    r.parallelism,
    f.cairn_files,
    b.native_files,
    b.batches * 2 * 200 + 4 AS native_files_at_200
FROM cairn.jobs AS j
CROSS JOIN LATERAL (
    SELECT
        count(*) AS batches,
        CAST(coalesce(sum(2 * checkpoints.parallelism), 0) + 4 AS bigint) AS native_files
    FROM cairn.checkpoints
    WHERE checkpoints.job_id = j.job_id
      AND checkpoints.status IN ('COMPLETED', 'CONFIRMED', 'SUBSUMED')
) AS b
CROSS JOIN LATERAL (
    SELECT count(*) AS cairn_files
    FROM cairn.physical_files
    WHERE physical_files.job_id = j.job_id
      AND physical_files.sealed_at IS NOT NULL
) AS f
LEFT JOIN LATERAL (
    SELECT runs.parallelism
    FROM cairn.runs
    WHERE runs.job_id = j.job_id
    ORDER BY runs.epoch DESC
    LIMIT 1
) AS r ON TRUE
"""

COMMENTS = {
    "v_jobs": ("One row per job: its newest run and newest whole checkpoint."),
    "v_checkpoint_history": (
        "One row per checkpoint: status, acks of parallelism, duration in ms, rows, and the "
        "segments, bytes and files that are new with it."
    ),
    "v_files": (
        "One row per physical file, deleted ones too: sizes in bytes, live share, and why it "
        "is kept in words."
    ),
    "v_space_amplification": (
        "One row per job: physical bytes in storage over live bytes, in all and by scope."
    ),
    "v_native_comparison": (
        "One row per job: files Cairn wrote against what native Spark would have written. "
        "Native state files = 2 x partitions x batches + 4: per state partition and batch one "
        "changelog file and its checksum file, plus the base of 4: operator metadata and state "
        "schema with a checksum file each. Snapshots of RocksDB would come on top; the offset and "
        "commit logs are left out on both sides."
    ),
}


def upgrade() -> None:
    views = {
        "v_jobs": V_JOBS,
        "v_checkpoint_history": V_CHECKPOINT_HISTORY,
        "v_files": V_FILES,
        "v_space_amplification": V_SPACE_AMPLIFICATION,
        "v_native_comparison": V_NATIVE_COMPARISON,
    }
    for name, query in views.items():
        op.execute(f"CREATE VIEW cairn.{name} AS {query}")
        op.execute(f"COMMENT ON VIEW cairn.{name} IS '{COMMENTS[name]}'")
