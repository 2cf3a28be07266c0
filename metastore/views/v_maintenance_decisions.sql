-- Grain: one row per decision of a maintenance run: an object that it did not treat as planned, a
--   circuit breaker that spoke or was passed, or the rest of a reason (path is empty, and objects
--   their number).
-- Columns: maintenance_run_id, job_id, job_name, action, decision, reason (in words), path (key below
--   the job's storage), objects, decided_at. Deleted objects are rows of v_files.
-- Read by: people who ask why an object is still there, or who let one go.
CREATE OR REPLACE VIEW cairn.v_maintenance_decisions AS
SELECT
    d.maintenance_run_id,
    d.job_id,
    j.name AS job_name,
    m.action,
    d.decision,
    d.reason,
    d.path,
    d.objects,
    d.decided_at
FROM cairn.maintenance_decisions AS d
JOIN cairn.maintenance_runs AS m ON m.maintenance_run_id = d.maintenance_run_id
JOIN cairn.jobs AS j ON j.job_id = d.job_id;

COMMENT ON VIEW cairn.v_maintenance_decisions IS
    'One row per decision of a maintenance run about an object, or about the run itself.';
