-- Grain: one row per directory of a job that one subtask or one task manager owns.
-- Columns: job_id, job_name, path (key below the job's storage), scope, subtask and parallelism (of
--   a subtask's), tm_id (of a task manager's), status, epoch (the newest run that claimed it), files
--   (not deleted), size_bytes (of those that are sealed) and live_bytes, claimed_at (by that run),
--   unclaimed_at and deleted_at (null while it is claimed).
-- Read by: `cairn directories`.
CREATE OR REPLACE VIEW cairn.v_directories AS
SELECT
    d.job_id,
    j.name AS job_name,
    d.path,
    d.scope,
    d.subtask,
    d.parallelism,
    d.tm_id,
    d.status,
    d.epoch,
    coalesce(f.files, 0) AS files,
    coalesce(f.size_bytes, 0) AS size_bytes,
    coalesce(f.live_bytes, 0) AS live_bytes,
    d.claimed_at,
    d.unclaimed_at,
    d.deleted_at
FROM cairn.directories AS d
JOIN cairn.jobs AS j ON j.job_id = d.job_id
LEFT JOIN (
    SELECT
        physical_files.job_id,
        cairn.directory_of(physical_files.path) AS path,
        count(*) AS files,
        CAST(sum(physical_files.size_bytes) AS bigint) AS size_bytes,
        CAST(sum(physical_files.live_bytes) AS bigint) AS live_bytes
    FROM cairn.physical_files
    WHERE physical_files.status <> 'DELETED'
    GROUP BY physical_files.job_id, cairn.directory_of(physical_files.path)
) AS f ON f.job_id = d.job_id AND f.path = d.path;

COMMENT ON VIEW cairn.v_directories IS
    'One row per directory of a job: whose it is, whether a run claims it, and the files that are not '
    'deleted.';
