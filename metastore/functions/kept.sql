-- Why the checkpoints of a job stay: what the cleanup decides, in one place for people to ask.

-- Returns the checkpoints that have not ended, each with every reason: 'newest' (one of the newest
-- `num_retained` that are CONFIRMED), 'pin', 'manifest' (the newest that has one, where the job keeps
-- it), 'unfinished' (a batch may have to be run again), and 'superseded' for none of them: the next
-- cleanup subsumes it.
CREATE OR REPLACE FUNCTION cairn.kept_checkpoints(job text)
RETURNS TABLE (checkpoint_id bigint, reason text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH retained AS MATERIALIZED (
        SELECT
            c.checkpoint_id,
            c.status = 'CONFIRMED' AS is_confirmed,
            c.status = 'CONFIRMED' AND row_number() OVER (
                PARTITION BY c.status = 'CONFIRMED' ORDER BY c.checkpoint_id DESC
            ) <= j.num_retained AS is_newest,
            EXISTS (
                SELECT FROM cairn.pins AS p
                WHERE p.job_id = c.job_id
                  AND p.checkpoint_id = c.checkpoint_id
                  AND p.removed_at IS NULL
            ) AS is_pinned,
            j.keeps_manifest AND c.checkpoint_id = (
                SELECT max(s.first_checkpoint) FROM cairn.placed_segments AS s
                WHERE s.job_id = job AND s.status = 'LIVE' AND s.kind = 'manifest'
            ) AS has_manifest
        FROM cairn.checkpoints AS c
        JOIN cairn.jobs AS j ON j.job_id = c.job_id
        WHERE c.job_id = job
          AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
          AND cairn.is_visible(job)
    )
    SELECT r.checkpoint_id, why.reason
    FROM retained AS r
    CROSS JOIN LATERAL (
        VALUES
            ('newest', r.is_newest),
            ('pin', r.is_pinned),
            ('manifest', coalesce(r.has_manifest, FALSE)),
            ('unfinished', NOT r.is_confirmed),
            (
                'superseded',
                r.is_confirmed AND NOT r.is_newest AND NOT r.is_pinned
                    AND NOT coalesce(r.has_manifest, FALSE)
            )
    ) AS why (reason, holds)
    WHERE why.holds;
END;

-- Returns the LIVE segments of a job, or of one of its files, with the checkpoints that they are part
-- of. Those of a group commit are one row, because they die together.
CREATE OR REPLACE FUNCTION cairn.live_ranges(job text, of_file uuid)
RETURNS TABLE (
    file_id uuid, first_checkpoint bigint, released_checkpoint bigint, segments bigint, size_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.file_id, p.first_checkpoint, p.released_checkpoint, CAST(1 AS bigint), p.size_bytes
    FROM cairn.placed_segments AS p
    WHERE p.job_id = job
      AND p.status = 'LIVE'
      AND (of_file IS NULL OR p.file_id = of_file)
      AND cairn.is_visible(job)
    UNION ALL
    SELECT
        c.file_id,
        c.checkpoint_id,
        -- Most are of the current state: one look at the bases tells.
        CASE WHEN cairn.is_covered(c.key_groups, c.checkpoint_id, now_.until)
            THEN cairn.released_at(c.job_id, c.key_groups, c.checkpoint_id)
        END,
        s.segments,
        s.size_bytes
    FROM (SELECT cairn.covered_until(job, NULL) AS until) AS now_
    CROSS JOIN cairn.group_commits AS c
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, CAST(sum(one.size_bytes) AS bigint) AS size_bytes
        FROM unnest(c.segment_subtasks, c.sizes_bytes) AS one (subtask, size_bytes)
        WHERE one.subtask <> ALL (c.replaced_subtasks)
    ) AS s
    WHERE c.job_id = job
      AND c.status = 'LIVE'
      AND c.file_id IS NOT NULL
      AND (of_file IS NULL OR c.file_id = of_file)
      AND s.segments > 0
      AND cairn.is_visible(job);
END;
