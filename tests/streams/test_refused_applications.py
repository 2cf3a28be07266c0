"""Applications in which a stream could not run, or would go wrong, are told before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams.streams import ROOT

pytestmark = pytest.mark.spark

_HIDE_CAIRN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "cairn":
            raise ModuleNotFoundError("No module named 'cairn'")

sys.meta_path.insert(0, Hidden())
"""


def test_speculation_and_workers_without_cairn_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_HIDE_CAIRN)
    python = tmp_path / "python"
    path = f"{tmp_path}:$PYTHONPATH"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tests.streams.refused_applications", str(python)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    assert len(told) == 2, done.stdout + done.stderr[-4000:]
    assert told[0].startswith("BadInputError: Spark's Python workers cannot run Cairn: ")
    assert "No module named 'cairn'. Install cairn-streaming" in told[0]
    assert told[1].startswith("RefusedError: spark.speculation is true")
    assert told[1].endswith("--conf spark.speculation=false [job refused]")
