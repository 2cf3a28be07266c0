-- Live counters of a file follow its segments; files.sql refuses all other changes of them.
-- Files are updated in the order of their ids, so that two transactions do not deadlock.

-- Returns how much of a file is dead once so many of its segments die. Nothing changes where none is
-- left: such a file is condemned whole, and never in the index of wasteful ones.
CREATE OR REPLACE FUNCTION cairn.dead_bytes_of(
    file cairn.physical_files, segments bigint, bytes numeric
) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN file.live_segments > segments
        THEN greatest(coalesce(file.size_bytes, 0) - file.live_bytes + CAST(bytes AS bigint), 0)
    ELSE file.dead_bytes
END;

CREATE OR REPLACE FUNCTION cairn.count_placed_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    file record;
BEGIN
    FOR file IN
        SELECT file_id, job_id, count(*) AS segments, sum(size_bytes) AS bytes
        FROM new_rows GROUP BY file_id, job_id ORDER BY file_id
    LOOP
        UPDATE cairn.physical_files
        SET live_segments = live_segments + file.segments, live_bytes = live_bytes + file.bytes
        WHERE file_id = file.file_id AND job_id = file.job_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
                'placed_segments: segments are in a file of their own job [job id ' || file.job_id
                || ', file id ' || file.file_id || ']';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION cairn.count_dead_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    file record;
BEGIN
    FOR file IN
        SELECT new_rows.file_id, count(*) AS segments, sum(new_rows.size_bytes) AS bytes
        FROM new_rows JOIN old_rows USING (segment_id)
        WHERE old_rows.status = 'LIVE' AND new_rows.status = 'DEAD'
        GROUP BY new_rows.file_id ORDER BY new_rows.file_id
    LOOP
        UPDATE cairn.physical_files AS f
        SET
            live_segments = live_segments - file.segments,
            live_bytes = live_bytes - file.bytes,
            dead_bytes = cairn.dead_bytes_of(f, file.segments, file.bytes)
        WHERE file_id = file.file_id;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER count_new AFTER INSERT ON cairn.placed_segments
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.count_placed_segments();

CREATE OR REPLACE TRIGGER count_dead AFTER UPDATE ON cairn.placed_segments
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.count_dead_segments();

-- Of a group commit those count that no later attempt has replaced, until it dies whole; its insert
-- is counted in group_commits.sql.
CREATE OR REPLACE FUNCTION cairn.count_lost_segments() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    file record;
BEGIN
    FOR file IN
        SELECT before.file_id, count(*) AS segments, sum(s.size_bytes) AS bytes
        FROM old_rows AS before
        JOIN new_rows AS after USING (commit_id)
        CROSS JOIN LATERAL unnest(before.segment_subtasks, before.sizes_bytes)
            AS s (subtask, size_bytes)
        WHERE before.status = 'LIVE'
          AND s.subtask <> ALL (before.replaced_subtasks)
          AND (after.status <> 'LIVE' OR s.subtask = ANY (after.replaced_subtasks))
        GROUP BY before.file_id ORDER BY before.file_id
    LOOP
        UPDATE cairn.physical_files AS f
        SET
            live_segments = live_segments - file.segments,
            live_bytes = live_bytes - file.bytes,
            dead_bytes = cairn.dead_bytes_of(f, file.segments, file.bytes)
        WHERE file_id = file.file_id;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER count_lost AFTER UPDATE ON cairn.group_commits
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.count_lost_segments();
