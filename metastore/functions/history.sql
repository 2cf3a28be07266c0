-- What a row counts for in the history of its job, once it is trimmed and before.

CREATE OR REPLACE FUNCTION cairn.day_of(moment timestamptz) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(moment AT TIME ZONE 'UTC' AS date);

-- Returns the rows that a group commit's attempts have read, without those that were read again.
CREATE OR REPLACE FUNCTION cairn.rows_of(
    commit_status text, subtasks integer[], input_rows bigint[], late_rows bigint[],
    replaced_subtasks integer[]
) RETURNS TABLE (input_rows bigint, late_rows bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CAST(sum(a.input_rows) AS bigint), CAST(sum(a.late_rows) AS bigint)
    FROM unnest(rows_of.subtasks, rows_of.input_rows, rows_of.late_rows)
        AS a (subtask, input_rows, late_rows)
    WHERE rows_of.commit_status <> 'ABORTED' AND a.subtask <> ALL (rows_of.replaced_subtasks);
END;
