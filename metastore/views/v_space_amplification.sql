-- Grain: one row per job.
-- Columns: job_id, job_name, files (sealed or condemned: they lie in storage), physical_bytes
--   (their size), live_bytes (of segments that some checkpoint may need), waiting_bytes (of
--   condemned ones that wait until `cairn.file-retention` is over), dead_bytes (physical - live), ratio (physical without
--   waiting over live; null when nothing is live); by scope: shared_physical_bytes,
--   shared_live_bytes, taskmanager_physical_bytes, taskmanager_live_bytes,
--   maintenance_physical_bytes, maintenance_live_bytes.
-- Read by: dashboards, and by people who decide whether to clean up or compact.
CREATE OR REPLACE VIEW cairn.v_space_amplification AS
SELECT
    s.*,
    s.physical_bytes - s.live_bytes AS dead_bytes,
    CAST(s.physical_bytes - s.waiting_bytes AS double precision) / nullif(s.live_bytes, 0)
        AS ratio
FROM (
    SELECT
        j.job_id,
        j.name AS job_name,
        count(f.file_id) AS files,
        CAST(coalesce(sum(f.size_bytes), 0) AS bigint) AS physical_bytes,
        CAST(coalesce(sum(f.live_bytes), 0) AS bigint) AS live_bytes,
        CAST(
            coalesce(
                sum(f.size_bytes) FILTER (
                    WHERE f.condemned_at > now() - make_interval(secs => j.file_retention_ms / 1000.0)
                ), 0
            ) AS bigint
        ) AS waiting_bytes,
        CAST(coalesce(sum(f.size_bytes) FILTER (WHERE f.scope = 'shared'), 0) AS bigint)
            AS shared_physical_bytes,
        CAST(coalesce(sum(f.live_bytes) FILTER (WHERE f.scope = 'shared'), 0) AS bigint)
            AS shared_live_bytes,
        CAST(coalesce(sum(f.size_bytes) FILTER (WHERE f.scope = 'taskmanager'), 0) AS bigint)
            AS taskmanager_physical_bytes,
        CAST(coalesce(sum(f.live_bytes) FILTER (WHERE f.scope = 'taskmanager'), 0) AS bigint)
            AS taskmanager_live_bytes,
        CAST(coalesce(sum(f.size_bytes) FILTER (WHERE f.scope = 'maintenance'), 0) AS bigint)
            AS maintenance_physical_bytes,
        CAST(coalesce(sum(f.live_bytes) FILTER (WHERE f.scope = 'maintenance'), 0) AS bigint)
            AS maintenance_live_bytes
    FROM cairn.jobs AS j
    LEFT JOIN cairn.physical_files AS f
        ON f.job_id = j.job_id AND f.status IN ('SEALED', 'CONDEMNED')
    GROUP BY j.job_id, j.name
) AS s;

COMMENT ON VIEW cairn.v_space_amplification IS
    'One row per job: physical bytes in storage over live bytes, in all and by scope.';
