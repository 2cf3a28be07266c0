"""Databases of a test server: one that a test leaves is emptied for the next, which is cheaper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg2
from sqlalchemy import Connection, NullPool, Table, create_engine, make_url, text

from cairn.catalog import catalog
from cairn.catalog.migrate import head_revision
from metastore.models import Base

# A sequence keeps its number through a rollback, and takes the default rights of whoever asks.
_NOTE_CHANGES_OF_THE_SCHEMA = """
    CREATE SEQUENCE public.schema_changes;
    CREATE FUNCTION public.note_schema_change() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER AS
    $$ BEGIN PERFORM nextval('public.schema_changes'); END $$;
    CREATE EVENT TRIGGER note_schema_change ON ddl_command_end
    EXECUTE FUNCTION public.note_schema_change();
"""
_IS_CHANGED = "SELECT is_called FROM public.schema_changes"
_IS_AT = "SELECT 1 FROM cairn.alembic_version WHERE version_num = %s"
_END_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_END_WITHIN_S = 5.0
# A table without rows, of which a vacuum has freed all pages, was not written since.
_WRITTEN = """
    SELECT CAST(oid AS regclass)::text FROM pg_class
    WHERE oid = ANY (CAST(%s AS regclass[])) AND pg_relation_size(oid) > 0
"""
_TABLES = [str(table) for table in Base.metadata.sorted_tables]
_BE_ANOTHER = "DELETE FROM cairn.metastore; INSERT INTO cairn.metastore DEFAULT VALUES"


class Databases:
    """The migrated databases of one server that nobody uses just now."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._revision = head_revision()
        self._free: list[str] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """Lends the URL of a migrated database without rows."""
        url = self._free.pop() if self._free else self._create()
        yield url
        for connections in catalog._connections.values():
            connections.close()  # what their engine has compiled serves the next test
        if _is_emptied(url, self._revision):
            self._free.append(url)
        else:
            drop(url)

    @contextmanager
    def large(self) -> Iterator[str]:
        """Lends the URL of a database that is dropped: one that was large has plans of its own."""
        url = create(self._server, self._template)
        yield url
        for connections in catalog._connections.values():
            connections.close()
        drop(url)

    def _create(self) -> str:
        url = create(self._server, self._template)
        with connect(url) as connection:
            connection.exec_driver_sql(_NOTE_CHANGES_OF_THE_SCHEMA)
            # A copy of the template has its id.
            connection.exec_driver_sql(_BE_ANOTHER)
        return url


def create(server: str, template: str) -> str:
    """Returns the URL of a new database, a copy of another."""
    name = f"test_{uuid4().hex}"
    with connect(_of(server, "postgres")) as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    return _of(server, name)


def be_restored(copy: str, of: str, *, timeline: int) -> None:
    """Has a copy of a metastore say that it is the same database, on a timeline of its own."""
    with connect(of) as connection:
        database_id = connection.scalar(text("SELECT cairn.database_id()"))
    with connect(copy) as connection:
        for signature, answer in (
            ("database_id() RETURNS text", f"'{database_id}'"),
            ("timeline() RETURNS bigint", timeline),
        ):
            made = f"CREATE OR REPLACE FUNCTION cairn.{signature} LANGUAGE sql RETURN {answer}"
            connection.execute(text(made))


def drop(url: str) -> None:
    """Removes a database, whoever is connected to it."""
    with connect(_of(url, "postgres")) as connection:
        connection.execute(text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))


def connect(url: str) -> Connection:
    """Returns a connection that commits each statement."""
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()


def _is_emptied(url: str, revision: str) -> bool:
    """Removes all rows, unless a test changed the schema: then no other gets the database."""
    # Not by SQLAlchemy, which first asks a server what it is: this is done after every test.
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _end_others(cursor)
        # First: a changed schema may lack the table of revisions.
        cursor.execute(_IS_CHANGED)
        if cursor.fetchall() != [(False,)]:
            return False
        cursor.execute(_IS_AT, [revision])
        if not cursor.fetchall():
            return False
        cursor.execute(_WRITTEN, [_TABLES])
        written = [name for (name,) in cursor.fetchall()]
        # Without triggers, which guard the rows and the references between them.
        emptied = [f"DELETE FROM {table}" for table in written]  # noqa: S608 - fixed
        cursor.execute("; ".join(["SET session_replication_role = replica", *emptied, _BE_ANOTHER]))
        # So that the next test's rows are in the order in which it adds them.
        if written:
            cursor.execute(f"VACUUM (SKIP_DATABASE_STATS) {', '.join(written)}")
    return True


def _end_others(cursor: Any) -> None:
    """Ends all other connections to a database, and returns when they are gone."""
    give_up_s = time.monotonic() + _END_WITHIN_S
    while True:
        cursor.execute(_END_OTHERS)
        if cursor.fetchone() == (0,):
            return
        # Not in PostgreSQL, which looks each 100 ms.
        assert time.monotonic() < give_up_s, "a connection does not end"
        time.sleep(0.001)


def _of(server: str, database: str) -> str:
    return make_url(server).set(database=database).render_as_string(hide_password=False)


def copy_rows(source_url: str, target_url: str) -> None:
    """Makes the rows of a metastore those of another one, as restoring a backup does."""
    with connect(source_url) as source, connect(target_url) as target:
        target.execute(text("SET session_replication_role = replica"))
        for table in Base.metadata.sorted_tables:
            target.execute(table.delete())
            read = text(f"SELECT CAST(to_jsonb(t) AS text) FROM {table} AS t")  # noqa: S608
            columns = stored_columns(table)
            write = text(
                f"INSERT INTO {table} ({columns})"  # noqa: S608
                f" SELECT {columns} FROM unnest(CAST(:rows AS text[])) AS one,"
                f" jsonb_populate_record(CAST(NULL AS {table}), CAST(one AS jsonb))"
            )
            target.execute(write, {"rows": list(source.scalars(read))})


def stored_columns(table: Table) -> str:
    """Returns the names of a table's columns that are not computed from others."""
    return ", ".join(column.name for column in table.columns if column.computed is None)
