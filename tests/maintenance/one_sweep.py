"""A sweep in a process of its own: `URL JOB [commit|unlink N]` kills it at the Nth such event.

It starts when it reads a line, and prints its report as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from cairn.catalog.catalog import Catalog
from cairn.maintenance.sweep import sweep_job
from tests.maintenance.one_cleanup import kill_at
from tests.maintenance.sweeping import ANY_AGE


def main(url: str, job: str, kind: str | None = None, number: str = "0") -> None:
    """Runs the sweep."""
    sys.stdin.readline()
    if kind is not None:
        kill_at(kind, int(number))
    json.dump(asdict(sweep_job(Catalog(url), job, unsafe_min_age=ANY_AGE)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
