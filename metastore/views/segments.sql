-- Grain: one row per segment: placed ones, and those that are packed in group commits.
-- Columns: segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes,
--   sha256 (hex), entries, first_checkpoint, as_of_checkpoint, sequence_number,
--   released_checkpoint, status, created_at. Part of checkpoint c iff first_checkpoint <= c and
--   (released_checkpoint is null or c < released_checkpoint). The segments of a group commit die
--   together.
-- Read by: people, and code that looks at few segments.
CREATE OR REPLACE VIEW cairn.segments AS
SELECT
    segment_id,
    job_id,
    file_id,
    CAST(kind AS text) AS kind,
    subtask,
    key_groups,
    offset_bytes,
    size_bytes,
    sha256,
    entries,
    first_checkpoint,
    as_of_checkpoint,
    sequence_number,
    released_checkpoint,
    CAST(status AS text) AS status,
    created_at
FROM cairn.placed_segments
UNION ALL
SELECT
    s.segment_id,
    c.job_id,
    c.file_id,
    coalesce(s.kind, 'changelog'),
    CAST(s.subtask AS bigint),
    cairn.key_groups_of(s.subtask, c.parallelism, c.max_parallelism),
    s.offset_bytes,
    s.size_bytes,
    encode(substring(c.sha256s FROM CAST(s.place AS integer) * 32 - 31 FOR 32), 'hex'),
    CAST(s.entries AS bigint),
    c.checkpoint_id,
    c.checkpoint_id,
    coalesce(s.sequence_number, CAST(0 AS smallint)),
    CASE
        WHEN c.status = 'ABORTED' OR s.subtask = ANY (c.replaced_subtasks) THEN c.checkpoint_id
        WHEN s.kind IN ('operator', 'channel') THEN c.checkpoint_id + 1
        ELSE cairn.released_at(
            c.job_id,
            int4multirange(cairn.key_groups_of(s.subtask, c.parallelism, c.max_parallelism)),
            c.checkpoint_id
        )
    END,
    CASE WHEN c.status = 'LIVE' AND s.subtask <> ALL (c.replaced_subtasks) THEN 'LIVE' ELSE 'DEAD' END,
    c.acked_at
FROM cairn.group_commits AS c
CROSS JOIN LATERAL unnest(
    c.segment_ids, c.segment_subtasks, c.segment_kinds, c.sequence_numbers, c.offsets_bytes,
    c.sizes_bytes, c.entries
) WITH ORDINALITY AS s (
    segment_id, subtask, kind, sequence_number, offset_bytes, size_bytes, entries, place
);

COMMENT ON VIEW cairn.segments IS
    'One row per segment, whether it is placed alone or packed in a group commit.';
