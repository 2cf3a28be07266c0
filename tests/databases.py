"""Databases of a test server: one that a test leaves is emptied for the next, which is cheaper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

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
_IS_AT = "SELECT 1 FROM cairn.alembic_version WHERE version_num = :head"
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_REMOVE_ROWS = "; ".join(str(table.delete()) for table in Base.metadata.sorted_tables)
_BE_ANOTHER = "DELETE FROM cairn.metastore; INSERT INTO cairn.metastore DEFAULT VALUES"
_FREE_PAGES = "VACUUM (SKIP_DATABASE_STATS) " + ", ".join(map(str, Base.metadata.sorted_tables))


class Databases:
    """The migrated databases of one server that nobody uses just now."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """Lends the URL of a migrated database without rows."""
        url = self._free.pop() if self._free else self._create()
        yield url
        for connections in catalog._connections.values():
            connections.close()  # what their engine has compiled serves the next test
        if _is_emptied(url):
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


def _is_emptied(url: str) -> bool:
    """Removes all rows, unless a test changed the schema: then no other gets the database."""
    with connect(url) as connection:
        connection.execute(text(_END_OTHERS))
        # First: a changed schema may lack the table of revisions.
        if connection.scalar(text(_IS_CHANGED)):
            return False
        if not connection.scalar(text(_IS_AT), {"head": head_revision()}):
            return False
        # Without triggers, which guard the rows and the references between them.
        connection.execute(text("SET session_replication_role = replica"))
        connection.exec_driver_sql(_REMOVE_ROWS)
        connection.exec_driver_sql(_BE_ANOTHER)
        # So that the next test's rows are in the order in which it adds them.
        connection.exec_driver_sql(_FREE_PAGES)
    return True


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
