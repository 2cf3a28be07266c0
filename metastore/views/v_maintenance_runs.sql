-- Grain: one row per stored plan of a maintenance action.
-- Columns: maintenance_run_id, job_id, job_name, action, status, state (the status, or in lower case
--   its outcome: 'expired' of a plan that is too old to be applied, 'lost' of one whose
--   lease has ended), planned_files, planned_bytes (of what it deletes), planned_at, leased_until,
--   finished_at, result (what it has changed), breakers (circuit breakers that spoke, in words; null:
--   none), passed_by, passed_at, skipped_objects (which stayed although they were in the plan).
-- Read by: `cairn runs`, and by people who ask what the maintenance did.
CREATE OR REPLACE VIEW cairn.v_maintenance_runs AS
SELECT
    m.maintenance_run_id,
    m.job_id,
    j.name AS job_name,
    m.action,
    m.status,
    CASE
        WHEN m.status = 'RUNNING' AND m.leased_until <= now() THEN 'lost'
        WHEN m.status IN ('PLANNED', 'REFUSED') AND m.planned_at <= now() - INTERVAL '60 minutes'
            THEN 'expired'
        ELSE m.status
    END AS state,
    m.planned_files,
    m.planned_bytes,
    m.planned_at,
    m.leased_until,
    m.finished_at,
    m.result,
    (
        SELECT string_agg(
            (one ->> 'breaker') || ': ' || (one ->> 'found') || ' (' || (one ->> 'limit') || ')', '; '
        )
        FROM jsonb_array_elements(m.breakers) AS one
    ) AS breakers,
    m.passed_by,
    m.passed_at,
    (
        SELECT CAST(coalesce(sum(d.objects), 0) AS bigint)
        FROM cairn.maintenance_decisions AS d
        WHERE d.maintenance_run_id = m.maintenance_run_id AND d.decision = 'SKIPPED'
    ) AS skipped_objects
FROM cairn.maintenance_runs AS m
JOIN cairn.jobs AS j ON j.job_id = m.job_id;

COMMENT ON VIEW cairn.v_maintenance_runs IS
    'One row per stored plan of a maintenance action: its outcome, and who has passed its '
    'circuit breakers.';
