"""Connections to Postgres that keep nothing from one transaction to the next, nor open for long.

Settings are made with `SET LOCAL`, in the message that begins a transaction. So a pooler that gives
each transaction another connection of the server (PgBouncer in transaction mode) changes nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError

IDLE_S = 5.0
"""How long a connection that nobody uses stays open."""

_DRIVER = "postgresql+psycopg2"
_EACH = "cairn_each"
_LOCK_TIMEOUT_MS = 10_000


def new_engine(url: URL, timeout_ms: int, **pool: Any) -> Engine:  # noqa: ANN401 - SQLAlchemy's
    """Returns an engine of READ COMMITTED transactions; no statement runs beyond `timeout_ms`.

    `pool` is what `create_engine` takes. Nothing is connected yet.
    """
    return create_engine(
        url.set(drivername=_DRIVER),
        use_native_hstore=False,
        connect_args=_connect_args(url, timeout_ms),
        **pool,
    )


def call(opened: Connection, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Executes a constant text with `%(name)s` in it, and returns its rows.

    Where each call is a transaction, see `Connections.begin`, this is one round trip.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy raises it.
    """
    driver = _driver_of(opened)
    driver.ends_with_statement = _is_whole_transaction(opened, driver)
    try:
        return _execute(opened, driver, statement, values)
    finally:
        driver.ends_with_statement = False


_LET_GO = """
    SET LOCAL synchronous_commit = off;
    SELECT pg_catalog.set_config('cairn.answer', CAST(pg_catalog.to_jsonb(answer) AS text), FALSE)
    FROM ({statement}) AS answer;
    COMMIT;
    SELECT
        pg_catalog.current_setting('cairn.answer'),
        pg_catalog.set_config('cairn.answer', '', FALSE),
        pg_catalog.pg_logical_emit_message(TRUE, 'cairn', '')
"""


def call_and_let_go(
    opened: Connection, statement: str, values: Mapping[str, object]
) -> dict[str, Any]:
    """Executes a text whose result is one row, and returns the row as JSON has it, by column.

    Where each call is a transaction, this is one round trip, too. The transaction's locks end
    before it is durable: who waits for them does not wait for the disk or a standby, and all who
    wait for these wait together. A second transaction of the same message writes a mark behind it
    in the write-ahead log, which is durable when the answer comes; so is, then, all that the first
    one has seen. Until then others may see what a crash takes back, and whoever does more with it
    than a durable write must wait like this, too.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy raises it.
    """
    driver = _driver_of(opened)
    if not _is_whole_transaction(opened, driver):
        [(row,)] = call(opened, f"SELECT to_jsonb(answer) FROM ({statement}) AS answer", values)  # noqa: S608 - constant texts
        return dict(row)
    # It begins a transaction, as any first statement does, and ends it itself.
    [(found, *_)] = _execute(opened, driver, _LET_GO.format(statement=statement), values)
    answer: dict[str, Any] = json.loads(found)
    return answer


def _driver_of(opened: Connection) -> _Connection:
    driver = opened.connection.dbapi_connection
    if not isinstance(driver, _Connection):
        raise TypeError(f"{type(driver)} is no connection of `new_engine`")
    return driver


def _is_whole_transaction(opened: Connection, driver: _Connection) -> bool:
    return driver.is_idle and bool(opened.get_execution_options().get(_EACH, False))


def _execute(
    opened: Connection, driver: _Connection, statement: str, values: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    try:
        # Not by SQLAlchemy, whose result takes longer than the statement.
        with driver.cursor() as plain:
            plain.execute(statement, values)
            return plain.fetchall()
    except psycopg2.Error as error:
        is_lost = bool(driver.closed)
        if is_lost:
            opened.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, psycopg2.Error, connection_invalidated=is_lost
        ) from error


def array(values: Iterable[object]) -> str:
    """Returns the text of an array of numbers, ids or words without special characters.

    None is NULL. The server reads a text faster than an expression with as many constants.
    """
    return "{" + ",".join(["NULL" if one is None else str(one) for one in values]) + "}"


class Connections:
    """The connections of one process to one metastore: closed `IDLE_S` after their last use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._in_use = 0
        self._used_at = 0.0
        self._is_watched = False

    @contextmanager
    def begin(self, *, each: bool = False) -> Iterator[Connection]:
        """Yields a connection in a transaction, which is committed at the end.

        With `each`, every `call` is a transaction of its own unless one is open.
        """
        with self._lock:
            self._in_use += 1
        try:
            with self._engine.begin() as opened:
                yield opened.execution_options(**{_EACH: each})
        finally:
            self._release()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._engine.dispose()

    def _release(self) -> None:
        with self._lock:
            self._in_use -= 1
            self._used_at = time.monotonic()
            if self._is_watched:
                return
            self._is_watched = True
        # A thread: a worker that waits for Spark's next task does not run a line of ours.
        threading.Thread(target=self._watch, name="cairn-idle", daemon=True).start()

    def _watch(self) -> None:
        """Waits until nobody has used a connection for `IDLE_S`, then closes it and ends."""
        left_s = IDLE_S
        while left_s > 0:
            time.sleep(left_s)
            with self._lock:
                idle_s = 0.0 if self._in_use else time.monotonic() - self._used_at
                left_s = IDLE_S - idle_s
                if left_s <= 0:
                    # Under the lock: who begins now waits, and then connects anew.
                    self._engine.dispose()
                    self._is_watched = False


def _connect_args(url: URL, timeout_ms: int) -> dict[str, Any]:
    """Returns the parameters of a connection; the URL's own `options` stay in force."""
    settings = (
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;"
        # All names are qualified; a role's own path may hide tables.
        "SET LOCAL search_path=public;"
        # Times in views and in text are the same for every reader.
        "SET LOCAL timezone='UTC';"
        f"SET LOCAL statement_timeout={timeout_ms};"
        f"SET LOCAL lock_timeout={min(_LOCK_TIMEOUT_MS, timeout_ms)};"
    )
    options = " ".join(url.normalized_query.get("options", ()))
    return {
        "connection_factory": partial(_Connection, settings=settings),
        "application_name": "cairn",
        "connect_timeout": max(2, min(10, timeout_ms // 1000)),  # libpq takes 1 s for 2 s
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": timeout_ms,  # keepalives do not run while sent bytes are unanswered
        **({"options": options} if options else {}),
    }


class _Connection(connection):
    """A connection that begins each transaction in the message of its first statement.

    psycopg2 itself sends BEGIN alone, and waits for the answer.
    """

    def __init__(self, dsn: str, *, settings: str) -> None:
        super().__init__(dsn)
        self.autocommit = True  # to psycopg2: it begins and ends no transaction of its own
        self.cursor_factory = _Cursor
        self.settings = settings
        self.ends_with_statement = False

    @property
    def opening(self) -> str:
        """What begins a transaction; without BEGIN it ends with the message that it begins."""
        return self.settings if self.ends_with_statement else f"BEGIN;{self.settings}"

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open, as libpq knows from the server's last answer."""
        return self.get_transaction_status() == TRANSACTION_STATUS_IDLE

    def commit(self) -> None:
        """Commits the open transaction, if there is one."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Rolls the open transaction back, if there is one."""
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        if not self.is_idle:
            with self.cursor(cursor_factory=cursor) as plain:
                plain.execute(statement)


class _Cursor(cursor):
    connection: _Connection

    def execute(self, query: str, vars: Any = None) -> None:  # type: ignore[override] # noqa: ANN401
        if self.connection.is_idle:
            query = self.connection.opening + query
        super().execute(query, vars)

    def executemany(self, query: str, vars_list: Sequence[Mapping[str, Any]]) -> None:  # type: ignore[override]
        if self.connection.is_idle:
            super().execute(self.connection.opening)
        super().executemany(query, vars_list)
