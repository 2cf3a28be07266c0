"""The catalog: a few connections per process, and transactions that are retried."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from cairn.catalog.connections import Connections, new_engine
from cairn.catalog.embedded import masked, resolve_url
from cairn.errors import BadInputError, FencedError, MetastoreError, RefusedError

T = TypeVar("T")

_log = logging.getLogger(__name__)

METASTORE_VARIABLE = "CAIRN_METASTORE"
"""Environment variable that names the metastore; takes the forms of `cairn.Job(metastore=…)`."""

GUARD_CLASS = "CA"
"""SQLSTATE class of the metastore's own guards."""

_FENCED = "CA008"

_FIRST_DELAY_MS = 50
_LONGEST_DELAY_MS = 2000

# By SQLSTATE: admin and crash shutdown, starting up, too many connections, serialization failure,
# deadlock, lock timeout, statement timeout. Class 08 is a broken connection.
_TRANSIENT = {"57P01", "57P02", "57P03", "53300", "40001", "40P01", "55P03", "57014"}

# By SQLSTATE or its class: invalid authorization, no such database, no right to do it.
_HOPELESS = ("28", "3D000", "42501")

# Of a failed connect: libpq gives no SQLSTATE.
_HOPELESS_TEXTS = (
    "authentication failed",
    "certificate verify failed",
    "does not exist",  # a role, a database, a file with a certificate
    "invalid dsn",
    "is not permitted to log in",
    "no password supplied",
    "no pg_hba.conf entry",
    "no such database",
    "permission denied for database",
    "SSL was required",
    "unsupported startup parameter",
)

_connections: dict[tuple[int, Catalog], Connections] = {}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The metastore as transactions reach it: where it is, and how long to keep trying.

    A plain value that is sent to tasks and processes. Each process opens connections of its own
    when it needs one, and closes them some seconds after their last use; those of a parent are
    never used in a forked child. No statement runs longer
    than `timeout_ms`.
    """

    url: str = field(repr=False)
    timeout_ms: int = 60_000

    def run(self, what: str, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one READ COMMITTED transaction, commits it and returns its result.

        `work` must be idempotent: after a lost connection, a deadlock or a server that is
        restarting it runs again, and a commit whose answer was lost is run again too. Retries
        follow 50 ms to 2 s apart, until `timeout_ms` since the first failure. `what` names the
        work in messages, such as "acknowledging batch 7".

        Raises:
            MetastoreError: Postgres did not do it within `timeout_ms` of the first failure.
            BadInputError: Postgres refuses this user, database or parameter, or the user lacks a
                right; waiting would not help.
            FencedError, RefusedError: a guard of the metastore refused the change.
            sqlalchemy.exc.SQLAlchemyError: any other error, untouched.
        """
        return self._run(what, work, each=False)

    def run_each(self, what: str, work: Callable[[Connection], T]) -> T:
        """The same, but every `cairn.catalog.connections.call` of `work` is one transaction.

        Such a transaction costs one round trip.
        """
        return self._run(what, work, each=True)

    def _run(self, what: str, work: Callable[[Connection], T], *, each: bool) -> T:
        failed_at: float | None = None
        delay_ms = _FIRST_DELAY_MS
        while True:
            try:
                with self._connections().begin(each=each) as connection:
                    return work(connection)
            except DBAPIError as error:
                # Also where the commit failed: `work` is idempotent, so it may run again.
                _raise_unless_transient(error, self.url, what)
                now = time.monotonic()
                # Since the first failure, not the start: work that takes long has not failed yet.
                failed_at = now if failed_at is None else failed_at
                left_ms = self.timeout_ms - (now - failed_at) * 1000
                if left_ms <= 0:
                    raise self._gave_up(error, what) from error
                _warn_of_retry(what, error, failed_for_ms=self.timeout_ms - left_ms)
            time.sleep(min(delay_ms, left_ms) / 1000)
            delay_ms = min(delay_ms * 2, _LONGEST_DELAY_MS)

    def begin(self) -> AbstractContextManager[Connection]:
        """Returns one READ COMMITTED transaction, tried once; it is committed at the end."""
        return self._connections().begin()

    def _connections(self) -> Connections:
        # With the process id: a socket shared with a forked child would mix two conversations.
        key = (os.getpid(), self)
        connections = _connections.get(key)
        if connections is None:
            # No pool_pre_ping, which costs every transaction a round trip: a dead connection shows
            # itself in the first statement, and `run` runs the transaction again. One is enough
            # for a task, and max_connections is shared by all executors.
            engine = new_engine(make_url(self.url), self.timeout_ms, pool_size=1, max_overflow=3)
            connections = _connections.setdefault(key, Connections(engine))
        return connections

    def _gave_up(self, error: DBAPIError, what: str) -> MetastoreError:
        return MetastoreError(
            f"{what}: Postgres at {masked(self.url)} did not do it for "
            f"{self.timeout_ms / 1000:g} s; last: {server_message(error)}. Check that it runs "
            "and can be reached from here; cairn.metastore.timeout says how long to keep trying"
        )


def find_catalog(metastore: str | None = None, *, timeout_ms: int = 60_000) -> Catalog:
    """Returns the metastore that is given, else the one that `CAIRN_METASTORE` names.

    Raises:
        BadInputError: neither is there, or it is not a metastore.
        MetastoreError: an embedded metastore did not start.
    """
    found = metastore or os.environ.get(METASTORE_VARIABLE)
    if not found:
        raise BadInputError(
            f"no metastore: give --metastore, or set {METASTORE_VARIABLE} where this runs, to "
            "postgresql://user@host:5432/database or embedded:<directory>"
        )
    return Catalog(resolve_url(found), timeout_ms)


def dispose_engines() -> None:
    """Closes every idle connection that this process holds to any metastore."""
    # Not the parent's: a forked child must not close its sockets.
    for key in [key for key in _connections if key[0] == os.getpid()]:
        _connections.pop(key).close()


def _warn_of_retry(what: str, error: DBAPIError, *, failed_for_ms: float) -> None:
    reason = server_message(error)
    facts = {
        "what": what,
        "reason": reason,
        "sqlstate": getattr(error.orig, "pgcode", None),
        "failed_for_ms": round(failed_for_ms),
    }
    _log.warning("%s: trying again after: %s", what, reason, extra=facts)


def _raise_unless_transient(error: DBAPIError, url: str, what: str) -> None:
    code = getattr(error.orig, "pgcode", None)
    if _is_hopeless(code, str(error.orig)):
        raise BadInputError(
            f"{what}: Postgres at {masked(url)} refuses: {server_message(error)}. "
            "Check user, password, database name and parameters in the metastore's URL, and the "
            "user's rights"
        ) from error
    if code is None:
        connecting = error.statement is None and isinstance(
            error, OperationalError | InterfaceError
        )
        if not (connecting or error.connection_invalidated):
            raise error
        return
    if code == _FENCED:
        detail = getattr(getattr(error.orig, "diag", None), "message_detail", None)
        fenced = FencedError(server_message(error), **json.loads(detail or "{}"))
        _log.info("%s: fenced: %s", what, fenced, extra={"what": what, "job": fenced.job})
        raise fenced from error
    if code.startswith(GUARD_CLASS):
        raise RefusedError(server_message(error)) from error
    if not (code.startswith("08") or code in _TRANSIENT):
        raise error


def _is_hopeless(code: str | None, reason: str) -> bool:
    if code is not None:
        return code.startswith(_HOPELESS)
    return any(text in reason for text in _HOPELESS_TEXTS)


def server_message(error: DBAPIError) -> str:
    """Returns the sentence that the server gave with an error, without the statement it is of."""
    diagnosis = getattr(error.orig, "diag", None)
    return getattr(diagnosis, "message_primary", None) or " ".join(str(error.orig).split())
