-- Grain: one row per request to a running query (`cairn.run`).
-- Columns: job_id, job_name, request_id, kind ('rescale', 'stop'), parallelism (that is asked for),
--   savepoint (its name), requested_by (a login of the metastore), requested_at, status, taken_at (by
--   the driver), ended_at, checkpoint_id (the first whole one at the new parallelism; the last one of
--   a query that stopped), message (why it failed or was withdrawn).
-- Read by: `cairn requests`.
CREATE OR REPLACE VIEW cairn.v_run_requests AS
SELECT
    q.job_id,
    j.name AS job_name,
    q.request_id,
    q.kind,
    q.parallelism,
    q.savepoint,
    q.requested_by,
    q.requested_at,
    q.status,
    q.taken_at,
    q.ended_at,
    q.checkpoint_id,
    q.message
FROM cairn.run_requests AS q
JOIN cairn.jobs AS j ON j.job_id = q.job_id;

COMMENT ON VIEW cairn.v_run_requests IS
    'One row per request to a running query, and its result.';
