-- History: rows can be deleted that nothing needs any more, and none of the last hour, in which a
-- request, a plan or an attempt that was held up may still ask for them. Of a job that was dropped,
-- whose files are deleted, nobody may ask any more.
CREATE OR REPLACE FUNCTION cairn.refuse_trim() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (
        TG_TABLE_NAME IN (
            'checkpoints', 'good_runs', 'history_days', 'maintenance_decisions', 'maintenance_runs',
            'materialization_totals', 'ownerships', 'quarantined_objects', 'run_requests', 'runs',
            'state_variables'
        )
        OR (TG_TABLE_NAME = 'physical_files' AND to_jsonb(OLD) ->> 'status' = 'DELETED')
    ) AND cairn.is_dropped(OLD.job_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
        TG_TABLE_NAME || ': ' || TG_ARGV[0] || ' [' || cairn.about(to_jsonb(OLD)) || ']';
END $$;

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.jobs FOR EACH ROW
WHEN (OLD.dropped_at IS NULL)
EXECUTE FUNCTION cairn.refuse_trim('only one that was dropped can be deleted');

-- Epochs fence, and the ids of runs tell the lineage of local state.
CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.runs FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('a run is deleted with its job only');

-- Binary keys have their ids.
CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.state_variables FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('a state variable is deleted with its job only');

-- They tell a storage that is not mounted from one that is empty.
CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.ownerships FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('an ownership is deleted with its job only');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.history_days FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('sums of trimmed rows are deleted with their job only');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.good_runs FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('when an action was last done is deleted with its job only');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.materialization_totals FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('sums of materializations are deleted with their job only');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.run_requests FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_trim('a request is deleted with its job only');


CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.checkpoints FOR EACH ROW
WHEN ((
    OLD.status IN ('SUBSUMED', 'ABORTED') AND OLD.ended_at <= now() - INTERVAL '1 hour'
) IS NOT TRUE)
EXECUTE FUNCTION cairn.refuse_trim('only one that ended more than an hour ago can be deleted');

-- The newest tell Spark's place, the times of a batch that runs again, and that a job has begun.
CREATE OR REPLACE FUNCTION cairn.refuse_newest() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (
        SELECT max(checkpoint_id) FROM cairn.checkpoints
        WHERE job_id = OLD.job_id AND status = 'CONFIRMED'
    ) > OLD.checkpoint_id IS NOT TRUE AND NOT cairn.is_dropped(OLD.job_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
            'checkpoints: only one that is older than a CONFIRMED one can be deleted ['
            || cairn.about(to_jsonb(OLD)) || ']';
    END IF;
    RETURN OLD;
END $$;

CREATE OR REPLACE TRIGGER guard_newest BEFORE DELETE ON cairn.checkpoints FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_newest();

CREATE OR REPLACE FUNCTION cairn.refuse_needed_commit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.physical_files WHERE file_id = OLD.file_id AND status <> 'DELETED'
    ) OR ((
        OLD.status = 'LIVE' OR EXISTS (
            SELECT FROM cairn.checkpoints
            WHERE job_id = OLD.job_id
              AND checkpoint_id = OLD.checkpoint_id
              AND status NOT IN ('SUBSUMED', 'ABORTED')
        )
    ) AND NOT cairn.is_dropped(OLD.job_id)) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
            'group_commits: only one of a checkpoint that has ended, which is not LIVE and whose '
            'file is DELETED, can be deleted [' || cairn.about(to_jsonb(OLD)) || ']';
    END IF;
    RETURN OLD;
END $$;

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.group_commits FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_needed_commit();

CREATE OR REPLACE FUNCTION cairn.refuse_needed_segment() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.physical_files WHERE file_id = OLD.file_id AND status <> 'DELETED'
    ) OR (OLD.status = 'LIVE' AND NOT cairn.is_dropped(OLD.job_id)) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
            'placed_segments: only a DEAD one whose file is DELETED can be deleted ['
            || cairn.about(to_jsonb(OLD)) || ']';
    END IF;
    RETURN OLD;
END $$;

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.placed_segments FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_needed_segment();

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.physical_files FOR EACH ROW
WHEN ((
    OLD.status = 'DELETED' AND OLD.deleted_at <= now() - INTERVAL '1 hour'
) IS NOT TRUE)
EXECUTE FUNCTION cairn.refuse_trim('only one that was DELETED more than an hour ago can be deleted');

-- Of the requests of one upload, the one that counts decides about the others. And a manifest's
-- path is not a random one: while its checkpoint may get a manifest, its row says that it was used.
CREATE OR REPLACE FUNCTION cairn.refuse_needed_file() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.physical_files AS other
        WHERE other.status <> 'DELETED'
          AND cairn.is_same_upload(OLD.file_id, OLD.retry_of, other.file_id, other.retry_of)
    ) OR (right(OLD.path, 10) = '/_metadata' AND EXISTS (
        SELECT FROM cairn.checkpoints
        WHERE job_id = OLD.job_id
          AND status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
          AND OLD.path = job_id || '/chk-' || checkpoint_id || '/_metadata'
    ) AND NOT cairn.is_dropped(OLD.job_id)) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
            'physical_files: one whose upload has a file that is not DELETED, or the manifest of a '
            'checkpoint that is retained, cannot be deleted [' || cairn.about(to_jsonb(OLD)) || ']';
    END IF;
    RETURN OLD;
END $$;

CREATE OR REPLACE TRIGGER guard_upload BEFORE DELETE ON cairn.physical_files FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_needed_file();

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.deletions FOR EACH ROW
WHEN (OLD.done_at IS NULL)
EXECUTE FUNCTION cairn.refuse_trim('one that is not done cannot be deleted');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.pins FOR EACH ROW
WHEN (OLD.removed_at IS NULL)
EXECUTE FUNCTION cairn.refuse_trim('one that is not removed cannot be deleted');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.directories FOR EACH ROW
WHEN (OLD.status <> 'DELETED')
EXECUTE FUNCTION cairn.refuse_trim('only a DELETED one can be deleted');

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.maintenance_runs FOR EACH ROW
WHEN ((
    coalesce(OLD.finished_at, greatest(OLD.planned_at, OLD.leased_until))
    <= now() - INTERVAL '1 hour'
) IS NOT TRUE)
EXECUTE FUNCTION cairn.refuse_trim('one of the last hour may be applied, and cannot be deleted');

-- What was restored is kept by its row.
CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.quarantined_objects FOR EACH ROW
WHEN ((
    OLD.status IN ('DELETED', 'RELEASED')
    AND coalesce(OLD.deleted_at, OLD.released_at) <= now() - INTERVAL '1 hour'
) IS NOT TRUE)
EXECUTE FUNCTION cairn.refuse_trim(
    'only one that was DELETED or RELEASED more than an hour ago can be deleted'
);

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.maintenance_decisions FOR EACH ROW
WHEN ((OLD.decided_at <= now() - INTERVAL '1 hour') IS NOT TRUE)
EXECUTE FUNCTION cairn.refuse_trim('one of the last hour cannot be deleted');

CREATE OR REPLACE FUNCTION cairn.refuse_current_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM cairn.jobs WHERE job_id = OLD.job_id AND current_epoch <= OLD.epoch
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA007', MESSAGE =
            TG_TABLE_NAME || ': one of a run that was not replaced cannot be deleted ['
            || cairn.about(to_jsonb(OLD)) || ']';
    END IF;
    RETURN OLD;
END $$;

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.upload_totals FOR EACH ROW
EXECUTE FUNCTION cairn.refuse_current_run();

CREATE OR REPLACE TRIGGER guard_trim BEFORE DELETE ON cairn.materializations FOR EACH ROW
WHEN (OLD.finished_at IS NULL)
EXECUTE FUNCTION cairn.refuse_current_run();
