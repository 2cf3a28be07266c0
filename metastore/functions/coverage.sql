-- What bases and increments have made unnecessary. A changelog of checkpoint c is released in a key
-- group from the first checkpoint on that has a base or an increment of it as of c or later
-- (FLIP-158). So releasing costs one row, and no changelog has to be found and changed.

-- Returns, for the state of a checkpoint (null: of those to come), up to which checkpoint its bases
-- and increments replace the changelog: one number for each key group g, at place g + 1.
CREATE OR REPLACE FUNCTION cairn.covered_until(job text, checkpoint_id bigint) RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
COST 10000
RETURN (
    SELECT array_agg(covered.as_of_checkpoint ORDER BY covered.key_group)
    FROM (
        SELECT
            g.key_group,
            coalesce(max(b.as_of_checkpoint), 0) AS as_of_checkpoint
        FROM cairn.jobs AS j
        CROSS JOIN LATERAL generate_series(0, j.max_parallelism - 1) AS g (key_group)
        LEFT JOIN (
            SELECT
                generate_series(lower(s.key_groups), upper(s.key_groups) - 1) AS key_group,
                s.as_of_checkpoint
            FROM cairn.placed_segments AS s
            WHERE s.job_id = job
              AND s.status = 'LIVE'
              AND s.kind IN ('keyed_full', 'keyed_increment')
              AND (
                covered_until.checkpoint_id IS NULL
                OR s.first_checkpoint <= covered_until.checkpoint_id
            )
        ) AS b ON b.key_group = g.key_group
        WHERE j.job_id = job AND cairn.is_visible(job)
        GROUP BY g.key_group
    ) AS covered
);

-- Whether all changelog of a checkpoint in these key groups is replaced.
CREATE OR REPLACE FUNCTION cairn.is_covered(
    key_groups int4multirange, checkpoint_id bigint, covered_until bigint[]
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one int4range;
BEGIN
    FOR one IN SELECT unnest(key_groups) LOOP
        IF checkpoint_id > ANY (covered_until[lower(one) + 1:upper(one)]) THEN
            RETURN FALSE;
        END IF;
    END LOOP;
    RETURN TRUE;
END $$;

-- Whether a group commit of a checkpoint is needed by a checkpoint that is as old or newer.
CREATE OR REPLACE FUNCTION cairn.is_needed_by(
    made_in bigint, key_groups int4multirange, checkpoint_id bigint, covered_until bigint[]
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN made_in = checkpoint_id
    OR NOT cairn.is_covered(key_groups, made_in, covered_until);

-- Returns the checkpoint from which on the changelog of a checkpoint in these key groups is not
-- needed; null if there is none yet.
CREATE OR REPLACE FUNCTION cairn.released_at(
    job text, changed_groups int4multirange, made_in bigint
) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN changed_groups = '{}' THEN made_in + 1 ELSE (
    SELECT min(b.first_checkpoint)
    FROM (
        SELECT
            s.first_checkpoint,
            range_agg(s.key_groups) OVER (ORDER BY s.first_checkpoint) AS covered
        FROM cairn.placed_segments AS s
        WHERE s.job_id = job
          AND cairn.is_visible(job)
          AND s.status = 'LIVE'
          AND s.kind IN ('keyed_full', 'keyed_increment')
          AND s.as_of_checkpoint >= made_in
          AND s.key_groups && changed_groups
    ) AS b
    WHERE b.covered @> changed_groups
) END;

-- Returns the key groups of a subtask: [ceil(i*K/P), ceil((i+1)*K/P)) (cairn/keygroups.py).
CREATE OR REPLACE FUNCTION cairn.key_groups_of(
    subtask integer, parallelism integer, max_parallelism integer
) RETURNS int4range
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int4range(
    CAST(
        (CAST(subtask AS bigint) * max_parallelism + parallelism - 1) / parallelism AS integer
    ),
    CAST(
        (CAST(subtask + 1 AS bigint) * max_parallelism + parallelism - 1) / parallelism AS integer
    )
);
