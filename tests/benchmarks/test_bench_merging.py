"""`make bench-merging` counts real files, and every mode puts out the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import merging
from tests.benchmarks.running import run

BATCHES = 3
SUBTASKS = merging.SUBTASKS


@pytest.mark.spark
def test_modes_differ_by_the_files_that_each_batch_makes(tmp_path: Path) -> None:
    measured = run("benchmarks.merging", "--batches", str(BATCHES), "--output", str(tmp_path))
    assert json.loads((tmp_path / "merging.json").read_text()) == measured
    assert "space amplification" in (tmp_path / "merging.svg").read_text()
    modes = {mode["mode"]: mode for mode in measured["modes"]}
    off, within, across, native = (
        modes[mode.name] for mode in (merging.OFF, merging.WITHIN, merging.ACROSS, merging.NATIVE)
    )
    assert {len(mode["samples"]) for mode in modes.values()} == {BATCHES}
    # Off: in each batch a changelog and an operator list for each subtask.
    assert off["created"] >= 2 * SUBTASKS * BATCHES
    # A subtask's materialization may come on top, and a task that was too late to be merged.
    assert BATCHES <= within["created"] <= 2 * BATCHES + SUBTASKS
    assert across["created"] < within["created"] < native["created"]
    assert [one["created"] for one in (off, within, across)] == [
        one["recorded_created"] for one in (off, within, across)
    ]
    shares = {(one["mode"], one["than"]): one["share"] for one in measured["fewer"]}
    assert shares["within", "off"] == pytest.approx(1 - within["created"] / off["created"])
