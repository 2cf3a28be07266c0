-- What a retained checkpoint needs stays, whoever asks. Retained are all that have not ended, pinned
-- ones too. All rows of a statement are looked at together: a cleanup lets hundreds die at once.

-- A placed segment dies once no retained checkpoint is in its interval, and none to come. It is
-- released once, and from the next checkpoint on: those that there are were made with it.
CREATE OR REPLACE FUNCTION cairn.refuse_needed_death() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed record;
    retained int8multirange;
    needed jsonb;
BEGIN
    FOR changed IN
        SELECT
            after.job_id,
            bool_or(after.status = 'DEAD' AND before.status = 'LIVE') AS some_died,
            bool_or(before.released_checkpoint IS NOT NULL)
                FILTER (WHERE before.released_checkpoint IS DISTINCT FROM after.released_checkpoint)
                AS some_again,
            min(after.released_checkpoint)
                FILTER (WHERE before.released_checkpoint IS DISTINCT FROM after.released_checkpoint)
                AS released_checkpoint
        FROM old_rows AS before JOIN new_rows AS after USING (segment_id)
        GROUP BY after.job_id
    LOOP
        IF changed.some_again OR changed.released_checkpoint < (
            SELECT j.next_checkpoint_id FROM cairn.jobs AS j WHERE j.job_id = changed.job_id
        ) THEN
            RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
                'placed_segments: a segment is released once, and from the next checkpoint on '
                || '[job id ' || changed.job_id || coalesce(
                    ', from checkpoint ' || changed.released_checkpoint || ' on', ''
                ) || ']';
        END IF;
        CONTINUE WHEN NOT changed.some_died;
        retained := (
            SELECT coalesce(range_agg(int8range(c.checkpoint_id, c.checkpoint_id, '[]')), '{}')
            FROM cairn.checkpoints AS c
            WHERE c.job_id = changed.job_id AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
        );
        needed := (
            SELECT to_jsonb(after)
            FROM old_rows AS before JOIN new_rows AS after USING (segment_id)
            WHERE before.status = 'LIVE'
              AND after.status = 'DEAD'
              AND after.job_id = changed.job_id
              AND cairn.is_needed(after.first_checkpoint, after.released_checkpoint, retained)
            LIMIT 1
        );
        IF needed IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
                'placed_segments: one that a retained checkpoint or one to come needs cannot die ['
                || cairn.about(needed) || ']';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_needed AFTER UPDATE ON cairn.placed_segments
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.refuse_needed_death();

-- A base replaces changelog in each checkpoint that it is part of. In one that there is it would let
-- changelog die that this one was made with.
CREATE OR REPLACE FUNCTION cairn.refuse_late_base() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed record;
BEGIN
    FOR needed IN
        SELECT job_id, min(first_checkpoint) AS first_checkpoint FROM new_rows
        WHERE kind IN ('keyed_full', 'keyed_increment')
        GROUP BY job_id
    LOOP
        PERFORM FROM cairn.checkpoints AS c
        WHERE c.job_id = needed.job_id
          AND c.checkpoint_id >= needed.first_checkpoint
          AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED');
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
                'placed_segments: a base is part of checkpoints to come, and of none that there is ['
                || 'job id ' || needed.job_id || ', from checkpoint ' || needed.first_checkpoint
                || ' on]';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_late_base AFTER INSERT ON cairn.placed_segments
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.refuse_late_base();

-- A group commit dies once bases cover it in the oldest retained checkpoint that may need it: then
-- they do in all newer ones. It is aborted with its checkpoint, and attempts in it are replaced while
-- its checkpoint takes acks.
CREATE OR REPLACE FUNCTION cairn.refuse_needed_commit_death() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed record;
BEGIN
    WITH died AS MATERIALIZED (
        -- Those of one checkpoint together: their key groups are covered if all are.
        SELECT
            after.job_id,
            after.checkpoint_id,
            coalesce(range_agg(one.key_groups), '{}') AS key_groups
        FROM old_rows AS before
        JOIN new_rows AS after USING (commit_id)
        LEFT JOIN LATERAL unnest(after.key_groups) AS one (key_groups) ON TRUE
        WHERE before.status = 'LIVE' AND after.status = 'DEAD'
        GROUP BY after.job_id, after.checkpoint_id
    ),
    chosen AS MATERIALIZED (
        SELECT
            died.*,
            (
                SELECT min(c.checkpoint_id) FROM cairn.checkpoints AS c
                WHERE c.job_id = died.job_id
                  AND c.checkpoint_id >= died.checkpoint_id
                  AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
            ) AS oldest
        FROM died
    ),
    covered AS MATERIALIZED (
        SELECT o.job_id, o.oldest, cairn.covered_until(o.job_id, o.oldest) AS until
        FROM (SELECT DISTINCT job_id, oldest FROM chosen) AS o
    )
    SELECT chosen.job_id, chosen.checkpoint_id INTO needed
    FROM chosen
    JOIN covered
        ON covered.job_id = chosen.job_id AND covered.oldest IS NOT DISTINCT FROM chosen.oldest
    WHERE cairn.is_needed_by(
        chosen.checkpoint_id, chosen.key_groups, coalesce(chosen.oldest, 0), covered.until
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
            'group_commits: one that a retained checkpoint or one to come needs cannot die [job id '
            || needed.job_id || ', checkpoint id ' || needed.checkpoint_id || ']';
    END IF;
    SELECT after.job_id, after.checkpoint_id INTO needed
    FROM old_rows AS before JOIN new_rows AS after USING (commit_id)
    WHERE (before.status, before.replaced_subtasks) <> (after.status, after.replaced_subtasks)
      AND after.status <> 'DEAD'
      AND (
        SELECT c.status = 'ABORTED' OR (
            after.status = 'LIVE' AND c.status IN ('IN_PROGRESS', 'COMPLETED')
        )
        FROM cairn.checkpoints AS c
        WHERE c.job_id = after.job_id AND c.checkpoint_id = after.checkpoint_id
      ) IS NOT TRUE
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
            'group_commits: it is aborted with its checkpoint, and attempts are replaced while that '
            'takes acks [job id ' || needed.job_id || ', checkpoint id ' || needed.checkpoint_id || ']';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_needed AFTER UPDATE ON cairn.group_commits
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.refuse_needed_commit_death();

-- A checkpoint is aborted by a newer run that begins, and continues by the job's own hand only.
CREATE OR REPLACE FUNCTION cairn.refuse_abort() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.epoch = (SELECT j.current_epoch FROM cairn.jobs AS j WHERE j.job_id = NEW.job_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
            'checkpoints: one of the current run cannot be aborted [' || cairn.about(to_jsonb(NEW))
            || ']';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_abort BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (OLD.status <> 'ABORTED' AND NEW.status = 'ABORTED')
EXECUTE FUNCTION cairn.refuse_abort();

CREATE OR REPLACE FUNCTION cairn.refuse_not_the_job() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA009', MESSAGE =
        'checkpoints: ' || current_user || ' may subsume checkpoints, and not make them '
        || NEW.status || ' [' || cairn.about(to_jsonb(NEW)) || ']';
END $$;

-- In the condition, which costs the job's own transactions no call of a function in SQL.
CREATE OR REPLACE TRIGGER guard_the_jobs BEFORE UPDATE ON cairn.checkpoints FOR EACH ROW
WHEN (
    OLD.status <> NEW.status
    AND NEW.status <> 'SUBSUMED'
    AND NOT has_column_privilege(CAST('cairn.checkpoints' AS regclass), 'completed_at', 'UPDATE')
)
EXECUTE FUNCTION cairn.refuse_not_the_job();
