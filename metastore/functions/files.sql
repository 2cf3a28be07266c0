-- Physical files from their write intent to their seal.

-- Records that a run is about to write files. Again: changes nothing.
CREATE OR REPLACE FUNCTION cairn.add_files(job text, run_epoch bigint, files json) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, batch_id, retry_of, materialization_id
    )
    SELECT
        f.file_id, job, run_epoch, f.path, f.scope, f.batch_id, f.retry_of, f.materialization_id
    FROM json_to_recordset(files)
        AS f (
            file_id uuid, path text, scope text, batch_id bigint, retry_of uuid,
            materialization_id uuid
        )
    ON CONFLICT (file_id) DO NOTHING;
END $$;

-- The same for a run that has begun; under the job's lock no newer run begins in between.
CREATE OR REPLACE FUNCTION cairn.intend_files(
    job text, run_epoch bigint, of_run uuid, files json
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM cairn.require_epoch(job, run_epoch, of_run, FALSE, FALSE);
    PERFORM cairn.add_files(job, run_epoch, files);
END $$;

-- Marks files whole up to their size; one that is sealed already only grows: another writer's longer
-- end must not be cut. Files of a group that commits again are sealed, which is right if they have
-- these sizes.
CREATE OR REPLACE FUNCTION cairn.seal_files(file_ids uuid[], sizes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    sealed bigint := 0;
    trimmed uuid;
    other record;
BEGIN
    -- One after the other: a join may be planned to read the whole table.
    FOR place IN 1..cardinality(file_ids) LOOP
        UPDATE cairn.physical_files AS f
        SET status = 'SEALED', size_bytes = sizes[place], sealed_at = coalesce(f.sealed_at, now())
        WHERE f.file_id = file_ids[place]
          AND (f.status = 'WRITING' OR (f.status = 'SEALED' AND f.size_bytes < sizes[place]));
        sealed := sealed + CAST(FOUND AS integer);
    END LOOP;
    IF sealed = cardinality(file_ids) THEN
        RETURN;
    END IF;
    trimmed := (
        SELECT written FROM unnest(file_ids) AS written
        WHERE NOT EXISTS (SELECT FROM cairn.physical_files AS f WHERE f.file_id = written)
        LIMIT 1
    );
    IF trimmed IS NOT NULL THEN
        PERFORM cairn.refuse_fenced(
            'physical file ' || trimmed || ' was deleted so long ago that its row was trimmed; '
            'nothing may point into it', '{}'
        );
    END IF;
    SELECT f.status, f.size_bytes, f.path, written.size_bytes AS written_bytes, j.name INTO other
    FROM unnest(file_ids, sizes) AS written (file_id, size_bytes)
    JOIN cairn.physical_files AS f ON f.file_id = written.file_id
    JOIN cairn.jobs AS j ON j.job_id = f.job_id
    WHERE (f.status, f.size_bytes) IS DISTINCT FROM ('SEALED', written.size_bytes)
    LIMIT 1;
    IF FOUND THEN
        PERFORM cairn.refuse_fenced(
            'the physical file is ' || other.status || ' with '
            || coalesce(other.size_bytes || ' bytes', 'no size') || '; nothing may point into it',
            jsonb_build_object(
                'job', other.name, 'file', other.path, 'offset', other.written_bytes
            )
        );
    END IF;
END $$;
