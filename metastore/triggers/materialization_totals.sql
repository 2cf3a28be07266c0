-- Totals of materializations by subtask: what a scrape reads must not grow with the age of a run, nor
-- change when old rows are trimmed.
CREATE OR REPLACE FUNCTION cairn.total_materializations() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_new boolean := TG_OP = 'INSERT';
    -- A row that says so already is written again after an answer that was lost.
    is_over boolean := NEW.finished_at IS NOT NULL AND (is_new OR OLD.finished_at IS NULL);
    is_done boolean := is_over AND NEW.error IS NULL;
BEGIN
    IF NOT is_new AND NOT is_over THEN
        RETURN NULL;
    END IF;
    INSERT INTO cairn.materialization_totals AS t (
        job_id, subtask, started, completed, failed, epoch, run_started, run_completed, run_failed,
        run_bytes, last_duration_ms, last_full_bytes, last_increment_bytes, last_completed_at,
        last_error
    )
    SELECT
        NEW.job_id, NEW.subtask, n.started, n.completed, n.failed, NEW.epoch, n.started,
        n.completed, n.failed, CASE WHEN is_over THEN NEW.size_bytes ELSE 0 END,
        CASE WHEN is_done THEN
            round(extract(EPOCH FROM NEW.finished_at - NEW.started_at) * 1000)
        END,
        CASE WHEN is_done AND NEW.kind = 'keyed_full' THEN NEW.size_bytes END,
        CASE WHEN is_done AND NEW.kind = 'keyed_increment' THEN NEW.size_bytes END,
        CASE WHEN is_done THEN NEW.finished_at END,
        NEW.error
    FROM (
        SELECT
            CAST(is_new AS integer) AS started,
            CAST(is_done AS integer) AS completed,
            CAST(is_over AND NOT is_done AS integer) AS failed
    ) AS n
    ON CONFLICT (job_id, subtask) DO UPDATE SET
        started = t.started + excluded.started,
        completed = t.completed + excluded.completed,
        failed = t.failed + excluded.failed,
        epoch = greatest(t.epoch, excluded.epoch),
        -- Of an older run nothing is added, and with a newer one they start again.
        run_started = CASE WHEN excluded.epoch > t.epoch THEN 0 ELSE t.run_started END
            + CASE WHEN excluded.epoch < t.epoch THEN 0 ELSE excluded.run_started END,
        run_completed = CASE WHEN excluded.epoch > t.epoch THEN 0 ELSE t.run_completed END
            + CASE WHEN excluded.epoch < t.epoch THEN 0 ELSE excluded.run_completed END,
        run_failed = CASE WHEN excluded.epoch > t.epoch THEN 0 ELSE t.run_failed END
            + CASE WHEN excluded.epoch < t.epoch THEN 0 ELSE excluded.run_failed END,
        run_bytes = CASE WHEN excluded.epoch > t.epoch THEN 0 ELSE t.run_bytes END
            + CASE WHEN excluded.epoch < t.epoch THEN 0 ELSE excluded.run_bytes END,
        last_duration_ms = coalesce(excluded.last_duration_ms, t.last_duration_ms),
        last_full_bytes = coalesce(excluded.last_full_bytes, t.last_full_bytes),
        last_increment_bytes = coalesce(excluded.last_increment_bytes, t.last_increment_bytes),
        last_completed_at = coalesce(excluded.last_completed_at, t.last_completed_at),
        last_error = coalesce(excluded.last_error, t.last_error);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER total_materializations AFTER INSERT OR UPDATE ON cairn.materializations
FOR EACH ROW EXECUTE FUNCTION cairn.total_materializations();
