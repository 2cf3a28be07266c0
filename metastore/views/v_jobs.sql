-- Grain: one row per job.
-- Columns: job_id, job_name, storage (root of its objects), parallelism and epoch (of the newest
--   run registered), max_parallelism, num_retained, query_id (Spark's), checkpoints (COMPLETED or
--   CONFIRMED), last_checkpoint and last_completed_at (of the newest of these), created_at,
--   run_state: 'running'; 'ended', at ended_at; 'lost' if there was no sign of life since seen_at
--   for an hour. While any run that may write is running, that is the state. 'dropped' of a job
--   whose files and rows are being deleted since dropped_at; it was called former_name.
-- Read by: `cairn jobs`, and by people who look for a job's name.
CREATE OR REPLACE VIEW cairn.v_jobs AS
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
    j.created_at,
    CASE
        WHEN j.dropped_at IS NOT NULL THEN 'dropped'
        WHEN EXISTS (
            SELECT FROM cairn.runs
            WHERE runs.job_id = j.job_id
              AND runs.epoch >= j.current_epoch
              AND NOT cairn.is_over(runs.ended_at, runs.seen_at)
        ) THEN 'running'
        WHEN r.ended_at IS NOT NULL THEN 'ended'
        WHEN r.epoch IS NOT NULL THEN 'lost'
    END AS run_state,
    r.seen_at,
    r.ended_at,
    j.former_name,
    j.dropped_at
FROM cairn.jobs AS j
LEFT JOIN LATERAL (
    SELECT runs.epoch, runs.parallelism, runs.seen_at, runs.ended_at
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
) AS c;

COMMENT ON VIEW cairn.v_jobs IS
    'One row per job: its newest run and newest whole checkpoint.';
