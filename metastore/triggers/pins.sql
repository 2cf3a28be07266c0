-- Pins: only of confirmed checkpoints, which stay while they are pinned.
-- A checkpoint is locked by whoever pins it and by whoever subsumes it, so one of the two waits for
-- the other and then sees its change, whether or not both hold the lock of the job.
CREATE OR REPLACE FUNCTION cairn.refuse_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found text;
BEGIN
    SELECT status INTO found FROM cairn.checkpoints
    WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) FOR SHARE;
    IF cairn.is_dropped(NEW.job_id) THEN
        found := 'of a dropped job';
    END IF;
    IF found IS DISTINCT FROM 'CONFIRMED' THEN
        RAISE EXCEPTION USING ERRCODE = 'CA005', MESSAGE =
            'pins: only a CONFIRMED checkpoint can be pinned [' || cairn.about(to_jsonb(NEW))
            || ', ' || coalesce(found, 'no such checkpoint') || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_confirmed BEFORE INSERT ON cairn.pins FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_pin();

-- The newest stay, pinned or not: as many as the job retains, by its newest run's option.
CREATE OR REPLACE FUNCTION cairn.refuse_subsumed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    retained bigint;
BEGIN
    IF EXISTS (
        SELECT FROM cairn.pins
        WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) AND removed_at IS NULL
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA005', MESSAGE =
            'checkpoints: a pinned checkpoint cannot be subsumed ['
            || cairn.about(to_jsonb(NEW)) || ']';
    END IF;
    SELECT num_retained INTO retained FROM cairn.jobs WHERE job_id = NEW.job_id;
    IF (
        SELECT count(*) FROM (
            SELECT FROM cairn.checkpoints
            WHERE job_id = NEW.job_id
              AND checkpoint_id > NEW.checkpoint_id
              AND status = 'CONFIRMED'
            LIMIT retained
        ) AS newer
    ) < retained THEN
        RAISE EXCEPTION USING ERRCODE = 'CA005', MESSAGE =
            'checkpoints: the newest ' || retained || ' that are confirmed cannot be subsumed ['
            || cairn.about(to_jsonb(NEW)) || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_subsumed BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (OLD.status <> 'SUBSUMED' AND NEW.status = 'SUBSUMED')
EXECUTE FUNCTION cairn.refuse_subsumed();
