"""Runs random processors on both engines, in a Spark of its own, and prints where they differ."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path

from pyspark.errors import PySparkException

from cairn.errors import CairnError
from tests.conformance.conftest import SETTINGS
from tests.fuzz.differential import difference
from tests.fuzz.generated import Case, case
from tests.streams.streams import new_session

KEYS = 60
"""Processors of a query: each key has one of its own."""


def compare(cases: int | None, seconds: float, first: int) -> int:
    """Runs so many cases, or for so long; returns 1 if the engines differ in one, else 0."""
    session = new_session("local[2]")
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    started, status = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as directory:
        metastore = f"embedded:{directory}/metastore"
        for done in count(1):
            number = first + done - 1
            made = case(number, KEYS)
            try:
                found = difference(made, session, Path(directory, str(number)), metastore)
            except (CairnError, PySparkException) as error:
                found = f"{type(error).__name__}: {error!s:.2000}"
            if found:
                print(f"    case {number} ({_described(made)}): {found}", flush=True)
                status = 1
            took_s = time.monotonic() - started
            if done == cases or (not cases and took_s > seconds):
                break
    session.stop()
    print(f"processors: {done * KEYS} in {done} queries from {first} in {took_s:.0f} s")
    return status


def _described(made: Case) -> str:
    form = "frames" if made.in_pandas else "rows"
    of = "stream" if made.is_stream else "batch"
    return f"{form}, {of}, {made.mode}, TTL {made.ttl_ms}, {made.zone}"
