-- Sums of history: a row that is deleted is added to its job's and day's, whoever deletes it. Rows
-- of history_days are written in the order of their days, so that two transactions do not deadlock.
CREATE OR REPLACE FUNCTION cairn.sum_checkpoints() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.history_days AS h (
        job_id, day, checkpoints_subsumed, checkpoints_aborted, subtasks
    )
    SELECT
        job_id, cairn.day_of(began_at),
        count(*) FILTER (WHERE status = 'SUBSUMED'),
        count(*) FILTER (WHERE status = 'ABORTED'),
        coalesce(sum(parallelism) FILTER (WHERE status = 'SUBSUMED'), 0)
    FROM old_rows GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        checkpoints_subsumed = h.checkpoints_subsumed + excluded.checkpoints_subsumed,
        checkpoints_aborted = h.checkpoints_aborted + excluded.checkpoints_aborted,
        subtasks = h.subtasks + excluded.subtasks;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sum_trimmed AFTER DELETE ON cairn.checkpoints
REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.sum_checkpoints();

CREATE OR REPLACE FUNCTION cairn.sum_group_commits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.history_days AS h (
        job_id, day, group_commits, input_rows, late_rows, segments, segment_bytes, uploads,
        upload_requests, upload_retries, upload_hedges, failed_uploads, uploaded_bytes, upload_ms
    )
    SELECT
        c.job_id, cairn.day_of(c.acked_at), count(*),
        coalesce(sum(rows_.input_rows), 0), coalesce(sum(rows_.late_rows), 0),
        coalesce(sum(cardinality(c.segment_ids)), 0), coalesce(sum(bytes_.size_bytes), 0),
        count(c.uploaded_files), coalesce(sum(c.requests), 0), coalesce(sum(c.retries), 0),
        coalesce(sum(c.hedges), 0), coalesce(sum(c.failed_uploads), 0),
        coalesce(sum(c.uploaded_bytes), 0), coalesce(sum(c.upload_ms), 0)
    FROM old_rows AS c
    CROSS JOIN LATERAL cairn.rows_of(
        c.status, c.subtasks, c.input_rows, c.late_rows, c.replaced_subtasks
    ) AS rows_
    CROSS JOIN LATERAL (
        SELECT sum(one.size_bytes) AS size_bytes FROM unnest(c.sizes_bytes) AS one (size_bytes)
    ) AS bytes_
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        group_commits = h.group_commits + excluded.group_commits,
        input_rows = h.input_rows + excluded.input_rows,
        late_rows = h.late_rows + excluded.late_rows,
        segments = h.segments + excluded.segments,
        segment_bytes = h.segment_bytes + excluded.segment_bytes,
        uploads = h.uploads + excluded.uploads,
        upload_requests = h.upload_requests + excluded.upload_requests,
        upload_retries = h.upload_retries + excluded.upload_retries,
        upload_hedges = h.upload_hedges + excluded.upload_hedges,
        failed_uploads = h.failed_uploads + excluded.failed_uploads,
        uploaded_bytes = h.uploaded_bytes + excluded.uploaded_bytes,
        upload_ms = h.upload_ms + excluded.upload_ms;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sum_trimmed AFTER DELETE ON cairn.group_commits
REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.sum_group_commits();

CREATE OR REPLACE FUNCTION cairn.sum_placed_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.history_days AS h (job_id, day, segments, segment_bytes)
    SELECT job_id, cairn.day_of(created_at), count(*), sum(size_bytes)
    FROM old_rows GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        segments = h.segments + excluded.segments,
        segment_bytes = h.segment_bytes + excluded.segment_bytes;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sum_trimmed AFTER DELETE ON cairn.placed_segments
REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.sum_placed_segments();

CREATE OR REPLACE FUNCTION cairn.sum_files() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.history_days AS h (job_id, day, files, files_sealed, file_bytes)
    SELECT
        job_id, cairn.day_of(created_at), count(*), count(sealed_at), coalesce(sum(size_bytes), 0)
    FROM old_rows GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        files = h.files + excluded.files,
        files_sealed = h.files_sealed + excluded.files_sealed,
        file_bytes = h.file_bytes + excluded.file_bytes;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sum_trimmed AFTER DELETE ON cairn.physical_files
REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.sum_files();

CREATE OR REPLACE FUNCTION cairn.sum_materializations() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.history_days AS h (job_id, day, materializations, materialized_bytes)
    SELECT job_id, cairn.day_of(started_at), count(*), sum(size_bytes)
    FROM old_rows GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        materializations = h.materializations + excluded.materializations,
        materialized_bytes = h.materialized_bytes + excluded.materialized_bytes;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sum_trimmed AFTER DELETE ON cairn.materializations
REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.sum_materializations();
