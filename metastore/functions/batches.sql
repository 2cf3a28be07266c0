-- How every executor begins a batch: one statement, which finds it begun or begins it.

-- Returns the begin of a batch, with a row for each group commit of the parent that has some of the
-- subtasks, or is of an executor that committed with them (null: of all); at least one row. All of
-- it is immutable once the batch has begun, so it is read without a lock. The clock is the
-- database's, because those of executors differ. `base_starts` and `bases_made_ms` say when bases
-- were made, by the start of their key groups.
--
-- No row: whoever had the job's lock meanwhile has not opened the batch. The caller asks again, and
-- then `waits` for the lock. `refusal`: why the batch cannot begin; then nothing was changed.
CREATE OR REPLACE FUNCTION cairn.begin_batch(
    job text, run_epoch bigint, of_run uuid, of_query text, batch bigint, of_subtasks integer[],
    waits boolean
) RETURNS TABLE (
    refusal jsonb, checkpoint_id bigint, status text, processing_ms bigint, watermark_ms bigint,
    parent_checkpoint bigint, late_watermark_ms bigint, parent_parallelism bigint,
    parent_run_id text, before bigint, run_before text, now_ms bigint, created_ms bigint,
    base_starts integer[], bases_made_ms bigint[], file_id text, max_parallelism integer,
    parallelism integer, subtasks integer[], attempt_ids text[], replaced_subtasks integer[], segment_ids text[],
    segment_subtasks integer[], segment_kinds text[], sequence_numbers smallint[],
    offsets_bytes bigint[], sizes_bytes bigint[], sha256s text, entries integer[], path text,
    scope text
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    found record;
    bases record;
    together integer[];
BEGIN
    -- In steps, whose plans are single reads of an index whatever the tables' statistics say.
    FOR pass IN 1..2 LOOP
        SELECT
            c.checkpoint_id, c.status, c.processing_ms, c.watermark_ms, c.parent_checkpoint,
            p.watermark_ms AS late_watermark_ms, p.parallelism, r.run_id, b.checkpoint_id AS before,
            s.run_id AS run_before, j.created_at
        INTO found
        FROM cairn.checkpoints AS c
        JOIN cairn.jobs AS j ON j.job_id = c.job_id
        JOIN cairn.runs AS own
            ON own.job_id = c.job_id AND own.epoch = c.epoch AND own.run_id = of_run
        LEFT JOIN cairn.checkpoints AS p
            ON p.job_id = c.job_id AND p.checkpoint_id = c.parent_checkpoint
        LEFT JOIN cairn.runs AS r ON r.job_id = p.job_id AND r.epoch = p.epoch
        LEFT JOIN cairn.checkpoints AS b
            ON b.job_id = p.job_id AND b.checkpoint_id = p.parent_checkpoint
        LEFT JOIN cairn.runs AS s ON s.job_id = b.job_id AND s.epoch = b.epoch
        WHERE c.job_id = job
          AND c.epoch = run_epoch
          AND c.query_id = of_query
          AND c.batch_id = batch
          AND j.current_epoch = run_epoch;
        EXIT WHEN found.checkpoint_id IS NOT NULL;
        IF pass = 2 THEN
            RETURN;
        END IF;
        refusal := cairn.open_batch(job, run_epoch, of_run, of_query, batch, waits);
        IF refusal IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    SELECT array_agg(m.start) AS starts, array_agg(m.made_ms) AS made_ms INTO bases
    FROM (
        SELECT
            lower(key_groups) AS start,
            CAST(floor(extract(EPOCH FROM max(created_at)) * 1000) AS bigint) AS made_ms
        FROM cairn.placed_segments
        WHERE job_id = job AND status = 'LIVE' AND kind IN ('keyed_full', 'keyed_increment')
        GROUP BY lower(key_groups)
    ) AS m;
    IF of_subtasks IS NOT NULL THEN
        -- Of all that committed with them, too: their segments may be in other rows.
        together := (
            SELECT array_agg(one.subtask)
            FROM cairn.group_commits AS o
            CROSS JOIN LATERAL unnest(o.subtasks) AS one (subtask)
            WHERE o.job_id = job
              AND o.checkpoint_id = found.parent_checkpoint
              AND o.subtasks && of_subtasks
        );
    END IF;
    RETURN QUERY
    SELECT
        CAST(NULL AS jsonb), found.checkpoint_id, CAST(found.status AS text), found.processing_ms,
        found.watermark_ms, found.parent_checkpoint, found.late_watermark_ms, found.parallelism,
        CAST(found.run_id AS text), found.before, CAST(found.run_before AS text),
        CAST(floor(extract(EPOCH FROM now()) * 1000) AS bigint),
        CAST(floor(extract(EPOCH FROM found.created_at) * 1000) AS bigint),
        bases.starts, bases.made_ms, CAST(g.file_id AS text), g.max_parallelism, g.parallelism,
        g.subtasks, CAST(g.attempt_ids AS text[]), g.replaced_subtasks,
        CAST(g.segment_ids AS text[]), g.segment_subtasks, g.segment_kinds, g.sequence_numbers,
        g.offsets_bytes, g.sizes_bytes, encode(g.sha256s, 'hex'), g.entries, f.path,
        CAST(f.scope AS text)
    FROM (SELECT) AS one
    LEFT JOIN cairn.group_commits AS g
        ON g.job_id = job
        AND g.checkpoint_id = found.parent_checkpoint
        AND (
            of_subtasks IS NULL
            OR g.subtasks && of_subtasks
            OR g.segment_subtasks && together
        )
    LEFT JOIN cairn.physical_files AS f ON f.file_id = g.file_id;
END $$;

-- Opens the checkpoint of a batch, confirms its parent and, if the run begins with it, fences older
-- runs. Returns why it must not; null: it is open, or another transaction had the job's lock.
CREATE OR REPLACE FUNCTION cairn.open_batch(
    job text, run_epoch bigint, of_run uuid, of_query text, batch bigint, waits boolean
) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    of_job cairn.jobs;
    run cairn.runs;
    parent cairn.checkpoints;
    passed bigint;
    lost text;
    times record;
BEGIN
    -- All executors begin at once, and one of them opens the batch: the others only wait for it. Who
    -- shares the lock is let in with the others, not one after the other.
    IF NOT waits AND NOT pg_try_advisory_xact_lock(hashtextextended(job, 0)) THEN
        PERFORM cairn.lock_job(job, FALSE);
        RETURN NULL;
    END IF;
    of_job := cairn.require_epoch(job, run_epoch, of_run, TRUE, TRUE);
    IF of_job.query_id <> of_query THEN
        RETURN jsonb_build_object('why', 'query', 'query', of_job.query_id);
    END IF;
    PERFORM FROM cairn.checkpoints AS c
    WHERE (c.job_id, c.epoch, c.query_id, c.batch_id) = (job, run_epoch, of_query, batch);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- Subsumed ones, too: Spark has committed them, whatever the cleanup has made of them since.
    passed := (
        SELECT max(c.batch_id) FROM cairn.checkpoints AS c
        WHERE c.job_id = job
          AND c.query_id = of_query
          AND c.status IN ('CONFIRMED', 'SUBSUMED')
    );
    IF passed >= batch THEN
        RETURN jsonb_build_object('why', 'passed', 'batch', passed);
    END IF;
    parent := cairn.parent_of(job, of_query, batch);
    -- The first batch of a job starts from nothing; any other one has lost its parent.
    IF parent.job_id IS NULL AND batch > 0 THEN
        RETURN jsonb_build_object('why', 'no parent', 'batch', passed);
    END IF;
    IF parent.status = 'IN_PROGRESS' THEN
        RETURN jsonb_build_object(
            'why', 'hole', 'batch', parent.batch_id, 'checkpoint', parent.checkpoint_id,
            'parallelism', parent.parallelism
        );
    END IF;
    SELECT * INTO STRICT run FROM cairn.runs AS r WHERE r.job_id = job AND r.epoch = run_epoch;
    -- Once per run, and not when its plan is built: a plan may never be started.
    IF of_job.current_epoch < run_epoch THEN
        lost := cairn.dropped_states_of(run);
        IF lost IS NOT NULL THEN
            RETURN jsonb_build_object('why', 'dropped', 'names', lost);
        END IF;
        lost := cairn.changed_states_of(run);
        IF lost IS NOT NULL OR of_job.time_mode <> run.time_mode THEN
            RETURN jsonb_build_object('why', 'changed', 'names', coalesce(lost, 'timeMode'));
        END IF;
    END IF;
    times := cairn.times_after(run, of_query, batch, parent);
    IF times.watermark_ms IS NULL THEN
        RETURN jsonb_build_object('why', 'watermark', 'job', run.watermark_job_id);
    END IF;
    -- Spark begins a batch only after it has committed the one before: that is the confirmation.
    IF parent.status = 'COMPLETED' THEN
        UPDATE cairn.checkpoints AS c SET status = 'CONFIRMED', confirmed_at = now()
        WHERE c.job_id = job AND c.checkpoint_id = parent.checkpoint_id;
    END IF;
    -- From here on the older runs are fenced: each of their transactions compares the epoch.
    UPDATE cairn.jobs AS j
    SET current_epoch = run_epoch, next_checkpoint_id = of_job.next_checkpoint_id + 1
    WHERE j.job_id = job;
    IF of_job.current_epoch < run_epoch THEN
        PERFORM cairn.begin_run(run);
    END IF;
    IF run.query_id IS DISTINCT FROM of_query OR run.started_at IS NULL OR run.ended_at IS NOT NULL
    THEN
        UPDATE cairn.runs AS r
        SET started_at = coalesce(r.started_at, now()), query_id = of_query, seen_at = now(),
            ended_at = NULL
        WHERE r.job_id = job AND r.epoch = run_epoch;
    END IF;
    INSERT INTO cairn.checkpoints (
        job_id, checkpoint_id, epoch, query_id, batch_id, parallelism, parent_checkpoint,
        processing_ms, watermark_ms, max_event_ms
    ) VALUES (
        job, of_job.next_checkpoint_id, run_epoch, of_query, batch, run.parallelism,
        parent.checkpoint_id, times.processing_ms, times.watermark_ms, times.max_event_ms
    );
    RETURN NULL;
END $$;

-- Returns the checkpoint whose state a batch starts from; its columns are null if there is none.
-- That of a job that was restored is of batch -1 and of no query.
CREATE OR REPLACE FUNCTION cairn.parent_of(job text, of_query text, batch bigint)
RETURNS cairn.checkpoints
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    found cairn.checkpoints;
BEGIN
    IF batch > 0 THEN
        SELECT * INTO found FROM cairn.checkpoints AS c
        WHERE c.job_id = job
          AND c.query_id = of_query
          AND c.batch_id = batch - 1
          AND c.status <> 'ABORTED'
        ORDER BY c.checkpoint_id DESC LIMIT 1;
    ELSE
        SELECT * INTO found FROM cairn.checkpoints AS c
        WHERE c.job_id = job AND c.batch_id = batch - 1 AND c.status <> 'ABORTED'
        ORDER BY c.checkpoint_id DESC LIMIT 1;
    END IF;
    RETURN found;
END $$;

-- Returns the state variables that a run declares and another one has dropped since; null: none. Its
-- entries are being removed, and what this run would write under the id with them.
CREATE OR REPLACE FUNCTION cairn.dropped_states_of(run cairn.runs) RETURNS text
LANGUAGE sql STABLE
RETURN (
    SELECT string_agg(v.name, ', ' ORDER BY v.state_id) FROM cairn.state_variables AS v
    WHERE v.job_id = run.job_id AND v.state_id = ANY (run.state_ids) AND v.dropped_at IS NOT NULL
);

-- Returns the state variables that another run has made or changed since this one's plan was built,
-- so that this run would not read or keep them right; null: none.
CREATE OR REPLACE FUNCTION cairn.changed_states_of(run cairn.runs) RETURNS text
LANGUAGE sql STABLE
RETURN (
    SELECT string_agg(v.name, ', ' ORDER BY v.state_id)
    FROM cairn.state_variables AS v
    LEFT JOIN LATERAL (SELECT run.layouts -> CAST(v.state_id AS text) AS built) AS own ON TRUE
    WHERE v.job_id = run.job_id
      AND v.dropped_at IS NULL
      AND CASE
        WHEN own.built IS NULL THEN
            (v.kind IN ('operator_list', 'operator_union')
                AND v.state_id <> ALL (run.deleted_state_ids))
            OR EXISTS (
                SELECT FROM jsonb_each(run.layouts) AS other
                WHERE other.value ->> 'name' = v.name
            )
        ELSE
            (v.name, v.kind, v.has_ttl, coalesce(v.user_key_schema, 'null'))
                <> (
                    own.built ->> 'name', own.built ->> 'kind',
                    CAST(own.built ->> 'has_ttl' AS boolean), own.built -> 'user_key_schema'
                )
            OR (v.value_schema <> own.built -> 'before' AND v.value_schema <> own.built -> 'layout')
    END
);

-- What happens once per run, when it begins: its options and the layouts of its state variables
-- become the job's; unfinished checkpoints of older runs are aborted,
-- complete ones too, because the batch runs again, perhaps at another parallelism; the variables
-- that the run deletes are dropped; the directories that it will not write to are given up.
CREATE OR REPLACE FUNCTION cairn.begin_run(run cairn.runs) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE cairn.jobs AS j
    SET time_mode = run.time_mode,
        num_retained = coalesce(run.num_retained, j.num_retained),
        file_retention_ms = coalesce(run.file_retention_ms, j.file_retention_ms),
        keeps_manifest = coalesce(run.keeps_manifest, j.keeps_manifest),
        history_retention_ms = coalesce(run.history_retention_ms, j.history_retention_ms),
        history_max_checkpoints = coalesce(run.history_max_checkpoints, j.history_max_checkpoints),
        materialized_by = coalesce(run.materialized_by, j.materialized_by),
        materialize_interval_ms
            = coalesce(run.materialize_interval_ms, j.materialize_interval_ms)
    WHERE j.job_id = run.job_id;
    INSERT INTO cairn.state_variables (
        job_id, state_id, name, kind, value_schema, user_key_schema, has_ttl
    )
    SELECT
        run.job_id, CAST(v.key AS smallint), v.value ->> 'name', v.value ->> 'kind',
        v.value -> 'layout', nullif(v.value -> 'user_key_schema', 'null'),
        CAST(v.value ->> 'has_ttl' AS boolean)
    FROM jsonb_each(run.layouts) AS v
    ON CONFLICT (job_id, state_id) DO UPDATE SET value_schema = excluded.value_schema
    WHERE state_variables.value_schema <> excluded.value_schema;
    WITH aborted AS (
        UPDATE cairn.checkpoints AS c SET status = 'ABORTED', ended_at = now()
        WHERE c.job_id = run.job_id
          AND c.epoch < run.epoch
          AND c.status IN ('IN_PROGRESS', 'COMPLETED')
        RETURNING c.checkpoint_id
    )
    UPDATE cairn.group_commits AS g SET status = 'ABORTED'
    WHERE g.job_id = run.job_id
      AND g.checkpoint_id IN (SELECT a.checkpoint_id FROM aborted AS a)
      AND g.status = 'LIVE';
    UPDATE cairn.state_variables AS v SET dropped_at = now()
    WHERE v.job_id = run.job_id
      AND v.state_id = ANY (run.deleted_state_ids)
      AND v.dropped_at IS NULL;
    -- Subtasks' directories of another parallelism, and task managers' of older runs.
    UPDATE cairn.directories AS d SET status = 'UNCLAIMED', unclaimed_at = now()
    WHERE d.job_id = run.job_id
      AND d.status = 'CLAIMED'
      AND (
        (d.scope = 'shared' AND d.parallelism <> run.parallelism)
        OR (d.scope = 'taskmanager' AND d.epoch < run.epoch)
    );
END $$;
