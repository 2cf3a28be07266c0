-- Which checkpoints a segment is part of, and whether one of them needs it. Both are plain
-- expressions, so the server puts them into the query that calls them and its indexes serve.
CREATE OR REPLACE FUNCTION cairn.is_part_of(
    first_checkpoint bigint, released_checkpoint bigint, checkpoint_id bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN first_checkpoint <= checkpoint_id
    AND (released_checkpoint IS NULL OR checkpoint_id < released_checkpoint);

-- A segment that is not released is needed by checkpoints to come. The checkpoints are one
-- multirange: it is searched, where a join would compare every segment with every checkpoint.
CREATE OR REPLACE FUNCTION cairn.is_needed(
    first_checkpoint bigint, released_checkpoint bigint, checkpoints int8multirange
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN released_checkpoint IS NULL
    OR int8range(first_checkpoint, released_checkpoint) && checkpoints;
