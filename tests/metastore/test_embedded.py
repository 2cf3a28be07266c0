from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import make_url, text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.embedded import masked, resolve_url, stop
from cairn.errors import BadInputError, MetastoreError

ROOT = Path(__file__).parents[2]
RESOLVE = """
import sys
from cairn.catalog.embedded import resolve_url
print(resolve_url(sys.argv[1]))"""


def start(directory: Path, *, wait: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RESOLVE + wait, f"embedded:{directory}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().split("\n", 1)[0])


def answers(directory: Path) -> bool:
    with psycopg2.connect(
        host=str(directory / "data"), port=5432, user="postgres", dbname="cairn"
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        found = cursor.fetchone() == (1,)
    connection.close()
    return found


def test_processes_that_start_it_at_once_share_one_server(empty_directory: Path) -> None:
    running = [start(empty_directory) for _ in range(4)]
    urls = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert urls == {resolve_url(f"embedded:{empty_directory}")}
    assert answers(empty_directory)


def test_server_outlives_the_process_group_that_started_it(directory: Path) -> None:
    starter = start(directory, wait="; sys.stdout.flush(); import time; time.sleep(600)")
    assert starter.stdout is not None
    url = starter.stdout.readline().strip()
    server = postmaster(directory)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    assert os.getsid(server) not in (os.getsid(0), starter.pid)
    assert answers(directory)
    assert resolve_url(f"embedded:{directory}") == url
    assert postmaster(directory) == server


def test_it_starts_after_starters_were_killed_at_any_moment(empty_directory: Path) -> None:
    for delay_ms in (150, 350, 600):
        starter = start(empty_directory)
        time.sleep(delay_ms / 1000)
        os.killpg(starter.pid, signal.SIGKILL)
        starter.communicate()
    resolve_url(f"embedded:{empty_directory}")
    assert answers(empty_directory)


def test_it_recovers_after_the_server_was_killed(directory: Path) -> None:
    resolve_url(f"embedded:{directory}")
    os.kill(postmaster(directory), signal.SIGKILL)
    resolve_url(f"embedded:{directory}")
    assert answers(directory)


def test_pid_file_that_names_another_program_is_no_obstacle(directory: Path) -> None:
    metastore = f"embedded:{directory}"
    resolve_url(metastore)
    stop(metastore)
    pid_file = directory / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{directory / 'data'}\n0\n5432\n{directory / 'data'}\n")
    resolve_url(metastore)
    assert answers(directory)
    assert postmaster(directory) != os.getpid()


@pytest.mark.parametrize("content", ["", "{pid}\n{data}\n0\n5432\n\n"])
def test_pid_file_that_was_being_written_is_no_obstacle(directory: Path, content: str) -> None:
    metastore = f"embedded:{directory}"
    resolve_url(metastore)
    killed = postmaster(directory)
    stop(metastore)
    data = directory / "data"
    (data / "postmaster.pid").write_text(content.format(pid=killed, data=data))
    resolve_url(metastore)
    assert answers(directory)


def test_a_long_wait_for_another_process_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        release = threading.Timer(1.2, fcntl.flock, (held, fcntl.LOCK_UN))
        release.start()
        stop(f"embedded:{tmp_path}")
        release.join()
    assert "waiting for another process" in caplog.text


def test_path_that_is_too_long_for_a_socket_works(empty_directory: Path) -> None:
    deep = f"embedded:{empty_directory / ('d' * 60) / ('e' * 60)}"
    try:
        url = resolve_url(deep)
        assert "ddd" not in url
        assert resolve_url(deep) == url
        sockets = Path(str(make_url(url).query["host"]))
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    finally:
        stop(deep)
    assert not sockets.exists()


def test_path_with_a_space_and_a_quote_works(empty_directory: Path) -> None:
    odd = f"embedded:{empty_directory}/it's my data"
    try:
        assert Catalog(resolve_url(odd)).run("x", lambda c: c.scalar(text("SELECT 1")))
    finally:
        dispose_engines()
        stop(odd)


def test_locale_that_this_machine_lacks_is_no_obstacle(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    starter = start(empty_directory)
    starter.communicate()
    assert starter.returncode == 0


def test_what_a_killed_initdb_left_behind_is_removed(empty_directory: Path) -> None:
    left = empty_directory / "unfinished-x" / "base"
    left.mkdir(parents=True)
    resolve_url(f"embedded:{empty_directory}")
    assert sorted(path.name for path in empty_directory.iterdir()) == ["data", "lock"]


def test_database_is_kept_when_the_server_cannot_start(directory: Path) -> None:
    metastore = f"embedded:{directory}"
    resolve_url(metastore)
    stop(metastore)
    settings = directory / "data" / "postgresql.conf"
    good = settings.read_text()
    settings.write_text("no_such_setting = 1\n")
    with pytest.raises(MetastoreError, match=r"did not start; end of its log:[^$]*no_such_setting"):
        resolve_url(metastore)
    settings.write_text(good)
    resolve_url(metastore)
    assert answers(directory)


@pytest.mark.parametrize(
    "metastore",
    ["", "embedded:", "mysql://u@h/d", "sqlite:///x", "/var/lib/x", "postgresql+asyncpg://h/d"],
)
def test_unknown_form_is_refused_with_the_known_ones(metastore: str) -> None:
    with pytest.raises(BadInputError, match=r"postgresql://user@host.*embedded:<directory>"):
        resolve_url(metastore)


def test_url_without_a_database_is_refused() -> None:
    with pytest.raises(BadInputError, match="names no database"):
        resolve_url("postgresql://u@h")


def test_both_spellings_of_a_url_are_one() -> None:
    one = resolve_url("postgresql://u:secret@h:5432/d")
    assert one == resolve_url("postgresql+psycopg2://u:secret@h:5432/d")
    assert "secret" in one


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@h/d",
        "postgresql://u@h/d?password=s3cret&sslmode=require",
        "postgresql://u:s3cret@h/d?sslpassword=s3cret",
    ],
)
def test_masked_url_shows_no_password(url: str) -> None:
    assert "s3cret" not in masked(url)
    assert "h/d" in masked(url)


@pytest.mark.parametrize("metastore", ["mysql://u:s3cret@h/d", "postgres://u:s3cret@h/d"])
def test_refused_form_shows_no_password(metastore: str) -> None:
    with pytest.raises(BadInputError) as refused:
        resolve_url(metastore)
    assert "s3cret" not in str(refused.value)
