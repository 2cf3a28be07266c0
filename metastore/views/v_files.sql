-- Grain: one row per physical file ever intended, deleted ones too.
-- Columns: job_id, job_name, file_id, path (key below the job's storage), scope, status,
--   size_bytes (null until sealed), live_bytes, live_segments, amplification (size_bytes over
--   live_bytes; null when nothing is live), oldest_checkpoint and newest_checkpoint (of those not
--   subsumed or aborted that need it), kept_because (in words), created_at, deleted_at,
--   deletable_at (of a condemned one: when `cairn.file-retention` is over, and a cleanup deletes it).
-- Read by: `cairn files`, and by people who ask why an object is still there.
CREATE OR REPLACE VIEW cairn.v_files AS
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
        WHEN f.status = 'CONDEMNED' AND d.attempts = 0 AND d.deletable_at > now()
            THEN 'condemned: waits for its deletion until '
                || to_char(d.deletable_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
        WHEN f.status = 'CONDEMNED'
            THEN 'condemned: deletion asked for, tried ' || d.attempts || ' times'
                || coalesce(', last error: ' || d.last_error, '')
        WHEN f.status = 'WRITING' AND f.maintenance_run_id IS NOT NULL
            THEN 'write intent of maintenance run ' || f.maintenance_run_id || ': not sealed yet'
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
    f.deleted_at,
    d.deletable_at
FROM cairn.physical_files AS f
JOIN cairn.jobs AS j ON j.job_id = f.job_id
LEFT JOIN LATERAL (
    SELECT
        deletions.*,
        deletions.requested_at + make_interval(secs => j.file_retention_ms / 1000.0)
            AS deletable_at
    FROM cairn.deletions
    WHERE deletions.job_id = f.job_id
      AND deletions.file_id = f.file_id
      AND deletions.done_at IS NULL
) AS d ON TRUE
CROSS JOIN LATERAL (
    SELECT
        min(checkpoints.checkpoint_id) AS oldest_checkpoint,
        max(checkpoints.checkpoint_id) AS newest_checkpoint,
        min(s.first_checkpoint) FILTER (WHERE s.released_checkpoint IS NULL) AS future_checkpoint
    FROM (
        SELECT p.first_checkpoint, p.released_checkpoint
        FROM cairn.placed_segments AS p
        WHERE p.file_id = f.file_id
          AND p.status = 'LIVE'
        UNION ALL
        SELECT c.checkpoint_id, cairn.released_at(c.job_id, c.key_groups, c.checkpoint_id)
        FROM cairn.group_commits AS c
        WHERE c.file_id = f.file_id
          AND c.status = 'LIVE'
    ) AS s
    LEFT JOIN cairn.checkpoints
        ON checkpoints.job_id = f.job_id
        AND checkpoints.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
        AND cairn.is_part_of(
            s.first_checkpoint, s.released_checkpoint, checkpoints.checkpoint_id
        )
) AS n;

COMMENT ON VIEW cairn.v_files IS
    'One row per physical file, deleted ones too: sizes in bytes, live share, and why it is kept in '
    'words.';
