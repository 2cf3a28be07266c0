-- Acknowledges subtasks in one statement: seals the files of a group commit, adds its rows, and
-- completes the checkpoint if all its subtasks have acknowledged then.
--
-- `acked` are the subtasks, `attempts` their task attempts. An earlier attempt that is recorded is
-- replaced. Where the same or a later one is recorded, nothing is changed, and `late` are the
-- subtasks whose acks came too late. The first ack ever binds the job to its query; if the job is
-- bound to another one, nothing is changed, either. `starts` and `ends` are the key groups that
-- segments were made with, by `owners`: the rows say them by the subtask alone.
CREATE OR REPLACE FUNCTION cairn.acknowledge(
    job text, run_epoch bigint, of_run uuid, of_query text, checkpoint bigint, file_ids uuid[],
    sizes bigint[], acked integer[], attempts bigint[], owners integer[], starts integer[],
    ends integer[], commits json,
    OUT bound_query text, OUT late integer[]
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    of_job cairn.jobs := cairn.require_epoch(job, run_epoch, of_run, FALSE, FALSE);
    own record;
    acks_before bigint;
    is_recorded boolean;
    replaces integer[] := '{}';
    misplaced integer;
BEGIN
    bound_query := of_job.query_id;
    IF bound_query IS NULL THEN
        -- Another executor may have bound it since it was read.
        UPDATE cairn.jobs AS j SET query_id = coalesce(j.query_id, of_query)
        WHERE j.job_id = job
        RETURNING j.query_id INTO bound_query;
    END IF;
    IF bound_query <> of_query THEN
        RETURN;
    END IF;
    -- One group after the other holds the lock: the last one must see the acks of all.
    SELECT c.status, c.epoch, c.parallelism INTO own FROM cairn.checkpoints AS c
    WHERE c.job_id = job AND c.checkpoint_id = checkpoint FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM cairn.refuse_fenced(
            'the checkpoint ended so long ago that its row was trimmed; acks of run ' || run_epoch
            || ' are refused',
            jsonb_build_object('job', of_job.name, 'checkpoint', checkpoint)
        );
    END IF;
    IF own.epoch <> run_epoch OR own.status NOT IN ('IN_PROGRESS', 'COMPLETED') THEN
        PERFORM cairn.refuse_fenced(
            'the checkpoint is ' || own.status || '; acks of run ' || run_epoch || ' are refused',
            jsonb_build_object('job', of_job.name, 'checkpoint', checkpoint)
        );
    END IF;
    SELECT
        coalesce(sum(CASE
            WHEN g.replaced_subtasks = '{}' THEN cardinality(g.subtasks)
            ELSE (SELECT count(*) FROM unnest(g.subtasks) AS s WHERE s <> ALL (g.replaced_subtasks))
        END), 0),
        coalesce(bool_or(g.subtasks && acked), FALSE)
    INTO acks_before, is_recorded
    FROM cairn.group_commits AS g
    WHERE g.job_id = job AND g.checkpoint_id = checkpoint;
    IF is_recorded THEN
        SELECT
            array_agg(s.subtask),
            array_agg(s.subtask) FILTER (WHERE s.task_attempt >= given.task_attempt)
        INTO replaces, late
        FROM cairn.group_commits AS g
        CROSS JOIN LATERAL unnest(g.subtasks, g.task_attempts) AS s (subtask, task_attempt)
        JOIN unnest(acked, attempts) AS given (subtask, task_attempt) ON given.subtask = s.subtask
        WHERE g.job_id = job
          AND g.checkpoint_id = checkpoint
          AND s.subtask <> ALL (g.replaced_subtasks);
        IF late IS NOT NULL THEN
            RETURN;
        END IF;
        -- The earlier attempt's: both would replay, and Spark counts the later one.
        UPDATE cairn.group_commits AS g
        SET replaced_subtasks = g.replaced_subtasks || replaces
        WHERE g.job_id = job
          AND g.checkpoint_id = checkpoint
          AND (g.subtasks && replaces OR g.segment_subtasks && replaces);
    END IF;
    PERFORM cairn.seal_files(file_ids, sizes);  -- a condemned file refuses all acks
    IF acked = '{}' THEN
        RETURN;
    END IF;
    misplaced := (
        SELECT s.owner FROM unnest(owners, starts, ends) AS s (owner, start, stop)
        WHERE int4range(s.start, s.stop)
            <> cairn.key_groups_of(
                s.owner,
                CAST(own.parallelism AS integer),
                CAST(of_job.max_parallelism AS integer)
            )
        LIMIT 1
    );
    IF misplaced IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA006', MESSAGE =
            'group_commits: a segment of subtask ' || misplaced || ' has other key groups than its '
            'subtask [job id ' || job || ', checkpoint id ' || checkpoint || ']';
    END IF;
    INSERT INTO cairn.group_commits (
        commit_id, job_id, checkpoint_id, file_id, tm_id, parallelism, max_parallelism, subtasks,
        attempt_ids, task_attempts, input_rows, late_rows, max_event_ms, restore_ms, segment_ids,
        segment_subtasks, segment_kinds, sequence_numbers, offsets_bytes, sizes_bytes, sha256s,
        index_sizes_bytes, index_sha256s, entries, uploaded_files, uploaded_segments,
        uploaded_bytes, requests, retries, hedges,
        hedge_wins, failed_attempts, winning_attempt, failed_uploads, queue_size, wait_ms,
        upload_ms, longest_request_ms, pool_wait_ms
    )
    SELECT
        n.commit_id, job, checkpoint, n.file_id, n.tm_id, own.parallelism, of_job.max_parallelism,
        n.subtasks, n.attempt_ids, n.task_attempts, n.input_rows, n.late_rows, n.max_event_ms,
        n.restore_ms, n.segment_ids, n.segment_subtasks, n.segment_kinds, n.sequence_numbers,
        n.offsets_bytes, n.sizes_bytes, n.sha256s, n.index_sizes_bytes, n.index_sha256s,
        n.entries, n.uploaded_files,
        n.uploaded_segments, n.uploaded_bytes, n.requests, n.retries, n.hedges, n.hedge_wins,
        n.failed_attempts, n.winning_attempt, n.failed_uploads, n.queue_size, n.wait_ms,
        n.upload_ms, n.longest_request_ms, n.pool_wait_ms
    FROM json_populate_recordset(CAST(NULL AS cairn.group_commits), commits) AS n;
    IF own.status = 'IN_PROGRESS'
        AND acks_before + cardinality(acked) - cardinality(replaces) = own.parallelism
    THEN
        UPDATE cairn.checkpoints AS c SET status = 'COMPLETED', completed_at = now()
        WHERE c.job_id = job AND c.checkpoint_id = checkpoint;
    END IF;
END $$;
