"""Connections: what they cost a transaction, what they leave behind, and when they are closed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DataError

from cairn.catalog import connections
from cairn.catalog.catalog import Catalog, dispose_engines
from tests.metastore.wire import relay

OWN = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cairn'"
SETTINGS = ("statement_timeout", "lock_timeout", "search_path", "timezone")
FORKING = """
import os, sys, time
from sqlalchemy import text
from cairn.catalog import connections
from cairn.catalog.catalog import Catalog
connections.IDLE_S = 0.2
work = lambda c: c.scalar(text("SELECT 1"))
Catalog(sys.argv[1]).run("testing", work)
child = os.fork()
Catalog(sys.argv[1]).run("testing", work)
print("used", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def idle_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """How long a connection stays open in this test."""
    monkeypatch.setattr(connections, "IDLE_S", 0.3)
    yield 0.3
    dispose_engines()


def open_ones(url: str) -> int:
    """Returns how many connections of Cairn's the database has."""
    asking = psycopg2.connect(make_url(url).set(drivername="postgresql").render_as_string(False))
    with closing(asking), asking.cursor() as cursor:
        cursor.execute(f"{OWN} AND datname = current_database()")
        [found] = cursor.fetchone() or [0]
    return int(found)


def wait_until_closed(url: str) -> None:
    for _ in range(100):
        if not open_ones(url):
            return
        time.sleep(0.05)
    raise AssertionError("a connection is still open")


def backend(connection: Connection) -> int:
    return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


@pytest.mark.parametrize("statements", [1, 3])
def test_a_transaction_costs_a_round_trip_for_each_statement_and_one_to_commit(
    shared_metastore_url: str, statements: int
) -> None:
    def work(connection: Connection) -> None:
        for _ in range(statements):
            connection.execute(text("SELECT 1"))

    with relay(shared_metastore_url) as way:
        Catalog(way.url).run("connecting", work)
        before = way.answers
        Catalog(way.url).run("testing", work)
        assert way.answers - before == statements + 1
        dispose_engines()


def test_a_call_that_is_a_transaction_costs_one_round_trip(shared_metastore_url: str) -> None:
    asked = "SELECT " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)

    def work(connection: Connection) -> list[tuple[str, ...]]:
        return connections.call(connection, asked, {})

    with relay(shared_metastore_url) as way:
        catalog = Catalog(way.url, timeout_ms=4000)
        catalog.run("connecting", work)
        before = way.answers
        assert catalog.run_each("testing", work) == [("4s", "4s", "public", "UTC")]
        assert way.answers - before == 1
        dispose_engines()


def test_calls_that_are_transactions_commit_one_by_one_and_alone(metastore_url: str) -> None:
    def work(connection: Connection) -> None:
        connections.call(connection, "INSERT INTO public.numbers VALUES (1) RETURNING n", {})
        connections.call(
            connection, "INSERT INTO public.numbers VALUES (2), (1 / %(by)s) RETURNING n", {"by": 0}
        )

    catalog = Catalog(metastore_url)
    catalog.run("testing", lambda c: c.execute(text("CREATE TABLE public.numbers (n int)")))
    numbers = text("SELECT array_agg(n) FROM public.numbers")
    with pytest.raises(DataError):
        catalog.run("testing", work)
    assert catalog.run("testing", lambda c: c.scalar(numbers)) is None
    with pytest.raises(DataError):
        catalog.run_each("testing", work)
    assert catalog.run("testing", lambda c: c.scalar(numbers)) == [1]


def test_a_call_whose_connection_broke_runs_again(metastore_url: str) -> None:
    def work(connection: Connection) -> int:
        runs.append(connections.call(connection, "SELECT pg_backend_pid()", {})[0][0])
        if len(runs) == 1:
            connections.call(connection, "SELECT pg_terminate_backend(%(pid)s)", {"pid": runs[0]})
        return len(runs)

    runs: list[int] = []
    assert Catalog(metastore_url).run_each("testing", work) == 2
    assert runs[0] != runs[1]


def test_settings_are_those_of_the_transaction_and_not_of_the_session(
    shared_metastore_url: str,
) -> None:
    def settings(connection: Connection) -> list[str]:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in SETTINGS]

    def after_commit(connection: Connection) -> list[str]:
        connection.exec_driver_sql("COMMIT")
        driver = connection.connection.dbapi_connection
        assert driver is not None
        plain = driver.cursor(cursor_factory=psycopg2.extensions.cursor)
        found: list[str] = []
        for name in SETTINGS:
            plain.execute(f"SHOW {name}")
            found += plain.fetchone() or []
        return found

    catalog = Catalog(shared_metastore_url, timeout_ms=4000)
    ours = ["4s", "4s", "public", "UTC"]
    assert catalog.run("testing", settings) == ours
    of_the_session = catalog.run("testing", after_commit)
    assert of_the_session[:3] == ["0", "0", '"$user", public']
    assert catalog.run("testing", settings) == ours


def test_many_parameter_sets_are_in_the_transaction_too(metastore_url: str) -> None:
    def work(connection: Connection) -> None:
        insert = text("INSERT INTO public.numbers VALUES (:n)")
        connection.execute(insert, [{"n": 1}, {"n": 2}])
        raise ZeroDivisionError

    catalog = Catalog(metastore_url)
    catalog.run("testing", lambda c: c.execute(text("CREATE TABLE public.numbers (n int)")))
    with pytest.raises(ZeroDivisionError):
        catalog.run("testing", work)
    count = text("SELECT count(*) FROM public.numbers")
    assert catalog.run("testing", lambda c: c.scalar(count)) == 0


def test_the_options_of_the_url_stay_in_force(shared_metastore_url: str) -> None:
    url = make_url(shared_metastore_url).update_query_dict({"options": "-c work_mem=8MB"})
    work = lambda c: c.scalar(text("SHOW work_mem"))  # noqa: E731
    assert Catalog(url.render_as_string(False)).run("testing", work) == "8MB"


def test_an_idle_connection_is_closed_and_the_next_transaction_opens_one(
    metastore_url: str, idle_s: float
) -> None:
    for _ in range(2):
        Catalog(metastore_url).run("testing", backend)
        assert open_ones(metastore_url) == 1
        wait_until_closed(metastore_url)


def test_a_connection_in_use_is_not_closed_however_long(metastore_url: str, idle_s: float) -> None:
    Catalog(metastore_url).run("testing", backend)

    def work(connection: Connection) -> bool:
        before = backend(connection)
        time.sleep(3 * idle_s)
        return backend(connection) == before

    assert Catalog(metastore_url).run("testing", work)


def test_a_connection_that_is_used_often_is_kept(metastore_url: str, idle_s: float) -> None:
    found = set()
    until_s = time.monotonic() + 4 * idle_s
    while time.monotonic() < until_s:
        found.add(Catalog(metastore_url).run("testing", backend))
        time.sleep(idle_s / 10)
    assert len(found) == 1


def test_a_parent_and_its_forked_child_each_close_their_own(metastore_url: str) -> None:
    command = [sys.executable, "-c", FORKING, metastore_url]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline(), parent.stdout.readline()] == ["used\n", "used\n"]
        wait_until_closed(metastore_url)
        assert parent.poll() is None
