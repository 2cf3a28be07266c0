-- Directories: one with a file that is not deleted stays.
CREATE OR REPLACE FUNCTION cairn.refuse_removal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found text := (
        SELECT path FROM cairn.physical_files
        WHERE job_id = NEW.job_id AND status <> 'DELETED' AND starts_with(path, NEW.path || '/')
        LIMIT 1
    );
BEGIN
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'directories: one with a file cannot be deleted ['
            || cairn.about(to_jsonb(NEW)) || ', ' || found || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_removal BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (OLD.status <> 'DELETED' AND NEW.status = 'DELETED')
EXECUTE FUNCTION cairn.refuse_removal();
