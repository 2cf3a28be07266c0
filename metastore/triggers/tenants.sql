-- Tenants: the first one puts the policies in force, and a job is of the tenant who makes it.
CREATE OR REPLACE FUNCTION cairn.begin_separation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text := (SELECT min(name) FROM new_rows WHERE to_regrole(quote_ident(name)) IS NULL);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CA002', MESSAGE =
            'tenants: a tenant has the name of a role, and there is no role ' || unknown;
    END IF;
    PERFORM cairn.separate_tenants();
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER begin_separation AFTER INSERT ON cairn.tenants
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION cairn.begin_separation();

-- Of a login of several tenants the job has to say which: then the policy refuses none.
CREATE OR REPLACE FUNCTION cairn.name_tenant() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own text[] := cairn.own_tenants();
BEGIN
    IF cardinality(own) = 1 AND NOT cairn.is_operator() THEN
        NEW.tenant := own[1];
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER name_tenant BEFORE INSERT ON cairn.jobs FOR EACH ROW
WHEN (NEW.tenant IS NULL)
EXECUTE FUNCTION cairn.name_tenant();
