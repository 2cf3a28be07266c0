-- Grain: one row per job and day (UTC) on which something was made. A row counts for the day it was
--   made, whatever became of it later, and also once it is trimmed: the numbers never decrease.
-- Columns: job_id, job_name, day; checkpoints (begun) and checkpoints_aborted; group_commits,
--   input_rows and late_rows (without those of aborted checkpoints and replaced attempts); segments
--   and segment_bytes (of group commits, and placed ones); uploads (group commits that uploaded
--   something), upload_requests, upload_retries, upload_hedges, failed_uploads, uploaded_bytes,
--   upload_ms; files (intended), files_sealed, files_deleted, file_bytes (of sealed ones);
--   materializations and materialized_bytes; trimmed_checkpoints and trimmed_files (of those above:
--   only their sums are left).
-- Read by: people who ask what a job did before the rows that the metastore keeps.
CREATE OR REPLACE VIEW cairn.v_history_by_day AS
SELECT
    job_id,
    j.name AS job_name,
    day,
    coalesce(c.begun, 0) + coalesce(h.checkpoints_subsumed + h.checkpoints_aborted, 0)
        AS checkpoints,
    coalesce(c.aborted, 0) + coalesce(h.checkpoints_aborted, 0) AS checkpoints_aborted,
    coalesce(g.commits, 0) + coalesce(h.group_commits, 0) AS group_commits,
    coalesce(g.input_rows, 0) + coalesce(h.input_rows, 0) AS input_rows,
    coalesce(g.late_rows, 0) + coalesce(h.late_rows, 0) AS late_rows,
    coalesce(g.segments, 0) + coalesce(s.segments, 0) + coalesce(h.segments, 0) AS segments,
    coalesce(g.segment_bytes, 0) + coalesce(s.size_bytes, 0) + coalesce(h.segment_bytes, 0)
        AS segment_bytes,
    coalesce(g.uploads, 0) + coalesce(h.uploads, 0) AS uploads,
    coalesce(g.requests, 0) + coalesce(h.upload_requests, 0) AS upload_requests,
    coalesce(g.retries, 0) + coalesce(h.upload_retries, 0) AS upload_retries,
    coalesce(g.hedges, 0) + coalesce(h.upload_hedges, 0) AS upload_hedges,
    coalesce(g.failed_uploads, 0) + coalesce(h.failed_uploads, 0) AS failed_uploads,
    coalesce(g.uploaded_bytes, 0) + coalesce(h.uploaded_bytes, 0) AS uploaded_bytes,
    coalesce(g.upload_ms, 0) + coalesce(h.upload_ms, 0) AS upload_ms,
    coalesce(f.files, 0) + coalesce(h.files, 0) AS files,
    coalesce(f.sealed, 0) + coalesce(h.files_sealed, 0) AS files_sealed,
    coalesce(f.deleted, 0) + coalesce(h.files, 0) AS files_deleted,
    coalesce(f.size_bytes, 0) + coalesce(h.file_bytes, 0) AS file_bytes,
    coalesce(m.materializations, 0) + coalesce(h.materializations, 0) AS materializations,
    coalesce(m.size_bytes, 0) + coalesce(h.materialized_bytes, 0) AS materialized_bytes,
    coalesce(h.checkpoints_subsumed + h.checkpoints_aborted, 0) AS trimmed_checkpoints,
    coalesce(h.files, 0) AS trimmed_files
FROM (
    SELECT
        checkpoints.job_id,
        cairn.day_of(checkpoints.began_at) AS day,
        count(*) AS begun,
        count(*) FILTER (WHERE checkpoints.status = 'ABORTED') AS aborted
    FROM cairn.checkpoints
    GROUP BY 1, 2
) AS c
FULL JOIN (
    SELECT
        o.job_id,
        cairn.day_of(o.acked_at) AS day,
        count(*) AS commits,
        CAST(sum(read.input_rows) AS bigint) AS input_rows,
        CAST(sum(read.late_rows) AS bigint) AS late_rows,
        CAST(sum(cardinality(o.segment_ids)) AS bigint) AS segments,
        CAST(sum(written.size_bytes) AS bigint) AS segment_bytes,
        count(o.uploaded_files) AS uploads,
        CAST(sum(o.requests) AS bigint) AS requests,
        CAST(sum(o.retries) AS bigint) AS retries,
        CAST(sum(o.hedges) AS bigint) AS hedges,
        CAST(sum(o.failed_uploads) AS bigint) AS failed_uploads,
        CAST(sum(o.uploaded_bytes) AS bigint) AS uploaded_bytes,
        CAST(sum(o.upload_ms) AS bigint) AS upload_ms
    FROM cairn.group_commits AS o
    CROSS JOIN LATERAL cairn.rows_of(
        o.status, o.subtasks, o.input_rows, o.late_rows, o.replaced_subtasks
    ) AS read
    CROSS JOIN LATERAL (
        SELECT sum(one.size_bytes) AS size_bytes FROM unnest(o.sizes_bytes) AS one (size_bytes)
    ) AS written
    GROUP BY 1, 2
) AS g USING (job_id, day)
FULL JOIN (
    SELECT
        placed_segments.job_id,
        cairn.day_of(placed_segments.created_at) AS day,
        count(*) AS segments,
        CAST(sum(placed_segments.size_bytes) AS bigint) AS size_bytes
    FROM cairn.placed_segments
    GROUP BY 1, 2
) AS s USING (job_id, day)
FULL JOIN (
    SELECT
        physical_files.job_id,
        cairn.day_of(physical_files.created_at) AS day,
        count(*) AS files,
        count(physical_files.sealed_at) AS sealed,
        count(*) FILTER (WHERE physical_files.status = 'DELETED') AS deleted,
        CAST(sum(physical_files.size_bytes) AS bigint) AS size_bytes
    FROM cairn.physical_files
    GROUP BY 1, 2
) AS f USING (job_id, day)
FULL JOIN (
    SELECT
        materializations.job_id,
        cairn.day_of(materializations.started_at) AS day,
        count(*) AS materializations,
        CAST(sum(materializations.size_bytes) AS bigint) AS size_bytes
    FROM cairn.materializations
    GROUP BY 1, 2
) AS m USING (job_id, day)
FULL JOIN cairn.history_days AS h USING (job_id, day)
JOIN cairn.jobs AS j USING (job_id);

COMMENT ON VIEW cairn.v_history_by_day IS
    'One row per job and day (UTC): what was made on that day, also where only sums of it are left.';
