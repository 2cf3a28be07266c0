"""Work in a process of its own, which is killed at a commit or a delete.

It is forked from a server that has everything imported: to start Python is most of what such a
test costs otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import Engine, event

from tests.runtime.forks import FORKS

LONGEST_S = 60


class Forked:
    """A process that calls a function of a module when it is told to.

    Attributes:
        result: what the function has returned, once it has ended.
    """

    def __init__(
        self, work: Callable[..., Any], *given: Any, kill_at: tuple[str, int] | None = None
    ) -> None:
        """Starts it; see `_kill_at` for where it is killed."""
        self.result: Any = None
        self._pipe, theirs = FORKS.Pipe()
        # The server has the environment of its own start.
        settings = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "CAIRN_"))}
        self._process = FORKS.Process(target=_run, args=(theirs, settings, kill_at, work, given))
        self._process.start()
        theirs.close()

    def go(self) -> None:
        """Lets it begin."""
        self._pipe.send("go")

    def end(self) -> bool:
        """Waits for its end; tells whether it was not killed."""
        assert self._pipe.poll(LONGEST_S), "it hangs"
        with suppress(EOFError):  # it was killed
            self.result = self._pipe.recv()
        self._process.join(LONGEST_S)
        assert self._process.exitcode in (0, -signal.SIGKILL)
        self._pipe.close()
        return self._process.exitcode == 0

    def run(self) -> bool:
        """Lets it begin, and waits for its end; tells whether it was not killed."""
        self.go()
        return self.end()


def _run(
    pipe: Pipe,
    settings: Mapping[str, str],
    kill_at: tuple[str, int] | None,
    work: Callable[..., Any],
    given: tuple[Any, ...],
) -> None:
    os.environ.update(settings)
    pipe.recv()
    if kill_at is not None:
        _kill_at(*kill_at)
    pipe.send(work(*given))


def _kill_at(kind: str, number: int) -> None:
    """Arranges for SIGKILL at the nth event of a kind, without any change to Cairn's code.

    `commit` kills right before a commit, so after all that came before it; `unlink` right before
    an object is deleted.
    """
    left = [number]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if kind == "commit":
        event.listen(Engine, "commit", count)
    else:
        sys.addaudithook(lambda name, _: count() if name == "os.remove" else None)
