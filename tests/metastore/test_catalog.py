"""The catalog: connections by process, and transactions that are tried again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import IntegrityError

from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from cairn.errors import BadInputError, MetastoreError
from tests.metastore.wire import refusing

FORKING = """
import os, sys
from sqlalchemy import text
from cairn.catalog.catalog import Catalog, dispose_engines

def backend():
    work = lambda c: c.scalar(text("SELECT pg_backend_pid()"))
    return Catalog(sys.argv[1]).run("testing", work)

before = backend()
child = os.fork()
if child == 0:
    os._exit(0 if backend() != before else 1)
assert os.waitpid(child, 0)[1] == 0
assert backend() == before
dispose_engines()
"""


def test_transaction_commits_and_returns_what_the_work_returns(metastore_url: str) -> None:
    def work(connection: Connection) -> str:
        connection.execute(text("CREATE TABLE public.t (n int)"))
        return "done"

    assert Catalog(metastore_url).run("testing", work) == "done"
    count = Catalog(metastore_url).run(
        "testing", lambda c: c.scalar(text("SELECT count(*) FROM public.t"))
    )
    assert count == 0


def test_transaction_whose_connection_is_terminated_runs_again(
    metastore_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    backends: list[int] = []

    def work(connection: Connection) -> int:
        backends.append(connection.scalar(text("SELECT pg_backend_pid()")) or 0)
        if len(backends) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return len(backends)

    assert Catalog(metastore_url).run("testing", work) == 2
    assert backends[0] != backends[1]
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("testing: trying again after: ")


def test_idle_connection_that_broke_is_replaced(metastore_url: str) -> None:
    with Catalog(metastore_url).begin() as connection:
        idle = connection.scalar(text("SELECT pg_backend_pid()"))
    other = make_url(metastore_url).set(database="postgres").render_as_string()
    kill = text("SELECT pg_terminate_backend(:pid, 5000)").bindparams(pid=idle)
    assert Catalog(other).run("testing", lambda c: c.scalar(kill))
    assert Catalog(metastore_url).run("x", lambda c: c.scalar(text("SELECT 1"))) == 1


def test_deadlock_is_resolved_by_running_one_again(metastore_url: str) -> None:
    setup = "CREATE TABLE public.t AS SELECT n, 0 AS hits FROM generate_series(1, 2) AS n"
    Catalog(metastore_url).run("testing", lambda c: c.execute(text(setup)))
    both_hold_one = threading.Barrier(2)
    met: set[int] = set()

    def hit(first: int) -> None:
        def work(connection: Connection) -> None:
            for n in (first, 3 - first):
                connection.execute(
                    text("UPDATE public.t SET hits = hits + 1 WHERE n = :n"), {"n": n}
                )
                if first not in met:
                    met.add(first)
                    both_hold_one.wait(10)

        Catalog(metastore_url).run("testing", work)

    with ThreadPoolExecutor() as threads:
        list(threads.map(hit, (1, 2)))
    hits = Catalog(metastore_url).run(
        "testing", lambda c: c.scalars(text("SELECT hits FROM public.t")).all()
    )
    assert hits == [2, 2]


def test_server_that_restarts_is_waited_for(directory: Path) -> None:
    metastore = f"embedded:{directory}"
    url = resolve_url(metastore)
    migrate(Catalog(url))
    stop(metastore)
    with ThreadPoolExecutor() as threads:
        count = threads.submit(
            Catalog(url).run, "testing", lambda c: c.scalar(text("SELECT count(*) FROM cairn.jobs"))
        )
        time.sleep(0.5)
        assert not count.done()
        resolve_url(metastore)
        assert count.result() == 0


def test_server_that_stays_away_is_given_up_with_address_and_duration() -> None:
    url = "postgresql://u:s3cret@127.0.0.1:1/d"
    began = time.monotonic()
    with pytest.raises(MetastoreError) as gave_up:
        Catalog(url, timeout_ms=1000).run("acknowledging batch 7", lambda c: None)
    assert 1 <= time.monotonic() - began < 4
    message = str(gave_up.value)
    assert "acknowledging batch 7: Postgres at postgresql://u:***@127.0.0.1:1/d" in message
    assert "for 1 s" in message
    assert "Check that it runs" in message
    assert "s3cret" not in message


def test_database_that_does_not_exist_is_not_waited_for(metastore_url: str) -> None:
    wrong = make_url(metastore_url).set(database="nowhere").render_as_string()
    began = time.monotonic()
    with pytest.raises(BadInputError, match=r'database "nowhere" does not exist.*Check user'):
        Catalog(wrong).run("testing", lambda c: None)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "message",
    [
        'password authentication failed for user "somebody"',
        'role "somebody" does not exist',
        'role "somebody" is not permitted to log in',
        'no pg_hba.conf entry for host "10.0.0.1", user "somebody", database "cairn"',
        'permission denied for database "cairn"',
        "no such database: cairn",
        "unsupported startup parameter: options",
    ],
)
def test_a_refusal_that_waiting_does_not_help_is_told_at_once(message: str) -> None:
    with refusing(message) as server:
        with pytest.raises(BadInputError, match=f"testing: .*{re.escape(message)}.*Check user"):
            Catalog(server.url).run("testing", lambda c: None)
        assert server.attempts == 1


@pytest.mark.parametrize(
    "message",
    [
        "sorry, too many clients already",
        "no more connections allowed (max_client_conn)",
        "the database system is starting up",
        'database "cairn" is not currently accepting connections',
    ],
)
def test_a_refusal_that_may_pass_is_tried_again(message: str) -> None:
    with refusing(message) as server:
        with pytest.raises(MetastoreError, match=r"for 0\.2 s; last"):
            Catalog(server.url, timeout_ms=200).run("testing", lambda c: None)
        assert server.attempts > 1


def test_a_parameter_that_is_not_libpqs_is_told_at_once() -> None:
    with pytest.raises(BadInputError, match=r'invalid connection option "hots".*parameters'):
        Catalog("postgresql://u@/d?hots=a").run("testing", lambda c: None)


def test_a_right_that_the_user_lacks_is_told_at_once(metastore_url: str) -> None:
    def work(connection: Connection) -> None:
        runs.append(1)
        connection.execute(text("SET LOCAL ROLE cairn_reader"))
        connection.execute(text("DELETE FROM cairn.jobs"))

    runs: list[int] = []
    with pytest.raises(BadInputError, match=r"permission denied for table jobs.*the user's rights"):
        Catalog(metastore_url).run("testing", work)
    assert len(runs) == 1


def test_other_errors_pass_untouched_and_are_not_retried(metastore_url: str) -> None:
    runs = []

    def work(connection: Connection) -> None:
        runs.append(1)
        connection.execute(
            text("INSERT INTO cairn.runs VALUES ('no job', 1, gen_random_uuid(), 1)")
        )

    with pytest.raises(IntegrityError):
        Catalog(metastore_url).run("testing", work)
    assert len(runs) == 1


def test_statement_that_runs_too_long_is_given_up(metastore_url: str) -> None:
    with pytest.raises(MetastoreError, match="statement timeout"):
        Catalog(metastore_url, timeout_ms=300).run(
            "testing", lambda c: c.execute(text("SELECT pg_sleep(60)"))
        )


def test_forked_child_never_uses_its_parents_connection(metastore_url: str) -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FORKING, metastore_url], cwd=root, check=True)
