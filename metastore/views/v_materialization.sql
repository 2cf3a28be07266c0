-- Grain: one row per job and subtask that has begun a materialization.
-- Columns: job_id, job_name, subtask; started, completed, failed (counts; one that was killed is
--   neither completed nor failed); last_duration_ms (of the last completed one); last_full_bytes,
--   last_increment_bytes (what the last of each kind wrote); changelog_segments, changelog_bytes
--   (what a restore replays on top of both); last_completed_at, last_error.
-- Read by: dashboards. Flink's ChangelogMaterialization.* and ChangelogStateBackend.* by subtask.
CREATE OR REPLACE VIEW cairn.v_materialization AS
SELECT
    m.job_id,
    j.name AS job_name,
    m.subtask,
    m.started,
    m.completed,
    m.failed,
    m.last_duration_ms,
    m.last_full_bytes,
    m.last_increment_bytes,
    coalesce(s.segments, 0) AS changelog_segments,
    coalesce(s.size_bytes, 0) AS changelog_bytes,
    m.last_completed_at,
    m.last_error
FROM cairn.materialization_totals AS m
JOIN cairn.jobs AS j ON j.job_id = m.job_id
LEFT JOIN (
    SELECT jobs.job_id, u.subtask, u.segments, u.size_bytes
    FROM cairn.jobs
    CROSS JOIN LATERAL cairn.uncovered_changelog(jobs.job_id, NULL) AS u
) AS s ON s.job_id = m.job_id AND s.subtask = m.subtask;

COMMENT ON VIEW cairn.v_materialization IS
    'One row per job and subtask: materializations begun, completed and failed, how long the last one '
    'took, what it wrote in bytes, and the changelog that a restore replays.';
