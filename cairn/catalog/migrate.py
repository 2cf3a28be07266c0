"""Bringing a metastore's schema up to date, and refusing one that is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script, ScriptDirectory
from psycopg2.errors import InsufficientPrivilege, LockNotAvailable
from sqlalchemy import Connection, NullPool, func, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from cairn.catalog.catalog import Catalog, server_message
from cairn.catalog.connections import new_engine
from cairn.catalog.embedded import masked
from cairn.errors import BadInputError, MetastoreError, RefusedError
from metastore.definitions import install_definitions
from metastore.models import SCHEMA

_ADVISORY_LOCK = 0x636169726E
_WAIT_FOR_OTHERS_MS = 120_000
_TABLE_LOCK_MS = 5000
_STATEMENT_MS = 600_000
_LONG_WAIT_S = 1.0

_log = logging.getLogger(__name__)


def migrate(catalog: Catalog) -> list[str]:
    """Applies the revisions that are missing, all in one transaction, and returns their ids.

    With them, triggers, views and roles become what their files say. Two processes never migrate
    at once: the later one waits and then finds nothing to do.

    Raises:
        RefusedError: the schema's revision is unknown, or this user may not make the schema or a
            role that is missing.
        MetastoreError: Postgres cannot be reached, or a lock was not had in time.
    """
    applied: list[str] = []

    def note(*, step: MigrationInfo, **_: object) -> None:
        applied.extend(step.up_revision_ids)

    # A newer Cairn's schema is left alone: Alembic would take it for broken.
    _refuse_unknown(current_revision(catalog), catalog)
    with _alone(catalog.url) as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        config.attributes["on_version_apply"] = note
        command.upgrade(config, "head")
        # In the migration's transaction: no reader meets new tables with old views.
        if applied:
            install_definitions(connection)
    return applied


def current_revision(catalog: Catalog) -> str | None:
    """Returns the revision of the schema; None where there is none yet."""
    return catalog.run("reading the metastore's revision", _revision_of)


def head_revision() -> str:
    """Returns the revision that this Cairn works with."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise RefusedError("this installation of Cairn has no migrations; install it again")
    return head


def require_current(catalog: Catalog) -> None:
    """Checks that the schema is the one this Cairn works with.

    Raises:
        RefusedError: it is older, newer or not there; says which and what to do.
    """
    found = current_revision(catalog)
    _refuse_unknown(found, catalog)
    if found != head_revision():
        raise RefusedError(
            f"the metastore {masked(catalog.url)} is at revision {found or 'none'}, this Cairn "
            f"needs {head_revision()}: run `cairn db migrate`"
        )


def draft_revision(catalog: Catalog, message: str) -> Path:
    """Writes the difference between the models and a current metastore as a new revision's draft.

    For developers: returns the draft's path in `metastore/migrations/versions`, to be edited.
    """
    require_current(catalog)
    config = alembic_config()
    number = f"{int(head_revision()) + 1:04d}"
    with catalog.begin() as connection:
        config.attributes["connection"] = connection
        drafted = command.revision(config, message, autogenerate=True, rev_id=number)
    if not isinstance(drafted, Script):
        raise BadInputError(f"Alembic drafted no single revision for {message!r}")
    return Path(drafted.path)


def alembic_config() -> Config:
    """Returns the Alembic configuration; `attributes` takes what `migrations/env.py` needs."""
    config = Config()
    config.set_main_option("script_location", str(files("metastore") / "migrations"))
    config.set_main_option(
        "file_template",
        "%%(year)d%%(month).2d%%(day).2d_%%(hour).2d%%(minute).2d_%%(rev)s_%%(slug)s",
    )
    config.set_main_option("timezone", "UTC")
    return config


@contextmanager
def _alone(url: str) -> Iterator[Connection]:
    """Yields a transaction of its own that holds the migration lock; in it, the schema exists."""
    engine = new_engine(make_url(url), _STATEMENT_MS, poolclass=NullPool)
    with _errors_explained(url), engine.begin() as connection:
        _set_lock_timeout(connection, _WAIT_FOR_OTHERS_MS)
        began_s = time.monotonic()
        # An advisory lock: before the first migration there is no table to lock.
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        if (waited_s := time.monotonic() - began_s) > _LONG_WAIT_S:
            facts = {"waited_s": waited_s}
            _log.warning("waited %.1f s for another migration", waited_s, extra=facts)
        # Short from here on: whoever waits for a table's lock holds up all who come after.
        _set_lock_timeout(connection, _TABLE_LOCK_MS)
        if connection.scalar(select(func.to_regnamespace(SCHEMA))) is None:
            connection.execute(CreateSchema(SCHEMA))
        yield connection


def _set_lock_timeout(connection: Connection, timeout_ms: int) -> None:
    connection.execute(select(func.set_config("lock_timeout", str(timeout_ms), True)))


@contextmanager
def _errors_explained(url: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, LockNotAvailable):
            raise MetastoreError(
                f"migrating {masked(url)}: a lock was not had in time; another migration or a "
                "long transaction holds it. See pg_stat_activity, then run `cairn db migrate` again"
            ) from error
        if isinstance(error.orig, InsufficientPrivilege):
            raise RefusedError(f"migrating {masked(url)}: {server_message(error)}") from error
        raise


def _revision_of(connection: Connection) -> str | None:
    options = {"version_table_schema": SCHEMA}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _refuse_unknown(found: str | None, catalog: Catalog) -> None:
    known = {s.revision for s in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if found is not None and found not in known:
        raise RefusedError(
            f"the metastore {masked(catalog.url)} is at revision {found}, which this Cairn (up to "
            f"{head_revision()}) does not know: upgrade Cairn, or use a new metastore if Cairn "
            "was not released yet when this one was made"
        )
