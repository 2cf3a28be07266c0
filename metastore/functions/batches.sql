-- What every executor asks in every batch, as functions whose plans a connection keeps.

-- Returns what rows of single checkpoints, runs and the job say of a batch that has begun, and when
-- bases were made, by the start of their key groups. No row: this run has not begun it. The clock
-- is the database's, because those of executors differ.
CREATE OR REPLACE FUNCTION cairn.begun_batch(
    job text, run_epoch bigint, of_query text, batch bigint
) RETURNS TABLE (
    checkpoint_id bigint, status text, processing_ms bigint, watermark_ms bigint,
    parent_checkpoint bigint, late_watermark_ms bigint, parent_parallelism bigint,
    parent_run_id uuid, before bigint, run_before uuid, current_epoch bigint, now_ms bigint,
    created_ms bigint, base_starts integer[], bases_made_ms bigint[]
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        c.checkpoint_id, CAST(c.status AS text), c.processing_ms, c.watermark_ms,
        c.parent_checkpoint, p.watermark_ms, p.parallelism, r.run_id, b.checkpoint_id, s.run_id,
        j.current_epoch, CAST(floor(extract(EPOCH FROM now()) * 1000) AS bigint),
        CAST(floor(extract(EPOCH FROM j.created_at) * 1000) AS bigint),
        bases.starts, bases.made_ms
    FROM cairn.checkpoints AS c
    JOIN cairn.jobs AS j ON j.job_id = c.job_id
    LEFT JOIN cairn.checkpoints AS p
        ON p.job_id = c.job_id AND p.checkpoint_id = c.parent_checkpoint
    LEFT JOIN cairn.runs AS r ON r.job_id = p.job_id AND r.epoch = p.epoch
    LEFT JOIN cairn.checkpoints AS b
        ON b.job_id = p.job_id AND b.checkpoint_id = p.parent_checkpoint
    LEFT JOIN cairn.runs AS s ON s.job_id = b.job_id AND s.epoch = b.epoch
    CROSS JOIN (
        SELECT array_agg(m.start) AS starts, array_agg(m.made_ms) AS made_ms
        FROM (
            SELECT
                lower(key_groups) AS start,
                CAST(floor(extract(EPOCH FROM max(created_at)) * 1000) AS bigint) AS made_ms
            FROM cairn.placed_segments
            WHERE job_id = job
              AND status = 'LIVE'
              AND kind IN ('keyed_full', 'keyed_increment')
            GROUP BY lower(key_groups)
        ) AS m
    ) AS bases
    WHERE c.job_id = job AND c.epoch = run_epoch AND c.query_id = of_query AND c.batch_id = batch;
END $$;

-- Makes a checkpoint COMPLETED if all its subtasks have acknowledged. The caller holds its lock.
CREATE OR REPLACE FUNCTION cairn.complete_checkpoint(job text, checkpoint bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    UPDATE cairn.checkpoints AS c
    SET status = 'COMPLETED', completed_at = now()
    WHERE c.job_id = job
      AND c.checkpoint_id = checkpoint
      AND c.status = 'IN_PROGRESS'
      AND c.parallelism = (
        SELECT count(*)
        FROM cairn.group_commits AS g CROSS JOIN LATERAL unnest(g.subtasks) AS acked
        WHERE g.job_id = job
          AND g.checkpoint_id = checkpoint
          AND acked <> ALL (g.replaced_subtasks)
    );
END $$;
