-- Which files are worth rewriting: those with dead bytes beside live ones, and what holds each.

-- Whether a run may still append to a file: its executors keep files open below a size that its row
-- has. So no executor is asked; a file that one of them gave up waits for the end of the run.
CREATE OR REPLACE FUNCTION cairn.is_open_file(file cairn.physical_files) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN file.maintenance_run_id IS NULL AND EXISTS (
    SELECT FROM cairn.runs AS r
    WHERE r.job_id = file.job_id
      AND r.epoch = file.epoch
      AND file.size_bytes < r.open_file_bytes
      AND NOT cairn.is_over(r.ended_at, r.seen_at)
      AND r.epoch >= (SELECT j.current_epoch FROM cairn.jobs AS j WHERE j.job_id = file.job_id)
);

-- Returns what rewriting each of some sealed files of a job costs and frees, those that free most first.
-- `freed_bytes` are free once its `movable_bytes`, in so many bases and increments, are elsewhere and
-- the checkpoints that there are now have been subsumed. They are 0 where something holds it:
--   open: its run may append to it;
--   damaged: a scrub has found damage in it, which a copy would hide until the next one;
--   pin: a pinned checkpoint needs a segment in it, wherever those to come find theirs;
--   changelog: checkpoints to come need changelog in it, which is folded and never moved;
--   retained: all that is live in it dies with checkpoints that are retained now.
CREATE OR REPLACE FUNCTION cairn.rewritable_files(job text, files uuid[])
RETURNS TABLE (
    file_id uuid, path text, scope text, size_bytes bigint, live_bytes bigint,
    movable_segments bigint, movable_bytes bigint, changelog_bytes bigint, held_by text,
    freed_bytes bigint
)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH pinned AS MATERIALIZED (
        SELECT coalesce(
            range_agg(int8range(p.checkpoint_id, p.checkpoint_id, '[]')), '{}'
        ) AS checkpoints
        FROM cairn.pins AS p
        WHERE p.job_id = job AND p.removed_at IS NULL
    ),
    -- Not made unless there is a file with group commits.
    covered AS MATERIALIZED (
        SELECT cairn.covered_until(job, NULL) AS until
    ),
    found AS (
        SELECT
            f.file_id, f.path, f.scope, f.size_bytes, f.live_bytes,
            placed.movable_segments, placed.movable_bytes,
            placed.changelog_bytes + committed.changelog_bytes AS changelog_bytes,
            CASE
                WHEN cairn.is_open_file(f) THEN 'open'
                WHEN EXISTS (
                    SELECT FROM cairn.damaged_segments AS d
                    WHERE d.file_id = f.file_id AND d.resolved_at IS NULL
                ) THEN 'damaged'
                WHEN placed.is_pinned THEN 'pin'
                WHEN placed.changelog_bytes + committed.changelog_bytes > 0 THEN 'changelog'
                WHEN placed.movable_segments = 0 THEN 'retained'
            END AS held_by
        FROM unnest(files) AS chosen (file_id)
        JOIN cairn.physical_files AS f ON f.file_id = chosen.file_id
        CROSS JOIN LATERAL (
            SELECT
                count(*) FILTER (WHERE s.released_checkpoint IS NULL AND s.kind <> 'changelog')
                    AS movable_segments,
                CAST(coalesce(sum(s.size_bytes) FILTER (
                    WHERE s.released_checkpoint IS NULL AND s.kind <> 'changelog'
                ), 0) AS bigint) AS movable_bytes,
                CAST(coalesce(sum(s.size_bytes) FILTER (
                    WHERE s.released_checkpoint IS NULL AND s.kind = 'changelog'
                ), 0) AS bigint) AS changelog_bytes,
                coalesce(bool_or(
                    int8range(s.first_checkpoint, s.released_checkpoint)
                    && (SELECT pinned.checkpoints FROM pinned)
                ), FALSE) AS is_pinned
            FROM cairn.placed_segments AS s
            WHERE s.file_id = f.file_id AND s.status = 'LIVE'
        ) AS placed
        CROSS JOIN LATERAL (
            SELECT CAST(coalesce(sum(one.size_bytes), 0) AS bigint) AS changelog_bytes
            FROM cairn.group_commits AS c
            CROSS JOIN LATERAL unnest(c.segment_subtasks, c.sizes_bytes, c.segment_kinds)
                AS one (subtask, size_bytes, kind)
            WHERE c.file_id = f.file_id
              AND c.status = 'LIVE'
              AND one.kind IS DISTINCT FROM 'operator'
              AND one.kind IS DISTINCT FROM 'channel'
              AND one.subtask <> ALL (c.replaced_subtasks)
              AND NOT cairn.is_covered(
                c.key_groups, c.checkpoint_id, (SELECT covered.until FROM covered)
            )
        ) AS committed
        WHERE f.job_id = job AND f.status = 'SEALED' AND f.live_segments > 0
    )
    SELECT
        found.*,
        CASE WHEN found.held_by IS NULL THEN found.size_bytes - found.live_bytes ELSE 0 END
    FROM found
    ORDER BY found.size_bytes - found.live_bytes DESC, found.file_id;
END;

-- Returns the ids of up to `most` sealed files of a job whose space amplification, their size over
-- their live bytes, is above `least_ratio`, those with the most dead bytes first; after the one that
-- is given. It costs what is wasteful: an index has such files alone.
CREATE OR REPLACE FUNCTION cairn.wasteful_files(
    job text, least_ratio double precision, after_dead_bytes bigint, after_file uuid, most integer
) RETURNS TABLE (file_id uuid, dead_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT f.file_id, f.dead_bytes
    FROM cairn.physical_files AS f
    WHERE f.job_id = job
      AND f.status = 'SEALED'
      AND f.dead_bytes > 0
      AND f.live_segments > 0
      AND f.dead_bytes > (least_ratio - 1) * f.live_bytes
      AND (f.dead_bytes, f.file_id) < (after_dead_bytes, after_file)
    ORDER BY f.dead_bytes DESC, f.file_id DESC
    LIMIT most;
END;
