-- Leases: one process has that of a maintenance run at a time, and one that has lost it never has it
-- again, whoever asks. By the clock, as functions/leases.sql.
CREATE OR REPLACE FUNCTION cairn.guard_lease() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text;
BEGIN
    IF NEW.former_holders <> OLD.former_holders THEN
        said := 'former_holders follow the holder and cannot be set';
    ELSIF NEW.holder IS NOT DISTINCT FROM OLD.holder THEN
        IF NEW.leased_until > OLD.leased_until AND OLD.leased_until <= clock_timestamp() THEN
            said := 'a lease that has ended is not renewed';
        END IF;
    ELSIF OLD.status = 'RUNNING' AND OLD.leased_until > clock_timestamp() THEN
        said := 'another process holds the lease';
    ELSIF NEW.holder IS NULL OR NEW.holder = ANY (OLD.former_holders) THEN
        said := 'a process that has lost the lease does not get it again';
    ELSIF OLD.holder IS NOT NULL THEN
        NEW.former_holders := OLD.former_holders || OLD.holder;
    END IF;
    IF said IS NOT NULL THEN
        PERFORM cairn.refuse_fenced(
            'maintenance_runs: ' || said || ' [' || cairn.about(to_jsonb(OLD)) || ']', '{}'
        );
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_lease BEFORE UPDATE ON cairn.maintenance_runs FOR EACH ROW
WHEN (
    (OLD.holder, OLD.leased_until, OLD.former_holders)
    IS DISTINCT FROM
    (NEW.holder, NEW.leased_until, NEW.former_holders)
)
EXECUTE FUNCTION cairn.guard_lease();

-- What a circuit breaker found and who has passed it are told by these columns alone.
CREATE OR REPLACE TRIGGER guard_passed BEFORE UPDATE ON cairn.maintenance_runs FOR EACH ROW
WHEN (
    OLD.passed_by IS NOT NULL
    AND NEW.status <> 'REFUSED'
    AND (OLD.passed_by, OLD.passed_at, OLD.breakers)
        IS DISTINCT FROM (NEW.passed_by, NEW.passed_at, NEW.breakers)
)
EXECUTE FUNCTION cairn.refuse_identity('breakers, passed_by and passed_at, once passed,');
