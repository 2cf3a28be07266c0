-- Grain: one row per physical file and reason why its object is there; a file that nothing keeps has
--   one row, which says what deletes it and when.
-- Columns: job_id, job_name, file_id, path (key below the job's storage), status, size_bytes, keeper
--   (newest checkpoint, unfinished checkpoint, pin, manifest, superseded checkpoint, next checkpoint,
--   intent, maintenance run, grace, nothing, deleted), because (in words, with what to do), kept_until
--   (when the reason ends by itself, where that is known).
-- Read by: `cairn explain`, and by people who ask why an object is still there. Ask for one job_id and
--   path: of each file it reads the segments.
CREATE OR REPLACE VIEW cairn.v_keepers AS
SELECT
    f.job_id,
    j.name AS job_name,
    f.file_id,
    f.path,
    f.status,
    f.size_bytes,
    k.keeper,
    k.because,
    k.kept_until
FROM cairn.physical_files AS f
JOIN cairn.jobs AS j ON j.job_id = f.job_id
CROSS JOIN LATERAL (
    -- What needs a sealed file.
    SELECT need.keeper, need.because, CAST(NULL AS timestamptz) AS kept_until
    FROM (
        WITH ranges AS MATERIALIZED (
            SELECT * FROM cairn.live_ranges(f.job_id, f.file_id)
            WHERE f.status = 'SEALED' AND j.dropped_at IS NULL
        ),
        checkpoints AS MATERIALIZED (
            SELECT DISTINCT kept.checkpoint_id, kept.reason
            FROM ranges AS r
            JOIN cairn.kept_checkpoints(f.job_id) AS kept
                ON cairn.is_part_of(r.first_checkpoint, r.released_checkpoint, kept.checkpoint_id)
        )
        SELECT
            'next checkpoint' AS keeper,
            'the state of the next checkpoint has ' || sum(r.segments) || ' of its segments ('
                || sum(r.size_bytes) || ' bytes), until a base replaces them' AS because
        FROM ranges AS r
        WHERE r.released_checkpoint IS NULL
        HAVING count(*) > 0
        UNION ALL
        SELECT
            CASE WHEN c.reason = 'manifest' THEN c.reason ELSE c.reason || ' checkpoint' END,
            CASE c.reason
                WHEN 'newest' THEN 'one of the newest ' || j.num_retained
                    || ' confirmed checkpoints, which stay'
                WHEN 'unfinished' THEN 'a checkpoint that is not confirmed'
                WHEN 'manifest' THEN 'the newest checkpoint with a manifest, which stays'
                ELSE 'older ones, which the next cleanup subsumes'
            END || ': ' || CASE
                WHEN count(*) = 1 THEN CAST(min(c.checkpoint_id) AS text)
                ELSE count(*) || ' from ' || min(c.checkpoint_id) || ' to ' || max(c.checkpoint_id)
            END
        FROM checkpoints AS c
        WHERE c.reason <> 'pin'
        GROUP BY c.reason
        UNION ALL
        SELECT
            'pin',
            p.kind || coalesce(' ' || p.name, '') || ' of checkpoint ' || p.checkpoint_id
                || ', since ' || to_char(p.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')
                || ' UTC, until `cairn unpin`'
        FROM checkpoints AS c
        JOIN cairn.pins AS p ON p.job_id = f.job_id AND p.checkpoint_id = c.checkpoint_id
        WHERE c.reason = 'pin' AND p.removed_at IS NULL
        UNION ALL
        SELECT
            'nothing',
            CASE
                WHEN j.dropped_at IS NOT NULL THEN 'its job was dropped'
                WHEN f.live_segments = 0 THEN 'it holds no live segment'
                ELSE 'no checkpoint that stays needs its live segments'
            END || ': the next cleanup condemns it'
        WHERE f.status = 'SEALED'
          AND NOT EXISTS (SELECT FROM ranges AS r WHERE r.released_checkpoint IS NULL)
          AND NOT EXISTS (SELECT FROM checkpoints)
    ) AS need
    UNION ALL
    -- An intent, whose object may be there in part.
    SELECT
        CASE
            WHEN u.is_condemnable THEN 'nothing'
            WHEN u.file_id IS NOT NULL THEN 'grace'
            WHEN f.maintenance_run_id IS NOT NULL THEN 'maintenance run'
            ELSE 'intent'
        END,
        CASE
            WHEN u.is_condemnable THEN u.reason || ': the next cleanup condemns it'
            WHEN u.file_id IS NOT NULL THEN u.reason || '; its object may still appear'
            WHEN f.maintenance_run_id IS NOT NULL
                THEN 'maintenance run ' || f.maintenance_run_id || ' is writing it'
            WHEN f.epoch > j.current_epoch
                THEN 'run ' || f.epoch || ' has written it, and has not begun its first batch'
            ELSE 'run ' || f.epoch || ' is writing it and has not sealed it'
        END,
        CASE WHEN NOT u.is_condemnable THEN f.created_at + INTERVAL '20 minutes' END
    FROM (SELECT 1) AS one
    LEFT JOIN cairn.v_unneeded_files AS u ON u.job_id = f.job_id AND u.file_id = f.file_id
    WHERE f.status = 'WRITING'
    UNION ALL
    -- A condemned one.
    SELECT
        CASE WHEN d.until > now() THEN 'grace' ELSE 'nothing' END,
        'condemned by plan ' || d.maintenance_run_id || CASE
            WHEN d.until > now()
                THEN '; a metastore from a backup may need it until cairn.file-retention is over'
            ELSE ': the next cleanup deletes it'
        END || coalesce('; last error of ' || d.attempts || ' tries: ' || d.last_error, ''),
        d.until
    FROM (
        SELECT
            deletions.*,
            deletions.requested_at + make_interval(secs => j.file_retention_ms / 1000.0) AS until
        FROM cairn.deletions
        WHERE deletions.file_id = f.file_id
    ) AS d
    WHERE f.status = 'CONDEMNED'
    UNION ALL
    SELECT
        'deleted',
        'its object was deleted at '
            || to_char(f.deleted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
            || coalesce(' by plan ' || (
                SELECT d.maintenance_run_id FROM cairn.deletions AS d WHERE d.file_id = f.file_id
            ), ''),
        CAST(NULL AS timestamptz)
    WHERE f.status = 'DELETED'
) AS k;

COMMENT ON VIEW cairn.v_keepers IS
    'One row per physical file and reason why its object is there; of one that nothing keeps, what '
    'deletes it.';
