-- Deletions: only of condemned files; one that is done stays done.
-- The check runs after the statement, which may itself condemn the file.
CREATE OR REPLACE FUNCTION cairn.refuse_deletion() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found text := (
        SELECT status FROM cairn.physical_files
        WHERE (file_id, job_id, path) = (NEW.file_id, NEW.job_id, NEW.path)
    );
BEGIN
    IF found IS DISTINCT FROM 'CONDEMNED' THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'deletions: only a condemned file can be deleted, by its own job and path ['
            || cairn.about(to_jsonb(NEW)) || ', '
            || coalesce(found, 'no such file of that job and path') || ']';
    END IF;
    -- Another job's plan could not be trimmed any more.
    IF NOT EXISTS (
        SELECT FROM cairn.maintenance_runs
        WHERE maintenance_run_id = NEW.maintenance_run_id AND job_id = NEW.job_id
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'deletions: a deletion is of a plan of its own job [' || cairn.about(to_jsonb(NEW)) || ']';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_condemned AFTER INSERT ON cairn.deletions FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_deletion();

CREATE OR REPLACE FUNCTION cairn.refuse_undone() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA004', MESSAGE =
        'deletions: a deletion that is done stays done [' || cairn.about(to_jsonb(OLD)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard_done BEFORE UPDATE ON cairn.deletions FOR EACH ROW
WHEN (OLD.done_at IS NOT NULL AND NEW.done_at IS NULL)
EXECUTE FUNCTION cairn.refuse_undone();
