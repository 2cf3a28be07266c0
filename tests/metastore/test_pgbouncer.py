"""The metastore behind PgBouncer in transaction mode, where no session lasts."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.migrate import migrate
from cairn.errors import BadInputError, MetastoreError
from tests.metastore.steps import Steps

SERVERS = 2
"""How many connections PgBouncer has to Postgres."""
CONFIGURATION = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = {servers}
logfile = {directory}/log
"""


@pytest.fixture(scope="module")
def bouncer(postgres: str) -> Iterator[str]:
    """The address and port of a PgBouncer before the session's server."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer: run tests/tools/pgbouncer.sh")
    at = make_url(postgres)
    directory = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen_port = free.getsockname()[1]
    (directory / "users").write_text(f'"{at.username}" ""\n')
    (directory / "pgbouncer.ini").write_text(
        CONFIGURATION.format(
            **at.query, listen_port=listen_port, directory=directory, servers=SERVERS
        )
    )
    command = [program, str(directory / "pgbouncer.ini")]
    if os.geteuid() == 0:  # PgBouncer refuses to be root, as Postgres does
        owner = pwd.getpwuid(Path(str(at.query["host"])).stat().st_uid)
        shutil.chown(directory, owner.pw_uid)
        command[1:1] = ["-u", owner.pw_name]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        yield f"127.0.0.1:{listen_port}"
        running.terminate()
    shutil.rmtree(directory)


@pytest.fixture
def url(bouncer: str, metastore_url: str) -> Iterator[str]:
    """The URL of a fresh metastore, by way of PgBouncer."""
    yield through(bouncer, metastore_url)
    dispose_engines()


def through(bouncer: str, url: str) -> str:
    host, port = bouncer.split(":")
    direct = make_url(url)
    made = direct.set(host=host, port=int(port), query={}).render_as_string(False)
    deadline_s = time.monotonic() + 10
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return made
        except OSError:
            assert time.monotonic() < deadline_s, "PgBouncer does not answer"
            time.sleep(0.05)


def test_every_transaction_has_its_settings_on_whatever_connection_it_gets(url: str) -> None:
    names = ("statement_timeout", "lock_timeout", "search_path", "timezone")

    def settings(connection: Connection) -> tuple[int, list[str]]:
        connection.exec_driver_sql("SELECT pg_sleep(0.05)")
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        return backend, [connection.exec_driver_sql(f"SHOW {n}").scalar_one() for n in names]

    catalogs = [Catalog(url, timeout_ms=5000 + 1000 * (n % 2)) for n in range(16)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda c: c.run("testing", settings), catalogs))
    assert len({backend for backend, _ in found}) == SERVERS, "connections were shared"
    for catalog, (_, seen) in zip(catalogs, found, strict=True):
        timeout = f"{catalog.timeout_ms // 1000}s"
        assert seen == [timeout, timeout, "public", "UTC"]


def test_a_statement_that_runs_too_long_is_given_up(url: str) -> None:
    with pytest.raises(MetastoreError, match="statement timeout"):
        Catalog(url, timeout_ms=300).run("testing", lambda c: c.execute(text("SELECT pg_sleep(9)")))


def test_options_in_the_url_are_refused_at_once_and_named(url: str) -> None:
    with_options = make_url(url).update_query_dict({"options": "-c work_mem=8MB"})
    began_s = time.monotonic()
    with pytest.raises(BadInputError, match=r"unsupported startup parameter.*parameters"):
        Catalog(with_options.render_as_string(False)).run("testing", lambda c: None)
    assert time.monotonic() - began_s < 5


def test_batches_of_two_jobs_at_once_complete_and_leave_no_lock(url: str, tmp_storage: str) -> None:
    def batches(name: str) -> list[int]:
        job = Steps(url, tmp_storage, name)
        epoch = job.register()
        return [job.whole_batch(epoch, batch_id) for batch_id in range(5)]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(batches, ["one", "two"])) == [[1, 2, 3, 4, 5]] * 2
    locks = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert Catalog(url).run("testing", lambda c: c.scalar(locks)) == 0


def test_processes_that_migrate_at_once_through_it_migrate_once(
    bouncer: str, empty_database_url: str
) -> None:
    catalog = Catalog(through(bouncer, empty_database_url))
    with ThreadPoolExecutor(2) as threads:
        applied = list(threads.map(lambda _: migrate(catalog), range(2)))
    assert sorted(map(len, applied))[0] == 0
    assert sum(map(len, applied)) > 0
    dispose_engines()
