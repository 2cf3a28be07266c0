"""A cleanup in a process of its own: `URL JOB [commit|unlink N]` kills it at the Nth such event.

`commit` kills right before a commit, so after all that came before it; `unlink` right before an
object goes. It starts when it reads a line, and prints its report as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, event

from cairn.catalog.catalog import Catalog
from cairn.maintenance.cleanup import cleanup_job


def kill_at(kind: str, number: int) -> None:
    """Arranges for SIGKILL at an event that happens without any change to Cairn's code."""
    left = [number]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if kind == "commit":
        event.listen(Engine, "commit", count)
    else:
        sys.addaudithook(lambda name, _: count() if name == "os.remove" else None)


def main(url: str, job: str, kind: str | None = None, number: str = "0") -> None:
    """Runs the cleanup."""
    sys.stdin.readline()
    if kind is not None:
        kill_at(kind, int(number))
    json.dump(asdict(cleanup_job(Catalog(url), job)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
