-- What a login sees and changes of each table, once there are tenants (functions/access.sql). Both
-- conditions are found once per statement, and leave the indexes that begin with a job's id in use.
DO $$
DECLARE
    one record;
    condition text;
BEGIN
    FOR one IN
        SELECT c.oid::regclass AS name, c.relname
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'job_id'
        WHERE c.relnamespace = 'cairn'::regnamespace AND c.relkind = 'r'
    LOOP
        condition := CASE one.relname
            WHEN 'jobs' THEN 'tenant = ANY (CAST((SELECT cairn.own_tenants()) AS text[]))'
            ELSE 'job_id = ANY (CAST((SELECT cairn.own_jobs()) AS text[]))'
        END;
        EXECUTE format('DROP POLICY IF EXISTS own_jobs ON %s', one.name);
        EXECUTE format(
            'CREATE POLICY own_jobs ON %s USING ((SELECT cairn.is_operator()) OR %s)',
            one.name, condition
        );
    END LOOP;
    IF EXISTS (SELECT FROM cairn.tenants) THEN
        PERFORM cairn.separate_tenants();
    END IF;
END $$;
