"""Runs the model of maintenance for a time, from a seed on.

python -m tests.model.soak [--minutes M | --rounds N] [--seed SEED]

Each round has a seed of its own, which is printed; `--seed SEED --rounds 1` plays a round again.
The exit status is 1 if something that must hold did not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from tests.databases import connect, create
from tests.model.machine import Maintained

EXAMPLES, STEPS = 10, 100
"""Of a round: jobs, and steps of each at most."""
STORAGES = "file:///"


def main() -> int:
    """Runs rounds, prints what they did and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rounds", type=int, help="instead of a time")
    parser.add_argument("--seed", type=int, help="of the first round; at random if not given")
    arguments = parser.parse_args()
    first = random.randrange(2**32) if arguments.seed is None else arguments.seed
    os.environ["CAIRN_STORAGES"] = STORAGES
    directory = Path(tempfile.mkdtemp(prefix="cairn-soak-"))
    metastore = f"embedded:{directory}"
    try:
        url = resolve_url(metastore)
        with connect(url) as connection:
            connection.execute(text("ALTER SYSTEM SET fsync = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        migrate(Catalog(url))
        return _rounds(url, first, arguments.minutes * 60, arguments.rounds)
    finally:
        dispose_engines()
        stop(metastore)
        shutil.rmtree(directory)


def _rounds(template: str, first: int, seconds: float, rounds: int | None) -> int:
    began, number = time.monotonic(), 0
    while number < rounds if rounds else time.monotonic() < began + seconds:
        dispose_engines()
        # A database of its own: what an earlier round left must not change this one.
        url = create(template, template="cairn")
        print(f"seed {first + number}: ", end="", flush=True)
        steps, at = Maintained.total_steps, time.monotonic()
        try:
            play(url, first + number)
        except BaseException:
            print(f"failed; again: make soak SEED={first + number} ROUNDS=1", flush=True)
            raise
        done, took_s = Maintained.total_steps - steps, time.monotonic() - at
        print(f"{done} steps in {took_s:.0f} s", flush=True)
        number += 1
    took_s = time.monotonic() - began
    print(f"{Maintained.total_steps} steps in {number} rounds from seed {first}, {took_s:.0f} s")
    return 0


def play(url: str, number: int, examples: int = EXAMPLES) -> None:
    """Runs one round of the model on a metastore."""
    here = type("Here", (Maintained,), {"url": url})
    run_state_machine_as_test(
        seed(number)(here),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking runs it hundreds of times; the steps that failed are printed anyway.
            phases=[Phase.explicit, Phase.generate],
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
