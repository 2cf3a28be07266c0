-- Whether two files are of requests for the same bytes: one is the other's first request, or both
-- have the same first one. A plain expression, so the indexes on both columns serve.
CREATE OR REPLACE FUNCTION cairn.is_same_upload(
    file_id uuid, retry_of uuid, other_file_id uuid, other_retry_of uuid
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN other_file_id = retry_of OR other_retry_of = coalesce(retry_of, file_id);
