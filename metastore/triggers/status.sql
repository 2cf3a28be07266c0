-- Status: a row starts in the first one and changes only as drawn in metastore/enums.py.
CREATE OR REPLACE FUNCTION cairn.refuse_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA001', MESSAGE =
        TG_TABLE_NAME || ': status '
        || CASE WHEN TG_OP = 'INSERT' THEN 'of a new row cannot be ' || NEW.status
           ELSE 'cannot change from ' || OLD.status || ' to ' || NEW.status END
        || ' [' || cairn.about(to_jsonb(NEW)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard_new_status BEFORE INSERT ON cairn.checkpoints FOR EACH ROW
WHEN (NEW.status <> 'IN_PROGRESS')
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('IN_PROGRESS', 'COMPLETED'),
        ('IN_PROGRESS', 'ABORTED'),
        ('COMPLETED', 'CONFIRMED'),
        ('COMPLETED', 'ABORTED'),
        ('CONFIRMED', 'SUBSUMED')
    )
)
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_new_status BEFORE INSERT ON cairn.placed_segments FOR EACH ROW
WHEN (NEW.status <> 'LIVE')
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.placed_segments FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('LIVE', 'DEAD')
    )
)
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.group_commits FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('LIVE', 'DEAD'),
        ('LIVE', 'ABORTED')
    )
)
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_new_status BEFORE INSERT ON cairn.directories FOR EACH ROW
WHEN (NEW.status <> 'CLAIMED')
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.directories FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('CLAIMED', 'UNCLAIMED'),
        ('UNCLAIMED', 'DELETED'),
        ('UNCLAIMED', 'CLAIMED'),
        ('DELETED', 'CLAIMED')
    )
)
EXECUTE FUNCTION cairn.refuse_status();

-- A plan is stored as REFUSED where a circuit breaker spoke.
CREATE OR REPLACE TRIGGER guard_new_status BEFORE INSERT ON cairn.maintenance_runs FOR EACH ROW
WHEN (NEW.status NOT IN ('PLANNED', 'REFUSED'))
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.maintenance_runs FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('PLANNED', 'RUNNING'),
        ('PLANNED', 'APPLIED'),
        ('PLANNED', 'FAILED'),
        ('PLANNED', 'REFUSED'),
        ('RUNNING', 'APPLIED'),
        ('RUNNING', 'FAILED'),
        ('RUNNING', 'REFUSED'),
        ('REFUSED', 'PLANNED'),
        ('REFUSED', 'FAILED')
    )
)
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_new_status BEFORE INSERT ON cairn.run_requests FOR EACH ROW
WHEN (NEW.status <> 'OPEN')
EXECUTE FUNCTION cairn.refuse_status();

CREATE OR REPLACE TRIGGER guard_status BEFORE UPDATE ON cairn.run_requests FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (
        ('OPEN', 'TAKEN'),
        ('OPEN', 'WITHDRAWN'),
        ('TAKEN', 'DONE'),
        ('TAKEN', 'FAILED'),
        ('TAKEN', 'WITHDRAWN')
    )
)
EXECUTE FUNCTION cairn.refuse_status();
