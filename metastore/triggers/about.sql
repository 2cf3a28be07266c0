-- What the other guards add to a refusal: which row it is about.
CREATE OR REPLACE FUNCTION cairn.about(row_ jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(replace(key, '_', ' ') || ' ' || value, ', ' ORDER BY key)
    FROM jsonb_each_text(row_)
    WHERE value IS NOT NULL
      AND key IN ('job_id', 'epoch', 'checkpoint_id', 'subtask', 'file_id', 'path',
                  'segment_id', 'state_id', 'maintenance_run_id', 'metastore_id', 'generation')
$$;
