-- Grain: one row per job.
-- Columns: job_id, job_name, files (sealed or condemned: they lie in storage), physical_bytes (their
--   size), which is the sum of: live_bytes (segments that the next checkpoint needs), retained_bytes
--   (that only checkpoints need which stay by themselves), pinned_bytes (that only pinned ones need),
--   superseded_bytes (that nothing needs and the next cleanup lets die), dead_bytes (dead, in files
--   that hold something live), unneeded_bytes (files that hold nothing live), waiting_bytes
--   (condemned, until `cairn.file-retention` is over), due_bytes (that the next cleanup deletes). And
--   unsealed_files (write intents, of unknown size).
-- Read by: `cairn space`, and by people who ask what pinning and retaining cost.
CREATE OR REPLACE VIEW cairn.v_space AS
SELECT
    j.job_id,
    j.name AS job_name,
    f.files,
    f.physical_bytes,
    s.live_bytes,
    s.retained_bytes,
    s.pinned_bytes,
    s.superseded_bytes,
    f.dead_bytes,
    f.unneeded_bytes,
    f.waiting_bytes,
    f.due_bytes,
    f.unsealed_files
FROM cairn.jobs AS j
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE p.status <> 'WRITING') AS files,
        count(*) FILTER (WHERE p.status = 'WRITING') AS unsealed_files,
        CAST(coalesce(sum(p.size_bytes), 0) AS bigint) AS physical_bytes,
        CAST(coalesce(sum(p.size_bytes - p.live_bytes) FILTER (
            WHERE p.status = 'SEALED' AND p.live_segments > 0
        ), 0) AS bigint) AS dead_bytes,
        CAST(coalesce(sum(p.size_bytes) FILTER (
            WHERE p.status = 'SEALED' AND p.is_empty
        ), 0) AS bigint) AS unneeded_bytes,
        CAST(coalesce(sum(p.size_bytes) FILTER (
            WHERE p.status = 'CONDEMNED' AND p.condemned_at > t.moment
        ), 0) AS bigint) AS waiting_bytes,
        CAST(coalesce(sum(p.size_bytes) FILTER (
            WHERE p.status = 'CONDEMNED' AND p.condemned_at > t.moment IS NOT TRUE
        ), 0) AS bigint) AS due_bytes
    FROM cairn.physical_files AS p
    CROSS JOIN (SELECT now() - make_interval(secs => j.file_retention_ms / 1000.0) AS moment) AS t
    WHERE p.job_id = j.job_id AND p.status <> 'DELETED'
) AS f
CROSS JOIN LATERAL cairn.live_space(j.job_id) AS s;

COMMENT ON VIEW cairn.v_space IS
    'One row per job: the bytes in storage by what keeps them: state, retained checkpoints, pins, or '
    'nothing.';
