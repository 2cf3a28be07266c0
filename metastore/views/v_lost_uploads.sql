-- Grain: one row per physical file whose request lost to another one for the same bytes.
-- Columns: job_id, job_name, file_id, path (key below the job's storage), lost_to (the file that
--   counts), batch_id (the micro-batch of a changelog), status, created_at, deleted_at.
-- Read by: people who look for the objects of hedges and retries.
CREATE OR REPLACE VIEW cairn.v_lost_uploads AS
SELECT
    f.job_id,
    j.name AS job_name,
    f.file_id,
    f.path,
    w.file_id AS lost_to,
    f.batch_id,
    f.status,
    f.created_at,
    f.deleted_at
FROM (
    SELECT DISTINCT physical_files.retry_of AS file_id
    FROM cairn.physical_files
    WHERE physical_files.retry_of IS NOT NULL
) AS u
JOIN cairn.physical_files AS f
    ON (f.file_id = u.file_id OR f.retry_of = u.file_id)
    AND f.sealed_at IS NULL
JOIN cairn.physical_files AS w
    ON cairn.is_same_upload(f.file_id, f.retry_of, w.file_id, w.retry_of)
    AND w.sealed_at IS NOT NULL
JOIN cairn.jobs AS j ON j.job_id = f.job_id;

COMMENT ON VIEW cairn.v_lost_uploads IS
    'One row per physical file whose request lost to another one for the same bytes: a hedge, a '
    'retry, or the first.';
