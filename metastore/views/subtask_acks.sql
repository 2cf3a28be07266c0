-- Grain: one row per checkpoint and subtask: the attempt whose changes count.
-- Columns: job_id, checkpoint_id, subtask, attempt_id, task_attempt (Spark's task attempt id),
--   tm_id (the executor), input_rows, late_rows (dropped, part of input_rows), max_event_ms (latest
--   event time by input, ms since 1970), restore_ms (to bring local state to the parent), acked_at.
-- Read by: people, and code that looks at few acks.
CREATE OR REPLACE VIEW cairn.subtask_acks AS
SELECT
    c.job_id,
    c.checkpoint_id,
    CAST(a.subtask AS bigint) AS subtask,
    a.attempt_id,
    a.task_attempt,
    c.tm_id,
    a.input_rows,
    coalesce(a.late_rows, 0) AS late_rows,
    coalesce(
        c.max_event_ms[
            (a.place - 1) * cardinality(c.max_event_ms) / cardinality(c.subtasks) + 1
            :a.place * cardinality(c.max_event_ms) / cardinality(c.subtasks)
        ],
        '{}'
    ) AS max_event_ms,
    CAST(a.restore_ms AS bigint) AS restore_ms,
    c.acked_at
FROM cairn.group_commits AS c
CROSS JOIN LATERAL unnest(
    c.subtasks, c.attempt_ids, c.task_attempts, c.input_rows, c.late_rows, c.restore_ms
) WITH ORDINALITY AS a (
    subtask, attempt_id, task_attempt, input_rows, late_rows, restore_ms, place
)
WHERE a.subtask <> ALL (c.replaced_subtasks);

COMMENT ON VIEW cairn.subtask_acks IS
    'One row per checkpoint and subtask: the attempt whose changes count, unfolded from its group '
    'commit.';
