-- What keeps an object in storage that a sweep has found. The one definition: the sweep asks it, asks
-- it again under the job's lock, and triggers ask it once more.

-- Returns in words why the metastore keeps what lies at a path of a job, or an unfinished upload to
-- that path; null: nothing does. A path is used once, so a row that is DELETED keeps nothing. But a
-- manifest's path is not random: while its checkpoint may get one, whatever lies there stays.
CREATE OR REPLACE FUNCTION cairn.keeper_of(job text, object_path text, is_upload boolean)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found text := (
        SELECT f.status FROM cairn.physical_files AS f WHERE f.job_id = job AND f.path = object_path
    );
    -- As numeric: a name may have more digits than an id.
    checkpoint numeric := CAST(
        substring(object_path FROM '^[^/]+/chk-([0-9]{1,19})/_metadata$') AS numeric
    );
BEGIN
    -- Of an upload only its own intent: once that is sealed, another request has won.
    IF found = 'WRITING' OR (found IN ('SEALED', 'CONDEMNED') AND NOT is_upload) THEN
        RETURN 'its row is ' || found;
    END IF;
    IF EXISTS (
        SELECT FROM cairn.checkpoints AS c
        WHERE c.job_id = job
          AND c.checkpoint_id = CAST(least(checkpoint, 9223372036854775807) AS bigint)
          AND c.status IN ('IN_PROGRESS', 'COMPLETED', 'CONFIRMED')
    ) THEN
        RETURN 'checkpoint ' || checkpoint || ' is retained, and may get a manifest';
    END IF;
    IF EXISTS (
        SELECT FROM cairn.jobs AS j WHERE j.job_id = job AND j.next_checkpoint_id <= checkpoint
    ) THEN
        RETURN 'checkpoint ' || checkpoint || ' is one to come';
    END IF;
    RETURN NULL;
END $$;
