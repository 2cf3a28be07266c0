from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.session import ROOT


@pytest.mark.spark
def test_a_quick_run_measures_both_engines_and_s3(tmp_path: Path) -> None:
    """In a process: it stops its Spark session at the end, which here would be every test's."""
    command = ("benchmarks", "--quick", "--json", "--workload", "counting-p2", "s3-p2")
    done = subprocess.run(
        [sys.executable, "-m", *command, "--output", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "trying again" not in done.stderr, "the metastore is stopped last"
    measured = json.loads(done.stdout)
    assert measured == json.loads((tmp_path / "result.json").read_text())
    engines = {one["name"]: set(one["repetitions"]) for one in measured["workloads"]}
    assert engines == {
        "counting-p2": {"native", "cairn", "floor"},
        "s3-p2": {"cairn-s3", "cairn-s3-30ms"},
    }
    cairn = next(one for one in measured["workloads"][1]["figures"] if one["engine"] == "cairn-s3")
    assert cairn["requests"]["median"] >= 1
    assert not (tmp_path / "work").exists()
