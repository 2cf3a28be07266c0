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
    count(*) AS started,
    count(*) FILTER (WHERE m.finished_at IS NOT NULL AND m.error IS NULL) AS completed,
    count(m.error) AS failed,
    CAST(
        (array_agg(round(extract(EPOCH FROM m.finished_at - m.started_at) * 1000)
            ORDER BY m.started_at DESC)
            FILTER (WHERE m.finished_at IS NOT NULL AND m.error IS NULL))[1] AS bigint
    ) AS last_duration_ms,
    (array_agg(m.size_bytes ORDER BY m.started_at DESC)
        FILTER (WHERE m.kind = 'keyed_full'))[1] AS last_full_bytes,
    (array_agg(m.size_bytes ORDER BY m.started_at DESC)
        FILTER (WHERE m.kind = 'keyed_increment'))[1] AS last_increment_bytes,
    coalesce(max(s.segments), 0) AS changelog_segments,
    CAST(coalesce(max(s.bytes), 0) AS bigint) AS changelog_bytes,
    max(m.finished_at) FILTER (WHERE m.error IS NULL) AS last_completed_at,
    (array_agg(m.error ORDER BY m.started_at DESC) FILTER (WHERE m.error IS NOT NULL))[1]
        AS last_error
FROM cairn.jobs AS j
JOIN cairn.materializations AS m ON m.job_id = j.job_id
LEFT JOIN LATERAL (
    SELECT u.subtask, u.segments, u.size_bytes AS bytes
    FROM cairn.uncovered_changelog(j.job_id, NULL) AS u
) AS s ON s.subtask = m.subtask
GROUP BY m.job_id, j.name, m.subtask;

COMMENT ON VIEW cairn.v_materialization IS
    'One row per job and subtask: materializations begun, completed and failed, how long the last one '
    'took, what it wrote in bytes, and the changelog that a restore replays.';
