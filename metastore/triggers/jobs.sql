-- Jobs: nobody renames or drops one under a run that is alive, and what was dropped stays so.
CREATE OR REPLACE FUNCTION cairn.guard_job() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
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
