-- Grain: one row per checkpoint, that is per micro-batch that a run began.
-- Columns: job_id, job_name, checkpoint_id, query_id and batch_id (Spark's names for it), status,
--   epoch (the run), acks of parallelism subtasks, duration_ms (from begin to the last ack),
--   restore_ms (of the subtask that took longest to bring its state to the parent), input_rows,
--   new_segments, new_bytes and new_files (those that the state contains from it on: changelog of
--   the batch, bases that were materialized before it, and its manifest; a file that is continued
--   over checkpoints counts with each), began_at, completed_at,
--   confirmed_at, ended_at (subsumed or aborted), late_rows (dropped, part of input_rows),
--   processing_time and watermark (the clocks of the batch's timers and TTL; 1970 where unused),
--   damaged_segments (known by a scrub, of those that it needs).
-- Read by: `cairn checkpoints`, dashboards on checkpoint duration and size.
CREATE OR REPLACE VIEW cairn.v_checkpoint_history AS
SELECT
    c.job_id,
    j.name AS job_name,
    c.checkpoint_id,
    c.query_id,
    c.batch_id,
    c.status,
    c.epoch,
    a.acks,
    c.parallelism,
    CAST(round(extract(EPOCH FROM c.completed_at - c.began_at) * 1000) AS bigint) AS duration_ms,
    a.restore_ms,
    a.input_rows,
    coalesce(s.new_segments, 0) AS new_segments,
    coalesce(s.new_bytes, 0) AS new_bytes,
    coalesce(s.new_files, 0) AS new_files,
    c.began_at,
    c.completed_at,
    c.confirmed_at,
    c.ended_at,
    a.late_rows,
    to_timestamp(CAST(c.processing_ms AS double precision) / 1000) AS processing_time,
    to_timestamp(CAST(c.watermark_ms AS double precision) / 1000) AS watermark,
    coalesce(d.damaged_segments, 0) AS damaged_segments
FROM cairn.checkpoints AS c
JOIN cairn.jobs AS j ON j.job_id = c.job_id
-- Once for all checkpoints: mostly there is none.
LEFT JOIN (
    SELECT v.job_id, one.checkpoint_id, count(*) AS damaged_segments
    FROM cairn.v_damaged_segments AS v
    CROSS JOIN LATERAL unnest(v.checkpoints) AS one (checkpoint_id)
    GROUP BY v.job_id, one.checkpoint_id
) AS d ON d.job_id = c.job_id AND d.checkpoint_id = c.checkpoint_id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS acks,
        max(subtask_acks.restore_ms) AS restore_ms,
        CAST(coalesce(sum(subtask_acks.input_rows), 0) AS bigint) AS input_rows,
        CAST(coalesce(sum(subtask_acks.late_rows), 0) AS bigint) AS late_rows
    FROM cairn.subtask_acks
    WHERE subtask_acks.job_id = c.job_id
      AND subtask_acks.checkpoint_id = c.checkpoint_id
) AS a
CROSS JOIN LATERAL (
    SELECT
        CAST(sum(n.segments) AS bigint) AS new_segments,
        CAST(sum(n.bytes) AS bigint) AS new_bytes,
        count(DISTINCT n.file_id) AS new_files
    FROM (
        SELECT
            g.file_id,
            cardinality(g.segment_ids) AS segments,
            (SELECT sum(one.size_bytes) FROM unnest(g.sizes_bytes) AS one (size_bytes)) AS bytes
        FROM cairn.group_commits AS g
        WHERE g.job_id = c.job_id
          AND g.checkpoint_id = c.checkpoint_id
        UNION ALL
        SELECT p.file_id, 1, p.size_bytes
        FROM cairn.placed_segments AS p
        WHERE p.job_id = c.job_id
          AND p.first_checkpoint = c.checkpoint_id
    ) AS n
) AS s;

COMMENT ON VIEW cairn.v_checkpoint_history IS
    'One row per checkpoint: status, acks of parallelism, duration in ms, rows, the segments, bytes '
    'and files that are new with it, the processing time and watermark of the batch, and how many of '
    'the segments that it needs are damaged.';
