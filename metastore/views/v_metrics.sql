-- Grain: one row per job and value of a metric: one each per task manager, subtask or action where
--   the metric is by these, and several of a histogram.
-- Columns: job_id, job_name, tm_id (the executor), subtask and action (of the maintenance; null where
--   the metric is not by it),
--   metric (Flink's name where Flink has it), kind (counter or gauge; of a histogram quantile, sum
--   or count), quantile (0.5 to 0.999; else null), value. docs/metrics.md has every metric, its unit
--   and what it means.
-- Metrics by task manager or subtask are of the job's current run: counters, sums and counts start
--   with it. Quantiles are of the group commits of the job's latest 100 checkpoints.
-- Read by: `cairn metrics`, and by Prometheus through it.
CREATE OR REPLACE VIEW cairn.v_metrics AS
SELECT
    j.job_id,
    j.name AS job_name,
    CAST(NULL AS text) AS tm_id,
    CAST(NULL AS bigint) AS subtask,
    CAST(NULL AS text) AS action,
    m.metric,
    m.kind,
    CAST(NULL AS double precision) AS quantile,
    CAST(m.value AS double precision) AS value
FROM cairn.jobs AS j
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE physical_files.sealed_at IS NOT NULL) AS files,
        coalesce(sum(physical_files.size_bytes), 0) AS size_bytes,
        coalesce(sum(physical_files.live_segments), 0) AS live_segments,
        coalesce(sum(physical_files.live_bytes), 0) AS live_bytes,
        count(*) FILTER (WHERE physical_files.condemned_at > t.moment) AS waiting,
        coalesce(
            sum(physical_files.size_bytes) FILTER (WHERE physical_files.condemned_at > t.moment), 0
        ) AS waiting_bytes
    FROM cairn.physical_files
    CROSS JOIN (SELECT now() - make_interval(secs => j.file_retention_ms / 1000.0) AS moment) AS t
    WHERE physical_files.job_id = j.job_id
      AND physical_files.status IN ('SEALED', 'CONDEMNED')
) AS f
CROSS JOIN LATERAL (
    SELECT count(*) AS files
    FROM cairn.v_unneeded_files
    WHERE v_unneeded_files.job_id = j.job_id
      AND v_unneeded_files.sealed_at IS NULL
) AS o
CROSS JOIN LATERAL (
    SELECT count(*) AS files
    FROM cairn.deletions
    WHERE deletions.job_id = j.job_id
      AND deletions.done_at IS NULL
      AND deletions.last_error IS NOT NULL
) AS d
CROSS JOIN LATERAL (
    SELECT count(*) AS segments
    FROM cairn.v_damaged_segments
    WHERE v_damaged_segments.job_id = j.job_id
) AS b
CROSS JOIN LATERAL (
    VALUES
        ('fileMerging.logicalFileCount', 'gauge', f.live_segments),
        ('fileMerging.logicalFileSize', 'gauge', f.live_bytes),
        ('fileMerging.physicalFileCount', 'gauge', f.files),
        ('fileMerging.physicalFileSize', 'gauge', f.size_bytes),
        ('Storage.spaceAmplification', 'gauge', (f.size_bytes - f.waiting_bytes) / nullif(f.live_bytes, 0)),
        ('Storage.orphanFiles', 'gauge', o.files),
        ('Storage.failedDeletes', 'gauge', d.files),
        ('Storage.damagedSegments', 'gauge', b.segments),
        ('Storage.waitingFiles', 'gauge', f.waiting),
        ('Storage.waitingBytes', 'gauge', f.waiting_bytes)
) AS m (metric, kind, value)
WHERE m.value IS NOT NULL
UNION ALL
SELECT
    j.job_id,
    j.name,
    u.tm_id,
    NULL,
    NULL,
    m.metric,
    m.kind,
    m.quantile,
    m.value
FROM cairn.jobs AS j
JOIN cairn.upload_totals AS u ON u.job_id = j.job_id AND u.epoch = j.current_epoch
LEFT JOIN LATERAL (
    SELECT
        g.tm_id,
        (array_agg(g.queue_size ORDER BY g.acked_at DESC))[1]
            AS queue_size,
        sum(g.wait_ms)
            FILTER (WHERE g.acked_at > now() - INTERVAL '1 minute')
            AS wait_ms_of_a_minute,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.uploaded_bytes) AS size_bytes_at,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.upload_ms) AS upload_ms_at,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.winning_attempt) AS winning_attempt_at,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.requests) AS requests_at,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.uploaded_segments) AS segments_at,
        percentile_cont(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999])
            WITHIN GROUP (ORDER BY g.pool_wait_ms) AS pool_wait_ms_at
    FROM cairn.group_commits AS g
    WHERE g.job_id = j.job_id
      -- With both ends the server expects few, and uses the index.
      AND g.checkpoint_id BETWEEN j.next_checkpoint_id - 100 AND j.next_checkpoint_id
      AND g.uploaded_files IS NOT NULL
    GROUP BY g.tm_id
) AS latest ON latest.tm_id = u.tm_id
CROSS JOIN LATERAL (
    SELECT
        single.metric,
        single.kind,
        CAST(NULL AS double precision) AS quantile,
        CAST(single.value AS double precision) AS value
    FROM (
        VALUES
            ('ChangelogStorage.numberOfUploadRequests', 'counter', u.requests),
            ('ChangelogStorage.numberOfUploadFailures', 'counter', u.failed_uploads),
            ('ChangelogStorage.uploadQueueSize', 'gauge', latest.queue_size),
            ('changelogBusyTimeMsPerSecond', 'gauge', coalesce(latest.wait_ms_of_a_minute, 0) / 60)
    ) AS single (metric, kind, value)
    UNION ALL
    SELECT h.metric, p.kind, p.quantile, p.value
    FROM (
        VALUES
            ('ChangelogStorage.uploadSizes', 1, u.size_bytes, latest.size_bytes_at),
            ('ChangelogStorage.uploadLatenciesNanos', 1000000, u.upload_ms, latest.upload_ms_at),
            ('ChangelogStorage.attemptsPerUpload', 1, u.winning_attempt, latest.winning_attempt_at),
            ('ChangelogStorage.totalAttemptsPerUpload', 1, u.requests, latest.requests_at),
            ('ChangelogStorage.uploadBatchSizes', 1, u.segments, latest.segments_at),
            ('FilePool.waitMillis', 1, u.pool_wait_ms, latest.pool_wait_ms_at)
    ) AS h (metric, unit, total, at)
    CROSS JOIN LATERAL (
        SELECT
            'quantile' AS kind,
            q.quantile,
            q.value * h.unit AS value
        FROM unnest(
            CAST(ARRAY[0.5, 0.75, 0.95, 0.98, 0.99, 0.999] AS double precision[]), h.at
        ) AS q (quantile, value)
        UNION ALL
        SELECT 'sum', NULL, CAST(h.total * h.unit AS double precision)
        UNION ALL
        SELECT 'count', NULL, CAST(u.commits AS double precision)
    ) AS p
) AS m
WHERE m.value IS NOT NULL
UNION ALL
SELECT
    j.job_id,
    j.name,
    NULL,
    s.subtask,
    NULL,
    m.metric,
    m.kind,
    NULL,
    CAST(m.value AS double precision)
FROM cairn.jobs AS j
JOIN cairn.materialization_totals AS s ON s.job_id = j.job_id AND s.epoch = j.current_epoch
CROSS JOIN LATERAL (
    VALUES
        ('ChangelogMaterialization.startedMaterialization', 'counter', s.run_started),
        ('ChangelogMaterialization.completedMaterialization', 'counter', s.run_completed),
        ('ChangelogMaterialization.failedMaterialization', 'counter', s.run_failed),
        ('ChangelogMaterialization.lastDurationOfMaterialization', 'gauge', s.last_duration_ms),
        ('ChangelogStateBackend.lastFullSizeOfMaterialization', 'gauge', s.last_full_bytes),
        ('ChangelogStateBackend.lastIncSizeOfMaterialization', 'gauge', s.last_increment_bytes),
        ('Storage.rewriteBytes', 'counter', s.run_bytes)
) AS m (metric, kind, value)
WHERE m.value IS NOT NULL
UNION ALL
SELECT
    j.job_id,
    j.name,
    NULL,
    s.subtask,
    NULL,
    m.metric,
    'gauge',
    NULL,
    CAST(m.value AS double precision)
FROM cairn.jobs AS j
CROSS JOIN LATERAL (
    SELECT max(checkpoints.checkpoint_id) AS checkpoint_id
    FROM cairn.checkpoints
    WHERE checkpoints.job_id = j.job_id
      AND checkpoints.status IN ('COMPLETED', 'CONFIRMED')
) AS newest
CROSS JOIN LATERAL (
    SELECT
        c.subtask,
        sum(c.size_bytes) AS size_bytes,
        sum(c.new_bytes) AS new_bytes
    FROM (
        SELECT u.subtask, u.size_bytes, u.new_bytes
        FROM cairn.uncovered_changelog(j.job_id, newest.checkpoint_id) AS u
        UNION ALL
        SELECT CAST(acked.subtask AS bigint), 0, 0
        FROM cairn.group_commits AS g
        CROSS JOIN LATERAL unnest(g.subtasks) AS acked (subtask)
        WHERE g.job_id = j.job_id
          AND g.checkpoint_id = newest.checkpoint_id
    ) AS c
    GROUP BY c.subtask
) AS s
CROSS JOIN LATERAL (
    VALUES
        ('ChangelogStateBackend.lastFullSizeOfNonMaterialization', s.size_bytes),
        ('ChangelogStateBackend.lastIncSizeOfNonMaterialization', s.new_bytes)
) AS m (metric, value)
WHERE m.value IS NOT NULL
UNION ALL
SELECT
    j.job_id,
    j.name,
    NULL,
    NULL,
    g.action,
    'Maintenance.secondsSinceLastGoodRun',
    'gauge',
    NULL,
    CAST(greatest(0, extract(EPOCH FROM now() - g.finished_at)) AS double precision)
FROM cairn.jobs AS j
JOIN cairn.good_runs AS g ON g.job_id = j.job_id
WHERE j.dropped_at IS NULL;

COMMENT ON VIEW cairn.v_metrics IS
    'One row per job and value of a metric, by task manager, subtask, action or quantile where it is by '
    'these: the metrics of Flink by their names, and what Flink lacks.';
