-- Group commits: one attempt counts for each subtask of a checkpoint, and each of a subtask's
-- segments there has its own place. The checkpoint's row is locked by whoever adds a group commit,
-- so one of two waits for the other and then sees its acks.
CREATE OR REPLACE FUNCTION cairn.admit_group_commit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    twice text;
BEGIN
    IF array_position(NEW.subtasks, NULL) IS NOT NULL
        OR array_position(NEW.segment_subtasks, NULL) IS NOT NULL
        OR cardinality(NEW.replaced_subtasks) > 0
    THEN
        twice := 'names each subtask, and none that is replaced';
    END IF;
    IF EXISTS (SELECT FROM unnest(NEW.subtasks) AS s GROUP BY s HAVING count(*) > 1) THEN
        twice := 'has one ack of each subtask';
    END IF;
    IF EXISTS (
        SELECT FROM unnest(NEW.segment_subtasks, NEW.segment_kinds, NEW.sequence_numbers)
            AS s (subtask, kind, sequence_number)
        WHERE kind IS DISTINCT FROM 'channel'
        GROUP BY subtask, coalesce(kind, 'changelog'),
            CASE WHEN coalesce(kind, 'changelog') = 'changelog' THEN coalesce(sequence_number, 0) END
        HAVING count(*) > 1
    ) THEN
        twice := 'has one segment at each place';
    END IF;
    PERFORM FROM cairn.checkpoints
    WHERE (job_id, checkpoint_id) = (NEW.job_id, NEW.checkpoint_id) FOR NO KEY UPDATE;
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
        twice := 'replaces the attempt that was acknowledged before';
    END IF;
    IF twice IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA006', MESSAGE =
            'group_commits: a group commit ' || twice || ' [' || cairn.about(to_jsonb(NEW))
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
