-- When a run is over: its driver has said so, or its lease ran out.

-- The lease is counted from the newest sign of life. An hour: a driver renews it each minute, and
-- what its tasks ask of the metastore does each quarter of an hour.
CREATE OR REPLACE FUNCTION cairn.is_over(ended_at timestamptz, seen_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN ended_at IS NOT NULL OR seen_at < now() - INTERVAL '1 hour';

-- Notes a sign of life of a run that may write, which the caller has made sure of under the job's
-- lock. If it was over, it writes again, as a stopped machine that continues: what it has claimed was
-- given up meanwhile.
CREATE OR REPLACE FUNCTION cairn.see_run(job text, run_epoch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE cairn.runs AS r SET seen_at = now()
    WHERE r.job_id = job
      AND r.epoch = run_epoch
      AND r.seen_at < now() - INTERVAL '15 minutes';
    UPDATE cairn.directories AS d
    SET status = 'CLAIMED', claimed_at = now(), unclaimed_at = NULL, deleted_at = NULL
    WHERE d.job_id = job
      AND d.epoch = run_epoch
      AND d.status <> 'CLAIMED'
      AND d.scope <> 'maintenance';
END $$;
