-- Files: one with a live segment is never condemned, and a condemned one never gets a segment. One
-- trigger for all rules: each with a condition of its own costs more than the change of the row.
CREATE OR REPLACE FUNCTION cairn.guard_file() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text;
    code text := 'CA003';
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'WRITING' THEN
            code := 'CA001';
            said := 'status of a new row cannot be ' || NEW.status;
        ELSIF NEW.live_segments <> 0 OR NEW.live_bytes <> 0 OR NEW.dead_bytes <> 0 THEN
            said := 'live counters follow the segments and start at 0';
        -- Another job's rows could not be deleted any more, and its file would look like one that lost.
        ELSIF NEW.retry_of IS NOT NULL AND NOT EXISTS (
            SELECT FROM cairn.physical_files AS first
            WHERE first.file_id = NEW.retry_of AND first.job_id = NEW.job_id
        ) THEN
            said := 'a retry is of a file of its own job';
        ELSE
            RETURN NEW;
        END IF;
    ELSIF OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('WRITING', 'SEALED'),
        ('WRITING', 'CONDEMNED'),
        ('SEALED', 'CONDEMNED'),
        ('CONDEMNED', 'DELETED')
    ) THEN
        code := 'CA001';
        said := 'status cannot change from ' || OLD.status || ' to ' || NEW.status;
    ELSIF (
        OLD.file_id, OLD.job_id, OLD.epoch, OLD.path, OLD.scope, OLD.batch_id, OLD.retry_of,
        OLD.materialization_id, OLD.maintenance_run_id
    ) IS DISTINCT FROM (
        NEW.file_id, NEW.job_id, NEW.epoch, NEW.path, NEW.scope, NEW.batch_id, NEW.retry_of,
        NEW.materialization_id, NEW.maintenance_run_id
    )
    THEN
        code := 'CA002';
        said := 'file_id, job_id, epoch, path, scope, batch_id, retry_of, materialization_id, '
            'maintenance_run_id of a row never change';
    -- A sealed file is whole up to its size, and may be continued: its size grows, and nothing else.
    ELSIF OLD.size_bytes IS NOT NULL AND NEW.size_bytes IS DISTINCT FROM OLD.size_bytes
        AND NOT coalesce(
            OLD.status = 'SEALED' AND NEW.status = 'SEALED' AND NEW.size_bytes > OLD.size_bytes,
            FALSE
        )
    THEN
        code := 'CA002';
        said := 'size_bytes (but for sealed files that grow) of a row never change';
    ELSIF OLD.status <> 'CONDEMNED' AND NEW.status = 'CONDEMNED' AND NEW.live_segments > 0
        AND NOT cairn.is_dropped(NEW.job_id)
    THEN
        said := 'a file with live segments cannot be condemned';
    ELSIF NEW.live_segments > OLD.live_segments AND NEW.status IN ('CONDEMNED', 'DELETED') THEN
        said := 'no segment can be made in a condemned or deleted file';
    ELSIF NEW.status = 'SEALED' AND NEW.size_bytes IS NULL THEN
        said := 'a sealed file has a size';
    -- Triggers of segments set them, below another trigger.
    ELSIF (OLD.live_segments, OLD.live_bytes, OLD.dead_bytes)
        IS DISTINCT FROM (NEW.live_segments, NEW.live_bytes, NEW.dead_bytes)
        AND pg_trigger_depth() = 1
    THEN
        said := 'live counters follow the segments and cannot be set';
    ELSE
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE =
        'physical_files: ' || said || ' [' || cairn.about(to_jsonb(NEW)) || ', ' || NEW.status
        || ', ' || NEW.live_segments || ' live segments]';
END $$;

CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE ON cairn.physical_files FOR EACH ROW
EXECUTE FUNCTION cairn.guard_file();

-- Who maintains writes files of maintenance runs, and not a job's.
CREATE OR REPLACE FUNCTION cairn.refuse_file_of_no_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
        'physical_files: ' || current_user || ' may write files of maintenance runs only ['
        || cairn.about(to_jsonb(NEW)) || ']';
END $$;

-- In the condition, which costs the job's own transactions no call of a function in SQL.
CREATE OR REPLACE TRIGGER guard_the_jobs BEFORE INSERT ON cairn.physical_files FOR EACH ROW
WHEN (
    NEW.maintenance_run_id IS NULL
    AND NOT has_column_privilege(CAST('cairn.physical_files' AS regclass), 'created_at', 'UPDATE')
)
EXECUTE FUNCTION cairn.refuse_file_of_no_run();
