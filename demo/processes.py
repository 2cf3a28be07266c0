"""Ending what was started in a session of its own, with everything that it has started since."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psutil


def end(leaders: Collection[subprocess.Popen[bytes]], *, patience_s: float) -> None:
    """Ends the sessions that these processes lead: SIGTERM to them, SIGKILL to what is left."""
    members = _in_sessions(leaders)
    for leader in leaders:
        leader.terminate()
    psutil.wait_procs(members, timeout=patience_s)
    kill(leaders)


def kill(leaders: Collection[subprocess.Popen[bytes]]) -> None:
    """Sends SIGKILL to every process of the sessions that these lead, until none is left.

    A session and not a process group: Spark's Python workers have a group of their own.
    """
    while members := _in_sessions(leaders):
        for member in members:
            with _gone_is_fine():
                member.kill()
        psutil.wait_procs(members, timeout=1)
    for leader in leaders:
        leader.wait()


def _in_sessions(leaders: Collection[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    sessions = {leader.pid for leader in leaders}
    members = []
    for process in psutil.process_iter():
        with _gone_is_fine():
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return
