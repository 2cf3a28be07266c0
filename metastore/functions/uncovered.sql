-- Returns the changelog of a job by subtask that a restore to a checkpoint replays; null: that no
-- base or increment has replaced yet. `new_bytes` are of the checkpoint itself; null: none.
CREATE OR REPLACE FUNCTION cairn.uncovered_changelog(job text, at_checkpoint bigint)
RETURNS TABLE (subtask bigint, segments bigint, size_bytes bigint, new_bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH covered AS MATERIALIZED (
        SELECT cairn.covered_until(job, at_checkpoint) AS until
    ),
    newest AS MATERIALIZED (
        SELECT max(one) AS until FROM covered CROSS JOIN LATERAL unnest(covered.until) AS one
    ),
    changelog AS (
        SELECT
            CAST(s.subtask AS bigint) AS subtask,
            s.size_bytes,
            c.checkpoint_id
        FROM covered CROSS JOIN newest
        JOIN cairn.group_commits AS c ON c.job_id = job AND c.status = 'LIVE'
        CROSS JOIN LATERAL unnest(c.segment_subtasks, c.sizes_bytes, c.segment_kinds)
            AS s (subtask, size_bytes, kind)
        WHERE (at_checkpoint IS NULL OR c.checkpoint_id <= at_checkpoint)
          AND (s.kind IS NULL OR s.kind = 'changelog')
          AND s.subtask <> ALL (c.replaced_subtasks)
          -- Most are newer than all bases: then no key group need be looked at.
          AND (
            c.checkpoint_id > newest.until
            OR c.checkpoint_id > ANY (covered.until[
                lower(cairn.key_groups_of(s.subtask, c.parallelism, c.max_parallelism)) + 1
                :upper(cairn.key_groups_of(s.subtask, c.parallelism, c.max_parallelism))
            ])
          )
        UNION ALL
        SELECT p.subtask, p.size_bytes, p.first_checkpoint
        FROM cairn.placed_segments AS p
        WHERE p.job_id = job
          AND p.status = 'LIVE'
          AND p.kind = 'changelog'
          AND CASE
            WHEN at_checkpoint IS NULL THEN p.released_checkpoint IS NULL
            ELSE cairn.is_part_of(p.first_checkpoint, p.released_checkpoint, at_checkpoint)
          END
    )
    SELECT
        changelog.subtask,
        count(*),
        CAST(sum(changelog.size_bytes) AS bigint),
        CAST(
            sum(changelog.size_bytes) FILTER (WHERE changelog.checkpoint_id = at_checkpoint)
            AS bigint
        )
    FROM changelog
    WHERE cairn.is_visible(job)
    GROUP BY changelog.subtask;
END;
