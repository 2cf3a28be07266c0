from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.running import run


@pytest.mark.spark
def test_a_quick_run_measures_both_engines_and_s3(tmp_path: Path) -> None:
    measured = run(
        *("benchmarks", "--quick", "--output", str(tmp_path)),
        *("--workload", "counting-p2", "s3-p2"),
    )
    assert measured == json.loads((tmp_path / "result.json").read_text())
    engines = {one["name"]: set(one["repetitions"]) for one in measured["workloads"]}
    assert engines == {
        "counting-p2": {"native", "cairn", "floor"},
        "s3-p2": {"cairn-s3", "cairn-s3-30ms"},
    }
    cairn = next(one for one in measured["workloads"][1]["figures"] if one["engine"] == "cairn-s3")
    assert cairn["requests"]["median"] >= 1
    assert not (tmp_path / "work").exists()
