-- Totals of uploads by run and executor: what a scrape reads must not grow with the age of a run.
CREATE OR REPLACE FUNCTION cairn.total_uploads() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO cairn.upload_totals AS total (
        job_id, epoch, tm_id, commits, requests, failed_uploads, size_bytes, upload_ms,
        winning_attempt, segments, pool_wait_ms
    )
    SELECT
        NEW.job_id, epoch, NEW.tm_id, 1, NEW.requests, NEW.failed_uploads, NEW.uploaded_bytes,
        NEW.upload_ms, NEW.winning_attempt, NEW.uploaded_segments, NEW.pool_wait_ms
    FROM cairn.checkpoints
    WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id)
    ON CONFLICT (job_id, epoch, tm_id) DO UPDATE SET
        commits = total.commits + 1,
        requests = total.requests + excluded.requests,
        failed_uploads = total.failed_uploads + excluded.failed_uploads,
        size_bytes = total.size_bytes + excluded.size_bytes,
        upload_ms = total.upload_ms + excluded.upload_ms,
        winning_attempt = total.winning_attempt + excluded.winning_attempt,
        segments = total.segments + excluded.segments,
        pool_wait_ms = total.pool_wait_ms + excluded.pool_wait_ms;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER total_uploads AFTER INSERT ON cairn.group_commits FOR EACH ROW
WHEN (NEW.uploaded_files IS NOT NULL)
EXECUTE FUNCTION cairn.total_uploads();
