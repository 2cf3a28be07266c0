-- What time a batch has: processing time and watermark, the same whenever the batch runs again.

-- Returns the times of the batch that follows a checkpoint; the columns of `parent` are null if there
-- is none.
--
-- The watermark is Spark's: the least over the inputs of the latest event time seen minus the
-- input's delay, as of the end of the parent, and never less than the parent's. A batch that an
-- older run began keeps its times, whatever the delays are now, as Spark's offset log keeps them:
-- timers must fire in the batch they fired in. A null watermark: it is another job's, which has not
-- begun this batch.
CREATE OR REPLACE FUNCTION cairn.times_after(
    run cairn.runs, of_query text, batch bigint, parent cairn.checkpoints,
    OUT processing_ms bigint, OUT watermark_ms bigint, OUT max_event_ms bigint[]
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
BEGIN
    max_event_ms := cairn.seen_after(parent);
    SELECT c.processing_ms, c.watermark_ms INTO processing_ms, watermark_ms
    FROM cairn.checkpoints AS c
    WHERE c.job_id = run.job_id AND c.query_id = of_query AND c.batch_id = batch
    LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    IF run.watermark_job_id IS NULL THEN
        watermark_ms := coalesce((
            -- An input without rows yet holds the watermark back, as in Spark.
            SELECT min(coalesce(max_event_ms[d.input] - d.delay_ms, 0))
            FROM unnest(run.watermark_delays_ms) WITH ORDINALITY AS d (delay_ms, input)
        ), 0);
    ELSE
        watermark_ms := (
            SELECT c.watermark_ms FROM cairn.checkpoints AS c
            WHERE c.job_id = run.watermark_job_id AND c.query_id = of_query AND c.batch_id = batch
            LIMIT 1
        );
        IF watermark_ms IS NULL THEN
            RETURN;
        END IF;
    END IF;
    -- A longer delay after a restart must not take the watermark back.
    watermark_ms := greatest(coalesce(parent.watermark_ms, 0), watermark_ms);
    -- The clock of another server, as after a failover, may be behind.
    processing_ms := greatest(
        parent.processing_ms, CAST(floor(extract(EPOCH FROM now()) * 1000) AS bigint)
    );
END $$;

-- Returns the latest event time by input as of the end of a checkpoint, which is confirmed, so that
-- no ack is added to it.
CREATE OR REPLACE FUNCTION cairn.seen_after(checkpoint cairn.checkpoints) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN coalesce((
        SELECT array_agg(latest.at_ms ORDER BY latest.input)
        FROM (
            SELECT seen.input, max(seen.at_ms) AS at_ms
            FROM (
                SELECT before.input, before.at_ms
                FROM unnest(checkpoint.max_event_ms) WITH ORDINALITY AS before (at_ms, input)
                UNION ALL
                SELECT 1 + (own.place - 1) % own.inputs, own.at_ms
                FROM cairn.group_commits AS g
                CROSS JOIN LATERAL (
                    SELECT e.at_ms, e.place, cardinality(g.max_event_ms) / cardinality(g.subtasks)
                    FROM unnest(g.max_event_ms) WITH ORDINALITY AS e (at_ms, place)
                ) AS own (at_ms, place, inputs)
                WHERE g.job_id = checkpoint.job_id
                  AND g.checkpoint_id = checkpoint.checkpoint_id
                  AND g.subtasks[1 + (own.place - 1) / own.inputs] <> ALL (g.replaced_subtasks)
            ) AS seen
            GROUP BY seen.input
        ) AS latest
    ), '{}');
END $$;
