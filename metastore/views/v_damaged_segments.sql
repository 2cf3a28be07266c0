-- Grain: one row per segment that was found damaged, that is LIVE, and that was not found whole since.
-- Columns: job_id, job_name, segment_id, file_id, path (key below the job's storage), offset_bytes and
--   size_bytes (where in the file), damage (missing, short or corrupt), kind, subtask, key_groups,
--   as_of_checkpoint, found_at, seen_at (when it was read last and found so), checkpoints (those not
--   subsumed or aborted that need it), manifests (URLs of the manifests of these), is_needed_by_next
--   (whether checkpoints to come need it, until another base replaces it), heals_from (of a base or an
--   increment: the newest confirmed checkpoint from whose segments, none of them damaged, and the changelog since
--   it can be made again; null: from none).
-- Read by: `cairn scrub`, `cairn checkpoints`, metrics, and people who ask what a lost object costs.
CREATE OR REPLACE VIEW cairn.v_damaged_segments AS
WITH damaged AS MATERIALIZED (
    SELECT
        d.job_id,
        d.segment_id,
        d.file_id,
        d.damage,
        d.found_at,
        d.seen_at,
        s.kind,
        s.subtask,
        s.key_groups,
        s.offset_bytes,
        s.size_bytes,
        s.first_checkpoint,
        s.as_of_checkpoint,
        s.released_checkpoint
    FROM cairn.damaged_segments AS d
    -- By the file, of which there is an index: the view `segments` would unpack all commits.
    CROSS JOIN LATERAL (
        SELECT
            CAST(p.kind AS text) AS kind, p.subtask, p.key_groups, p.offset_bytes, p.size_bytes,
            p.first_checkpoint, p.as_of_checkpoint, p.released_checkpoint
        FROM cairn.placed_segments AS p
        WHERE p.segment_id = d.segment_id AND p.file_id = d.file_id AND p.status = 'LIVE'
        UNION ALL
        SELECT
            coalesce(one.kind, 'changelog'), CAST(one.subtask AS bigint), g.key_groups,
            one.offset_bytes, one.size_bytes, c.checkpoint_id, c.checkpoint_id,
            CASE
                WHEN one.kind IN ('operator', 'channel') THEN c.checkpoint_id + 1
                ELSE cairn.released_at(c.job_id, int4multirange(g.key_groups), c.checkpoint_id)
            END
        FROM cairn.group_commits AS c
        CROSS JOIN LATERAL unnest(
            c.segment_ids, c.segment_subtasks, c.segment_kinds, c.offsets_bytes, c.sizes_bytes
        ) AS one (segment_id, subtask, kind, offset_bytes, size_bytes)
        CROSS JOIN LATERAL cairn.key_groups_of(one.subtask, c.parallelism, c.max_parallelism)
            AS g (key_groups)
        WHERE c.file_id = d.file_id
          AND c.status = 'LIVE'
          AND one.segment_id = d.segment_id
          AND one.subtask <> ALL (c.replaced_subtasks)
    ) AS s
    WHERE d.resolved_at IS NULL
)
SELECT
    d.job_id,
    j.name AS job_name,
    d.segment_id,
    d.file_id,
    f.path,
    d.offset_bytes,
    d.size_bytes,
    d.damage,
    d.kind,
    d.subtask,
    d.key_groups,
    d.as_of_checkpoint,
    d.found_at,
    d.seen_at,
    n.checkpoints,
    n.manifests,
    d.released_checkpoint IS NULL AS is_needed_by_next,
    (
        SELECT max(c.checkpoint_id)
        FROM cairn.checkpoints AS c
        WHERE c.job_id = d.job_id
          AND c.status = 'CONFIRMED'
          AND d.kind IN ('keyed_full', 'keyed_increment')
          -- It has the state as of then by older bases and changelog.
          AND c.checkpoint_id >= d.as_of_checkpoint
          AND c.checkpoint_id < d.first_checkpoint
          AND NOT EXISTS (
            SELECT FROM damaged AS other
            WHERE other.job_id = d.job_id
              AND other.kind IN ('changelog', 'keyed_full', 'keyed_increment')
              AND other.key_groups && d.key_groups
              AND cairn.is_part_of(
                other.first_checkpoint, other.released_checkpoint, c.checkpoint_id
              )
          )
    ) AS heals_from
FROM damaged AS d
JOIN cairn.jobs AS j ON j.job_id = d.job_id
JOIN cairn.physical_files AS f ON f.file_id = d.file_id
CROSS JOIN LATERAL (
    SELECT
        coalesce(array_agg(c.checkpoint_id ORDER BY c.checkpoint_id), '{}') AS checkpoints,
        coalesce(
            array_agg(j.storage || '/' || m.path ORDER BY c.checkpoint_id)
                FILTER (WHERE m.path IS NOT NULL),
            '{}'
        ) AS manifests
    FROM cairn.checkpoints AS c
    LEFT JOIN LATERAL (
        SELECT physical_files.path
        FROM cairn.placed_segments AS p
        JOIN cairn.physical_files ON physical_files.file_id = p.file_id
        WHERE p.job_id = c.job_id
          AND p.first_checkpoint = c.checkpoint_id
          AND p.kind = 'manifest'
          AND p.status = 'LIVE'
        LIMIT 1
    ) AS m ON TRUE
    WHERE c.job_id = d.job_id
      AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
      AND cairn.is_part_of(d.first_checkpoint, d.released_checkpoint, c.checkpoint_id)
) AS n;

COMMENT ON VIEW cairn.v_damaged_segments IS
    'One row per damaged segment that checkpoints need: which ones, their manifests, and from what it '
    'can be made again.';
