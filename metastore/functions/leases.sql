-- Leases of maintenance runs: who applies a stored plan, by the database's clock. Not by the moment at
-- which the transaction began, which may have waited for a lock since.

-- Locks a maintenance run until the transaction ends and returns it. Under either lock nobody takes
-- its lease.
CREATE OR REPLACE FUNCTION cairn.lock_maintenance_run(run uuid, is_exclusive boolean)
RETURNS cairn.maintenance_runs
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found cairn.maintenance_runs;
BEGIN
    IF is_exclusive THEN
        SELECT * INTO found FROM cairn.maintenance_runs WHERE maintenance_run_id = run FOR UPDATE;
    ELSE
        SELECT * INTO found FROM cairn.maintenance_runs WHERE maintenance_run_id = run FOR SHARE;
    END IF;
    IF found.maintenance_run_id IS NULL THEN
        PERFORM cairn.refuse_fenced(
            'the metastore has no maintenance run ' || run || ': its row was trimmed, its job was '
            'dropped, or it is of another metastore. Make a new plan',
            '{}'
        );
    END IF;
    RETURN found;
END $$;

-- Refuses who does not hold the lease of a locked maintenance run, or has lost it.
CREATE OR REPLACE FUNCTION cairn.check_lease(run cairn.maintenance_runs, of_holder uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF run.status = 'RUNNING' AND run.holder = of_holder AND run.leased_until > clock_timestamp()
        AND NOT (run.action IN ('materialization', 'compaction') AND cairn.is_dropped(run.job_id))
    THEN
        RETURN;
    END IF;
    PERFORM cairn.refuse_fenced(
        'this process does not hold maintenance run ' || run.maintenance_run_id || ' any more: '
        || CASE
            WHEN run.status <> 'RUNNING' THEN 'it is ' || run.status
            WHEN run.holder <> of_holder THEN 'another process has taken it over'
            WHEN cairn.is_dropped(run.job_id) THEN 'its job was dropped'
            ELSE 'its lease ended at '
                || to_char(run.leased_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
        END || '. Nothing of it counts from here on; a retry is another process and begins anew',
        jsonb_build_object('job', (SELECT j.name FROM cairn.jobs AS j WHERE j.job_id = run.job_id))
    );
END $$;

-- Makes a process the holder of a maintenance run, which is RUNNING then. Again: changes nothing.
CREATE OR REPLACE FUNCTION cairn.take_lease(
    run uuid, of_holder uuid, lease_ms bigint, plan_life_ms bigint
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found cairn.maintenance_runs := cairn.lock_maintenance_run(run, TRUE);
    of_job text := (SELECT j.name FROM cairn.jobs AS j WHERE j.job_id = found.job_id);
    is_leased boolean := found.status = 'RUNNING' AND found.leased_until > clock_timestamp();
BEGIN
    IF is_leased AND found.holder = of_holder THEN
        RETURN;
    END IF;
    IF found.holder = of_holder OR of_holder = ANY (found.former_holders) THEN
        PERFORM cairn.check_lease(found, of_holder);
    ELSIF is_leased THEN
        PERFORM cairn.refuse_fenced(
            'another process applies maintenance run ' || run || '; unless it renews its lease, '
            'another one may take over after '
            || to_char(found.leased_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC',
            jsonb_build_object('job', of_job)
        );
    ELSIF found.status NOT IN ('PLANNED', 'RUNNING') THEN
        RAISE EXCEPTION USING ERRCODE = 'CA011', MESSAGE =
            'maintenance run ' || run || ' of job ' || of_job || ' is ' || found.status
            || CASE found.status
                WHEN 'REFUSED' THEN ': a circuit breaker spoke. `cairn runs` says which'
                ELSE ', so it is not applied. Make a new plan'
            END;
    ELSIF found.planned_at <= clock_timestamp() - make_interval(secs => plan_life_ms / 1000.0) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA011', MESSAGE =
            'plan ' || run || ' of job ' || of_job || ' is older than '
            || plan_life_ms / 60000 || ' min, so it is not applied. Make a new plan';
    END IF;
    UPDATE cairn.maintenance_runs AS m
    SET status = 'RUNNING',
        holder = of_holder,
        leased_until = clock_timestamp() + make_interval(secs => lease_ms / 1000.0)
    WHERE m.maintenance_run_id = run;
END $$;

-- Locks a maintenance run for a transaction that writes under its lease.
CREATE OR REPLACE FUNCTION cairn.require_lease(run uuid, of_holder uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM cairn.check_lease(cairn.lock_maintenance_run(run, FALSE), of_holder);
END $$;

-- Extends a lease from now on, or with no time at all gives it up: then another process may take over.
CREATE OR REPLACE FUNCTION cairn.renew_lease(run uuid, of_holder uuid, lease_ms bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM cairn.check_lease(cairn.lock_maintenance_run(run, TRUE), of_holder);
    UPDATE cairn.maintenance_runs AS m
    SET leased_until = clock_timestamp() + make_interval(secs => lease_ms / 1000.0)
    WHERE m.maintenance_run_id = run;
END $$;

-- Ends a maintenance run that is leased. Again by the same process: changes nothing.
CREATE OR REPLACE FUNCTION cairn.finish_maintenance_run(
    run uuid, of_holder uuid, new_status text, of_result jsonb
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found cairn.maintenance_runs := cairn.lock_maintenance_run(run, TRUE);
BEGIN
    IF found.status = new_status AND found.holder = of_holder THEN
        RETURN;
    END IF;
    PERFORM cairn.check_lease(found, of_holder);
    UPDATE cairn.maintenance_runs AS m
    SET status = new_status, result = of_result, finished_at = now()
    WHERE m.maintenance_run_id = run;
END $$;

-- Whether somebody holds the lease of a maintenance run, and so may write its files and seal them. No
-- plain expression: few files have a run, and a plan for many would read all runs.
CREATE OR REPLACE FUNCTION cairn.is_leased(run uuid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM cairn.maintenance_runs AS m
    WHERE m.maintenance_run_id = run
      AND m.status = 'RUNNING'
      AND m.leased_until > clock_timestamp();
    RETURN FOUND;
END $$;
