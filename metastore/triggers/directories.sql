-- Directories: one with a file that is not deleted stays. All that are deleted at once are looked at
-- together: the files of a job are read once.
CREATE OR REPLACE FUNCTION cairn.refuse_removal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    with_files text[];
    kept record;
BEGIN
    -- Most updates are claims, and read no file.
    IF NOT EXISTS (SELECT FROM new_rows WHERE status = 'DELETED') THEN
        RETURN NULL;
    END IF;
    with_files := ARRAY(
        SELECT DISTINCT cairn.directory_of(path) FROM cairn.physical_files
        WHERE job_id IN (SELECT job_id FROM new_rows) AND status <> 'DELETED'
    );
    SELECT
        to_jsonb(after) AS directory,
        (
            SELECT file.path FROM cairn.physical_files AS file
            WHERE file.job_id = after.job_id
              AND file.status <> 'DELETED'
              AND cairn.directory_of(file.path) = after.path
            LIMIT 1
        ) AS file
    INTO kept
    FROM new_rows AS after JOIN old_rows AS before USING (job_id, path)
    WHERE before.status <> 'DELETED'
      AND after.status = 'DELETED'
      AND path = ANY (with_files)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
            'directories: one with a file cannot be deleted ['
            || cairn.about(kept.directory) || ', ' || kept.file || ']';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_removal AFTER UPDATE ON cairn.directories
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.refuse_removal();
