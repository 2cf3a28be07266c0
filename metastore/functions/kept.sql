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

-- Returns the LIVE segments of a file, with the checkpoints that they are part of. Those of a group
-- commit are one row, because they die together.
CREATE OR REPLACE FUNCTION cairn.live_ranges(job text, of_file uuid)
RETURNS TABLE (
    first_checkpoint bigint, released_checkpoint bigint, segments bigint, size_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.first_checkpoint, p.released_checkpoint, CAST(1 AS bigint), p.size_bytes
    FROM cairn.placed_segments AS p
    WHERE p.job_id = job AND p.file_id = of_file AND p.status = 'LIVE' AND cairn.is_visible(job)
    UNION ALL
    SELECT
        c.checkpoint_id,
        cairn.released_at(c.job_id, c.key_groups, c.checkpoint_id),
        s.segments,
        s.size_bytes
    FROM cairn.group_commits AS c
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, CAST(sum(one.size_bytes) AS bigint) AS size_bytes
        FROM unnest(c.segment_subtasks, c.sizes_bytes) AS one (subtask, size_bytes)
        WHERE one.subtask <> ALL (c.replaced_subtasks)
    ) AS s
    WHERE c.job_id = job
      AND c.file_id = of_file
      AND c.status = 'LIVE'
      AND s.segments > 0
      AND cairn.is_visible(job);
END;

-- Returns the bytes of a job's LIVE segments by what keeps them. As the cleanup, it asks for the bases
-- of each checkpoint that stays once, and not for each changelog.
CREATE OR REPLACE FUNCTION cairn.live_space(job text)
RETURNS TABLE (
    live_bytes bigint, retained_bytes bigint, pinned_bytes bigint, superseded_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH kept AS MATERIALIZED (
        SELECT k.checkpoint_id, bool_or(k.reason <> 'pin') AS is_retained
        FROM cairn.kept_checkpoints(job) AS k
        WHERE k.reason <> 'superseded'
        GROUP BY k.checkpoint_id
    ),
    ranges AS MATERIALIZED (
        SELECT
            coalesce(range_agg(int8range(k.checkpoint_id, k.checkpoint_id, '[]'))
                FILTER (WHERE k.is_retained), '{}') AS retained,
            coalesce(range_agg(int8range(k.checkpoint_id, k.checkpoint_id, '[]'))
                FILTER (WHERE NOT k.is_retained), '{}') AS pinned
        FROM kept AS k
    ),
    covered AS MATERIALIZED (
        SELECT k.*, cairn.covered_until(job, k.checkpoint_id) AS until FROM kept AS k
    ),
    to_come AS MATERIALIZED (
        SELECT cairn.covered_until(job, NULL) AS until
    ),
    sized AS (
        SELECT
            p.size_bytes,
            CASE
                WHEN p.released_checkpoint IS NULL THEN 'live'
                WHEN int8range(p.first_checkpoint, p.released_checkpoint) && ranges.retained
                    THEN 'retained'
                WHEN int8range(p.first_checkpoint, p.released_checkpoint) && ranges.pinned
                    THEN 'pinned'
                ELSE 'superseded'
            END AS kept_by
        FROM cairn.placed_segments AS p CROSS JOIN ranges
        WHERE p.job_id = job AND p.status = 'LIVE' AND cairn.is_visible(job)
        UNION ALL
        SELECT
            (
                SELECT CAST(sum(one.size_bytes) AS bigint)
                FROM unnest(c.segment_subtasks, c.sizes_bytes) AS one (subtask, size_bytes)
                WHERE one.subtask <> ALL (c.replaced_subtasks)
            ),
            CASE
                WHEN NOT cairn.is_covered(c.key_groups, c.checkpoint_id, to_come.until) THEN 'live'
                -- Whatever the oldest one does not need, newer ones do not.
                WHEN (
                    SELECT cairn.is_needed_by(c.checkpoint_id, c.key_groups, r.checkpoint_id, r.until)
                    FROM covered AS r
                    WHERE r.is_retained AND r.checkpoint_id >= c.checkpoint_id
                    ORDER BY r.checkpoint_id LIMIT 1
                ) THEN 'retained'
                WHEN (
                    SELECT cairn.is_needed_by(c.checkpoint_id, c.key_groups, r.checkpoint_id, r.until)
                    FROM covered AS r
                    WHERE NOT r.is_retained AND r.checkpoint_id >= c.checkpoint_id
                    ORDER BY r.checkpoint_id LIMIT 1
                ) THEN 'pinned'
                ELSE 'superseded'
            END
        FROM cairn.group_commits AS c CROSS JOIN to_come
        WHERE c.job_id = job AND c.status = 'LIVE' AND cairn.is_visible(job)
    )
    SELECT
        CAST(coalesce(sum(s.size_bytes) FILTER (WHERE s.kept_by = 'live'), 0) AS bigint),
        CAST(coalesce(sum(s.size_bytes) FILTER (WHERE s.kept_by = 'retained'), 0) AS bigint),
        CAST(coalesce(sum(s.size_bytes) FILTER (WHERE s.kept_by = 'pinned'), 0) AS bigint),
        CAST(coalesce(sum(s.size_bytes) FILTER (WHERE s.kept_by = 'superseded'), 0) AS bigint)
    FROM sized AS s;
END;
