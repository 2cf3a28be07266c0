-- Whose jobs a login sees, once there are tenants. By the login and not by the role in force: nobody
-- sees more after SET ROLE.

-- Returns the tenants that the login is a member of. In PL/pgSQL, which keeps its plans.
CREATE OR REPLACE FUNCTION cairn.own_tenants() RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((
        SELECT array_agg(t.name) FROM cairn.tenants AS t
        WHERE pg_has_role(session_user, CAST(to_regrole(quote_ident(t.name)) AS oid), 'MEMBER')
    ), '{}');
END $$;

-- Returns the jobs of these tenants.
CREATE OR REPLACE FUNCTION cairn.own_jobs() RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own text[] := cairn.own_tenants();
BEGIN
    RETURN coalesce((SELECT array_agg(j.job_id) FROM cairn.jobs AS j WHERE j.tenant = ANY (own)), '{}');
END $$;

-- Tells whether the login sees the jobs of all tenants, and those of none.
CREATE OR REPLACE FUNCTION cairn.is_operator() RETURNS boolean
LANGUAGE sql STABLE
RETURN pg_has_role(session_user, CAST(to_regrole('cairn_operator') AS oid), 'MEMBER');

-- Tells whether a login sees a job. Functions ask it that read with the rights of their owner, which
-- leave it all indexes.
CREATE OR REPLACE FUNCTION cairn.is_visible(job text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM cairn.tenants)
        OR cairn.is_operator()
        OR EXISTS (
            SELECT FROM cairn.jobs AS j
            WHERE j.job_id = job AND j.tenant = ANY (cairn.own_tenants())
        );
END $$;

-- Puts the policies in force, for good: with the first tenant, and after each migration from then on.
-- Views then read with the rights of who asks, whose rows are filtered.
CREATE OR REPLACE FUNCTION cairn.separate_tenants() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    IF CAST(current_setting('server_version_num') AS integer) < 150000 THEN
        RAISE feature_not_supported USING MESSAGE = 'tenants need PostgreSQL 15 or newer';
    END IF;
    FOR one IN
        SELECT c.oid::regclass AS name, c.relkind, c.relrowsecurity
        FROM pg_class AS c
        WHERE c.relnamespace = 'cairn'::regnamespace AND c.relkind IN ('r', 'v')
    LOOP
        IF one.relkind = 'v' THEN
            EXECUTE format('ALTER VIEW %s SET (security_invoker = true)', one.name);
        ELSIF EXISTS (SELECT FROM pg_policy WHERE polrelid = one.name) THEN
            EXECUTE format(
                'GRANT SELECT ON %s TO cairn_writer, cairn_maintainer, cairn_reader', one.name
            );
            IF NOT one.relrowsecurity THEN
                EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', one.name);
            END IF;
        END IF;
    END LOOP;
END $$;
