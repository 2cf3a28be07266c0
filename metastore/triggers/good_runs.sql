-- When each action of the maintenance was last done for a job. Those with nothing to do leave no plan:
-- the maintenance notes them itself.
CREATE OR REPLACE FUNCTION cairn.note_good_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Of a job that was dropped the rows are being deleted.
    INSERT INTO cairn.good_runs AS g (job_id, action)
    SELECT NEW.job_id, NEW.action WHERE NOT cairn.is_dropped(NEW.job_id)
    ON CONFLICT (job_id, action) DO UPDATE
    SET finished_at = greatest(g.finished_at, excluded.finished_at);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER note_good_run AFTER UPDATE ON cairn.maintenance_runs FOR EACH ROW
WHEN (NEW.status = 'APPLIED' AND OLD.status <> 'APPLIED')
EXECUTE FUNCTION cairn.note_good_run();
