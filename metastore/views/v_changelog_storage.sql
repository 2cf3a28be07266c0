-- Grain: one row per group commit that uploaded something.
-- Columns: job_id, job_name, checkpoint_id, tm_id (the executor), recorded_at; Flink's metrics
--   ChangelogStorage.* by their names, what metastore/README.md says of each:
--   number_of_upload_requests, number_of_upload_failures, upload_sizes (bytes),
--   upload_latencies_nanos, attempts_per_upload, total_attempts_per_upload, upload_batch_sizes
--   (segments), upload_queue_size (uploads); and what Flink lacks: files, retries, hedges,
--   hedge_wins, failed_attempts, wait_ms (for the limits in flight), longest_request_ms,
--   pool_wait_ms (for a file of a pool that blocks).
-- Read by: people who ask why a batch took long, and what hedging costs and gains.
CREATE OR REPLACE VIEW cairn.v_changelog_storage AS
SELECT
    u.job_id,
    j.name AS job_name,
    u.checkpoint_id,
    u.tm_id,
    u.acked_at AS recorded_at,
    u.requests AS number_of_upload_requests,
    u.failed_uploads AS number_of_upload_failures,
    u.uploaded_bytes AS upload_sizes,
    CAST(u.upload_ms AS bigint) * 1000000 AS upload_latencies_nanos,
    u.winning_attempt AS attempts_per_upload,
    u.requests AS total_attempts_per_upload,
    u.uploaded_segments AS upload_batch_sizes,
    u.queue_size AS upload_queue_size,
    u.uploaded_files AS files,
    u.retries,
    u.hedges,
    u.hedge_wins,
    u.failed_attempts,
    u.wait_ms,
    u.longest_request_ms,
    u.pool_wait_ms
FROM cairn.group_commits AS u
JOIN cairn.jobs AS j ON j.job_id = u.job_id
WHERE u.uploaded_files IS NOT NULL;

COMMENT ON VIEW cairn.v_changelog_storage IS
    'One row per group commit that uploaded something: the values of the ChangelogStorage metrics of '
    'Flink, and what Flink lacks.';
