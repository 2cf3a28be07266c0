"""What `metastore=` accepts: an SQLAlchemy URL, or a directory with a PostgreSQL of its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from cairn.errors import BadInputError

EMBEDDED_PREFIX = "embedded:"
"""The prefix of a metastore that is a directory."""

_FORMS = "postgresql://user@host:5432/database, postgresql+psycopg2://… or embedded:<directory>"


def resolve_url(metastore: str) -> str:
    """Returns the SQLAlchemy URL of a metastore, after starting it if it is an embedded one.

    Any number of processes may call it at once on the same directory; one starts the server, all
    join it. The server outlives them, in a session of its own, until `stop`.

    Raises:
        BadInputError: the form is not known, or the embedded server is not installed.
        MetastoreError: the embedded server did not start; the message ends with its log.
        StorageError: another process has been starting or stopping it for too long.
    """
    scheme, _, rest = metastore.partition(":")
    if metastore.startswith(EMBEDDED_PREFIX) and rest:
        return str(_server().start(Path(rest).expanduser().resolve()))
    if scheme not in ("postgresql", "postgresql+psycopg2"):
        raise BadInputError(f"not a metastore: {_shown(metastore)!r}. Forms: {_FORMS}")
    try:
        url = make_url(metastore)
    except (ArgumentError, ValueError) as error:
        raise BadInputError(
            f"not a metastore URL: {_shown(metastore)!r}. Forms: {_FORMS}"
        ) from error
    if not url.database:
        raise BadInputError(f"the metastore's URL names no database: {masked(metastore)!r}")
    # With the password: this one connects. Messages use `masked`.
    return url.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def stop(metastore: str) -> None:
    """Stops the server of `embedded:<directory>` and waits for it; does nothing if it is down."""
    if not metastore.startswith(EMBEDDED_PREFIX):
        raise BadInputError(f"only embedded:<directory> can be stopped, not {_shown(metastore)}")
    _server().stop(Path(metastore.removeprefix(EMBEDDED_PREFIX)).expanduser().resolve())


def masked(url: str) -> str:
    """Returns a metastore URL fit for messages: every password in it is `***`."""
    parsed = make_url(url)
    hidden = {key: "***" for key in parsed.query if "password" in key.lower()}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _shown(metastore: str) -> str:
    """Returns text that may be a mistyped URL without the password in it."""
    start, at, rest = metastore.rpartition("@")
    return f"{start.partition('://')[0]}://***@{rest}" if at else metastore


def _server() -> ModuleType:
    try:
        from cairn.catalog import embedded_server  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"embedded:… needs {error.name}: pip install 'cairn-streaming[embedded]', or give the "
            "URL of a PostgreSQL server"
        ) from error
    return embedded_server
