"""Runs a benchmark as a user does: in a process and a Spark session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.session import ROOT


def run(module: str, *arguments: str) -> Any:
    """Returns what `python -m module --json` measured.

    It stops its Spark session at the end, which in the tests' own process would be everybody's.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, "--json", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
