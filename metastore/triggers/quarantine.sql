-- Quarantine: only what nothing keeps enters it, and only what nothing keeps is deleted, not before
-- its time. Asked again here, whoever writes the row.
CREATE OR REPLACE FUNCTION cairn.guard_quarantine() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text;
    code text := 'CA003';
BEGIN
    IF TG_OP = 'UPDATE' AND (
        OLD.quarantine_id, OLD.job_id, OLD.path, OLD.upload_id, OLD.reason, OLD.size_bytes,
        OLD.version, OLD.modified_at, OLD.maintenance_run_id, OLD.quarantined_at,
        OLD.quarantined_until
    ) IS DISTINCT FROM (
        NEW.quarantine_id, NEW.job_id, NEW.path, NEW.upload_id, NEW.reason, NEW.size_bytes,
        NEW.version, NEW.modified_at, NEW.maintenance_run_id, NEW.quarantined_at,
        NEW.quarantined_until
    ) THEN
        code := 'CA002';
        said := 'which object it is, why it is there and until when never change';
    ELSIF TG_OP = 'INSERT' AND NEW.status <> 'QUARANTINED' THEN
        code := 'CA001';
        said := 'status of a new row cannot be ' || NEW.status;
    ELSIF TG_OP = 'UPDATE' AND OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('QUARANTINED', 'CONDEMNED'),
        ('QUARANTINED', 'RESTORED'),
        ('QUARANTINED', 'RELEASED'),
        ('CONDEMNED', 'DELETED'),
        ('CONDEMNED', 'RELEASED'),
        ('RESTORED', 'RELEASED')
    ) THEN
        code := 'CA001';
        said := 'status cannot change from ' || OLD.status || ' to ' || NEW.status;
    ELSIF TG_OP = 'INSERT' OR (OLD.status <> 'CONDEMNED' AND NEW.status = 'CONDEMNED') THEN
        said := cairn.keeper_of(NEW.job_id, NEW.path, NEW.upload_id <> '');
        IF said IS NOT NULL THEN
            said := 'no orphan: ' || said;
        ELSIF TG_OP = 'UPDATE' AND now() < NEW.quarantined_until THEN
            said := 'it cannot be condemned before ' || to_char(
                NEW.quarantined_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC';
        END IF;
    END IF;
    IF said IS NULL THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE =
        'quarantined_objects: ' || said || ' [' || cairn.about(to_jsonb(NEW)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE ON cairn.quarantined_objects FOR EACH ROW
EXECUTE FUNCTION cairn.guard_quarantine();
