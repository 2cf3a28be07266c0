-- Who may write to a job: the newest run that has begun a batch, under the job's lock.

-- Refuses what a run may no longer do; the client raises its error of a fenced run.
CREATE OR REPLACE FUNCTION cairn.refuse_fenced(message text, about jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA008', MESSAGE = message, DETAIL = CAST(about AS text);
END $$;

-- Locks a job until the transaction ends and returns it. An advisory lock: to share that of the row
-- writes to it, and lets later sharers pass who waits.
CREATE OR REPLACE FUNCTION cairn.lock_job(job text, is_exclusive boolean) RETURNS cairn.jobs
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found cairn.jobs;
BEGIN
    IF is_exclusive THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(job, 0));
    ELSE
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(job, 0));
    END IF;
    -- A statement of its own, whose snapshot is taken when the lock is held.
    SELECT * INTO found FROM cairn.jobs WHERE job_id = job;
    IF found.job_id IS NULL THEN
        PERFORM cairn.refuse_fenced(
            'the metastore has no job with the id ' || job || ' any more: it was dropped', '{}'
        );
    END IF;
    RETURN found;
END $$;

-- Locks a job for a run that may write, and returns it. That is the newest run that has begun a
-- batch; with `may_begin` a newer one, too, which has not begun yet. A higher epoch alone is no
-- proof of being newer, nor the same epoch of being the same run: a metastore that was lost, and of
-- which this is a backup or a replica, may have given it. So the row of the epoch has to be the
-- run's own.
CREATE OR REPLACE FUNCTION cairn.require_epoch(
    job text, run_epoch bigint, of_run uuid, is_exclusive boolean, may_begin boolean
) RETURNS cairn.jobs
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    of_job cairn.jobs := cairn.lock_job(job, is_exclusive);
    seen timestamptz;
    ended timestamptz;
BEGIN
    IF of_job.dropped_at IS NOT NULL THEN
        PERFORM cairn.refuse_fenced(
            'the job was dropped at ' || to_char(of_job.dropped_at AT TIME ZONE 'UTC',
                'YYYY-MM-DD HH24:MI') || ' UTC, and its state is being deleted. Start the query '
            'again with a new checkpointLocation: it is a new job then',
            jsonb_build_object('job', of_job.former_name)
        );
    END IF;
    IF of_job.current_epoch <> run_epoch AND NOT (may_begin AND of_job.current_epoch < run_epoch) THEN
        PERFORM cairn.refuse_fenced(
            'run ' || run_epoch || ' was replaced by run ' || of_job.current_epoch,
            jsonb_build_object('job', of_job.name)
        );
    END IF;
    SELECT r.seen_at, r.ended_at INTO seen, ended FROM cairn.runs AS r
    WHERE r.job_id = job AND r.epoch = run_epoch AND r.run_id = of_run;
    IF NOT FOUND THEN
        PERFORM cairn.refuse_fenced(
            'the metastore knows another run, or none, under the epoch of run ' || run_epoch
            || ': it was restored from a backup, or is a replica that lacked the run. Start the '
            'query again',
            jsonb_build_object('job', of_job.name)
        );
    END IF;
    -- Seldom, as it writes.
    IF seen < now() - INTERVAL '15 minutes' OR ended IS NOT NULL THEN
        PERFORM cairn.see_run(job, run_epoch);
    END IF;
    RETURN of_job;
END $$;
