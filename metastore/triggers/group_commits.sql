-- Group commits: one attempt counts for each subtask of a checkpoint, each of a subtask's segments
-- there has its own place, and all are in files of the job. The checkpoint's row is locked by whoever
-- adds a group commit, so one of two waits for the other and then sees its acks.
CREATE OR REPLACE FUNCTION cairn.admit_group_commit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    rule text;
    own_parallelism integer;
BEGIN
    IF NEW.status <> 'LIVE' THEN
        RAISE EXCEPTION USING ERRCODE = 'CA001', MESSAGE =
            'group_commits: status of a new row cannot be ' || NEW.status || ' ['
            || cairn.about(to_jsonb(NEW)) || ']';
    END IF;
    IF array_position(NEW.subtasks, NULL) IS NOT NULL
        OR array_position(NEW.segment_subtasks, NULL) IS NOT NULL
        OR cardinality(NEW.replaced_subtasks) > 0
    THEN
        rule := 'names each subtask, and none that is replaced';
    END IF;
    IF EXISTS (SELECT FROM unnest(NEW.subtasks) AS s GROUP BY s HAVING count(*) > 1) THEN
        rule := 'has one ack of each subtask';
    END IF;
    IF EXISTS (
        SELECT FROM unnest(NEW.segment_subtasks, NEW.segment_kinds, NEW.sequence_numbers)
            AS s (subtask, kind, sequence_number)
        WHERE kind IS DISTINCT FROM 'channel'
        GROUP BY subtask, coalesce(kind, 'changelog'),
            CASE WHEN coalesce(kind, 'changelog') = 'changelog' THEN coalesce(sequence_number, 0) END
        HAVING count(*) > 1
    ) THEN
        rule := 'has one segment at each place';
    END IF;
    SELECT parallelism INTO own_parallelism FROM cairn.checkpoints
    WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) FOR NO KEY UPDATE;
    IF 0 > ANY (NEW.subtasks || NEW.segment_subtasks)
        OR own_parallelism <= ANY (NEW.subtasks || NEW.segment_subtasks)
    THEN
        rule := 'names subtasks of its checkpoint only, 0 to ' || own_parallelism - 1;
    END IF;
    -- Almost always none: then the rest of the condition is not evaluated.
    IF EXISTS (
        SELECT FROM cairn.group_commits AS other
        WHERE other.job_id = NEW.job_id
          AND other.checkpoint_id = NEW.checkpoint_id
          AND (other.subtasks && NEW.subtasks OR other.segment_subtasks && NEW.segment_subtasks)
    ) AND (EXISTS (
        SELECT FROM cairn.subtask_acks
        WHERE job_id = NEW.job_id AND checkpoint_id = NEW.checkpoint_id
          AND subtask = ANY (NEW.subtasks)
    ) OR EXISTS (
        SELECT FROM cairn.group_commits AS other
        CROSS JOIN LATERAL unnest(
            other.segment_subtasks, other.segment_kinds, other.sequence_numbers
        ) AS theirs (subtask, kind, sequence_number)
        JOIN unnest(NEW.segment_subtasks, NEW.segment_kinds, NEW.sequence_numbers)
            AS ours (subtask, kind, sequence_number)
            ON ours.subtask = theirs.subtask
            AND coalesce(ours.kind, 'changelog') = coalesce(theirs.kind, 'changelog')
            AND coalesce(ours.sequence_number, 0) = coalesce(theirs.sequence_number, 0)
        WHERE other.job_id = NEW.job_id
          AND other.checkpoint_id = NEW.checkpoint_id
          AND other.segment_subtasks && NEW.segment_subtasks
          AND theirs.kind IS DISTINCT FROM 'channel'
          AND theirs.subtask <> ALL (other.replaced_subtasks)
    )) THEN
        rule := 'replaces the attempt that was acknowledged before';
    END IF;
    IF rule IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA006', MESSAGE =
            'group_commits: a group commit ' || rule || ' [' || cairn.about(to_jsonb(NEW))
            || ', subtasks ' || NEW.subtasks::text || ']';
    END IF;
    NEW.key_groups := (
        SELECT coalesce(
            range_agg(cairn.key_groups_of(subtask, NEW.parallelism, NEW.max_parallelism)), '{}'
        )
        FROM unnest(NEW.segment_subtasks, NEW.segment_kinds) AS s (subtask, kind)
        WHERE coalesce(kind, 'changelog') = 'changelog'
    );
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER admit BEFORE INSERT ON cairn.group_commits FOR EACH ROW
EXECUTE FUNCTION cairn.admit_group_commit();

-- What follows from a group commit: its file has live segments, and the executor's totals of uploads
-- grow, because what a scrape reads must not grow with the age of a run. For each row, because there
-- is one: keeping a statement's rows for a trigger costs more than the two changes.
CREATE OR REPLACE FUNCTION cairn.count_group_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF NEW.file_id IS NOT NULL THEN
        UPDATE cairn.physical_files
        SET
            live_segments = live_segments + cardinality(NEW.sizes_bytes),
            live_bytes = live_bytes + (SELECT sum(size) FROM unnest(NEW.sizes_bytes) AS size)
        WHERE file_id = NEW.file_id AND job_id = NEW.job_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
                'group_commits: segments are in a file of their own job ['
                || cairn.about(to_jsonb(NEW)) || ']';
        END IF;
    END IF;
    IF NEW.uploaded_files IS NOT NULL THEN
        INSERT INTO cairn.upload_totals AS total (
            job_id, epoch, tm_id, commits, requests, failed_uploads, size_bytes, upload_ms,
            winning_attempt, segments, pool_wait_ms
        )
        SELECT
            NEW.job_id, epoch, NEW.tm_id, 1, NEW.requests, NEW.failed_uploads, NEW.uploaded_bytes,
            NEW.upload_ms, NEW.winning_attempt, NEW.uploaded_segments, NEW.pool_wait_ms
        FROM cairn.checkpoints
        WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id)
        ON CONFLICT (job_id, epoch, tm_id) DO UPDATE SET
            commits = total.commits + 1,
            requests = total.requests + excluded.requests,
            failed_uploads = total.failed_uploads + excluded.failed_uploads,
            size_bytes = total.size_bytes + excluded.size_bytes,
            upload_ms = total.upload_ms + excluded.upload_ms,
            winning_attempt = total.winning_attempt + excluded.winning_attempt,
            segments = total.segments + excluded.segments,
            pool_wait_ms = total.pool_wait_ms + excluded.pool_wait_ms;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER count_new AFTER INSERT ON cairn.group_commits FOR EACH ROW
EXECUTE FUNCTION cairn.count_group_commit();
