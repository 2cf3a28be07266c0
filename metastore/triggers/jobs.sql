-- Jobs: nobody renames or drops one under a run that is alive, and what was dropped stays so.
CREATE OR REPLACE FUNCTION cairn.guard_job() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text;
    code text := 'CA010';
BEGIN
    IF OLD.dropped_at IS NOT NULL THEN
        code := 'CA002';
        said := 'name, former_name and dropped_at of a dropped job never change';
    ELSIF EXISTS (
        SELECT FROM cairn.runs AS r
        WHERE r.job_id = OLD.job_id
          AND r.epoch >= OLD.current_epoch
          AND NOT cairn.is_over(r.ended_at, r.seen_at)
    ) THEN
        said := 'one with a run that is not over can neither be renamed nor dropped';
    ELSIF NEW.dropped_at IS NOT NULL AND NEW.current_epoch <= (
        SELECT coalesce(max(r.epoch), 0) FROM cairn.runs AS r WHERE r.job_id = OLD.job_id
    ) THEN
        said := 'current_epoch of a dropped job is above all of its runs, which it fences';
    ELSIF NEW.dropped_at IS NOT NULL AND EXISTS (
        SELECT FROM cairn.pins AS p WHERE p.job_id = OLD.job_id AND p.removed_at IS NULL
    ) THEN
        code := 'CA005';
        said := 'one with a pinned checkpoint cannot be dropped';
    ELSE
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE =
        'jobs: ' || said || ' [' || cairn.about(to_jsonb(OLD)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard_living BEFORE UPDATE ON cairn.jobs FOR EACH ROW
WHEN (
    (OLD.name, OLD.former_name, OLD.dropped_at)
    IS DISTINCT FROM
    (NEW.name, NEW.former_name, NEW.dropped_at)
)
EXECUTE FUNCTION cairn.guard_job();

-- The maintenance fences the runs of a job that it drops, and of no other.
CREATE OR REPLACE TRIGGER guard_fence BEFORE UPDATE ON cairn.jobs FOR EACH ROW
WHEN (
    OLD.current_epoch <> NEW.current_epoch
    AND NEW.dropped_at IS NULL
    AND NOT has_column_privilege(CAST('cairn.jobs' AS regclass), 'next_checkpoint_id', 'UPDATE')
)
EXECUTE FUNCTION cairn.refuse_identity('current_epoch (but of a job that is dropped)');

-- A dropped job is called by its id, so no other one may have that name. Whoever has it, seen or not.
CREATE OR REPLACE FUNCTION cairn.refuse_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.jobs AS j
        WHERE j.job_id = NEW.name AND j.job_id <> NEW.job_id AND j.dropped_at IS NULL
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA010', MESSAGE =
            'jobs: ' || quote_literal(NEW.name) || ' is the id of another job, which is called so '
            'once it is dropped. Choose another name';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_name BEFORE INSERT OR UPDATE OF name ON cairn.jobs FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_name();
