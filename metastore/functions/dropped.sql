-- Whether a job was dropped: then its files and rows go, step by step, until its own row does.
CREATE OR REPLACE FUNCTION cairn.is_dropped(job text) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM cairn.jobs WHERE jobs.job_id = is_dropped.job AND jobs.dropped_at IS NOT NULL
);
