"""`make bench-merging` counts real files, and every mode puts out the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import merging

BATCHES = 3
SUBTASKS = merging.SUBTASKS


@pytest.mark.spark
def test_modes_differ_by_the_files_that_each_batch_makes(
    bench_session: SparkSession, metastore_url: str, tmp_path: Path
) -> None:
    words = replace(merging.WORDS, rows=200, keys=50)
    outcomes = merging.measure(bench_session, BATCHES, tmp_path, metastore_url, print, words)
    modes = {outcome.mode: outcome for outcome in outcomes}
    off, within, across, native = (
        modes[mode.name] for mode in (merging.OFF, merging.WITHIN, merging.ACROSS, merging.NATIVE)
    )
    assert {len(mode.samples) for mode in modes.values()} == {BATCHES}
    # Off: in each batch a changelog and an operator list for each subtask.
    assert off.created >= 2 * SUBTASKS * BATCHES
    # A subtask's materialization may come on top, and a task that was too late to be merged.
    assert BATCHES <= within.created <= 2 * BATCHES + SUBTASKS
    assert across.created < within.created < native.created
    assert [one.created for one in (off, within, across)] == [
        one.recorded_created for one in (off, within, across)
    ]


def test_the_report_compares_modes_and_plots_each_batch() -> None:
    sample = merging.Sample(files=8, size_bytes=1000, amplification=1.5)
    outcomes = [
        merging.Outcome(mode.name, created, 0, recorded, 0, [sample, sample])
        for mode, created, recorded in zip(
            merging.MODES, (200, 100, 20, 2), (None, 100, 20, 2), strict=True
        )
    ]
    report = merging.to_json(outcomes, batches=2)
    assert [mode["created"] for mode in report["modes"]] == [200, 100, 20, 2]
    shares = {(one["mode"], one["than"]): one["share"] for one in report["fewer"]}
    assert shares == {
        ("within", "off"): pytest.approx(0.8),
        ("across", "off"): pytest.approx(0.98),
        ("within", "native"): pytest.approx(0.9),
        ("across", "native"): pytest.approx(0.99),
    }
    assert "space amplification" in merging.plot(outcomes)
