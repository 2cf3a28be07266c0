-- Who this database is. Both are the same for every role, through a pooler too.

-- Returns the id of this database: the server's, that of the database in it, and that of the table
-- with the metastore's id. A dump that is restored has another one, wherever that is, and so has
-- CREATE DATABASE ... TEMPLATE; a base backup, a standby and a copied data directory have the same.
CREATE OR REPLACE FUNCTION cairn.database_id() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    server text := 'unknown';
BEGIN
    IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        server := (SELECT system_identifier FROM pg_control_system());
    END IF;
    RETURN concat_ws(
        '-', server,
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        CAST(CAST('cairn.metastore' AS regclass) AS oid)
    );
END $$;

-- Returns the timeline of this server: another one after a failover and a point-in-time recovery.
-- Not as of the last checkpoint of the server, which may be from before its promotion.
CREATE OR REPLACE FUNCTION cairn.timeline() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT timeline_id FROM pg_control_checkpoint());
    END IF;
    RETURN CAST(
        CAST('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS bit(32)) AS bigint
    );
END $$;
