from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.figures import Spread, figures, targets
from benchmarks.materializations import BATCHES_SKIPPED, NEAR_BATCHES
from benchmarks.report import plot
from benchmarks.results import Repetition, Result
from benchmarks.workloads import WORKLOADS, Workload

ONE = Repetition(
    restart_ms=900,
    first_batch_ms=700,
    add_batch_ms=[100, 300, 200],
    trigger_ms=[150, 350, 250],
    files=8,
    snapshot_files=3,
    checksum_files=4,
    requests=[9, 1, 2],
    batches=4,
    materializing=[0.0, 0.0, 0.0],
)


def workload(name: str) -> Workload:
    return next(one for one in WORKLOADS if one.name == name)


def timed(*add_batch_ms: int, first_batch_ms: int = 700) -> list[Repetition]:
    return [replace(ONE, add_batch_ms=[one], first_batch_ms=first_batch_ms) for one in add_batch_ms]


def test_names_of_workloads_are_unique() -> None:
    names = [one.name for one in WORKLOADS]
    assert len(set(names)) == len(names)


def test_figures_are_medians_of_batches_then_of_repetitions() -> None:
    other = replace(ONE, add_batch_ms=[1000, 2000, 9000], files=20, checksum_files=0, requests=[1])
    last = replace(ONE, add_batch_ms=[400])
    found = next(figures(Result(workload("counting-p2"), {"native": [ONE, other, last]})))
    assert found.add_batch_ms == Spread(400, 200, 2000)
    assert found.files == Spread(2, 2, 5)
    assert found.snapshot_files == Spread(0.75, 0.75, 0.75)
    assert found.checksum_files == Spread(1, 0, 1)
    assert found.requests == Spread(2, 1, 2)


def test_ratios_are_taken_within_a_repetition() -> None:
    result = Result(
        workload("counting-p2"),
        {
            "native": timed(1000, 8000, 900),
            "cairn": timed(100, 1000, 100),
            "floor": timed(50, 50, 50),
        },
    )
    found = {target.what: target for target in targets(result)}
    faster = found["addBatch, native/Cairn"]
    assert faster.spread == Spread(9, 8, 10)
    assert faster.met
    above = found["addBatch, Cairn/floor"]
    assert above.spread == Spread(2, 2, 20)
    assert above.met
    assert not found["files, native/Cairn"].met


@pytest.mark.parametrize(("cairn_ms", "met"), [(699, True), (700, True), (701, False)])
def test_a_restart_may_take_as_long_as_natives(cairn_ms: int, met: bool) -> None:
    result = Result(
        workload("map"),
        {"native": timed(1, first_batch_ms=700), "cairn": timed(1, first_batch_ms=cairn_ms)},
    )
    found = {target.what: target.met for target in targets(result)}
    assert found["restart, first batch, Cairn/native"] is met


def test_time_that_s3_adds_is_told_in_round_trips() -> None:
    result = Result(
        workload("s3-p2"), {"cairn-s3": timed(100, 100), "cairn-s3-30ms": timed(160, 130)}
    )
    found = {target.what: target for target in targets(result)}
    assert found["time added by S3 / 30 ms"].spread == Spread(1.5, 1, 2)
    assert found["S3 requests a batch"].spread.median == 2


def test_batches_beside_a_materialization_are_compared_with_others_near_them() -> None:
    early, far = [(5000, 1.0)] * BATCHES_SKIPPED, [(10, 0.0)] * NEAR_BATCHES
    beside = [(ms, 1.0) for ms in (80, 90, 120, 130, 140)]
    near = [(100, 0.0)] * (NEAR_BATCHES - len(beside) // 2)
    batches = [*early, *far, *near, *beside, (9000, 0.5), *near, *far]
    times_ms, shares = zip(*batches, strict=True)
    slower = replace(ONE, add_batch_ms=list(times_ms), materializing=list(shares))
    too_few = replace(slower, materializing=[0.5 if ms == 80 else share for ms, share in batches])
    result = Result(workload("materializing"), {"cairn-materializing": [slower, too_few, slower]})
    [target] = targets(result)
    assert target.spread == Spread(1.2, 1.2, 1.2)
    assert not target.met
    result = Result(workload("materializing"), {"cairn-materializing": [too_few]})
    assert list(targets(result)) == []


def test_plot_has_a_bar_for_each_engine() -> None:
    result = Result(workload("map"), {"native": timed(400), "cairn": timed(100)})
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', plot([result]))]
    assert widths == [pytest.approx(4 * widths[1]), widths[1]]


def test_a_wide_stream_is_compared_with_a_narrow_one_and_its_end_with_its_start() -> None:
    narrow = replace(ONE, add_batch_ms=[100] * 200, batches=201)
    wide = replace(narrow, add_batch_ms=[900] * 20 + [150] * 140 + [180] * 40)
    result = Result(workload("wide"), {"cairn-8": [narrow], "cairn-200": [wide]})
    found = {target.what: target for target in targets(result)}
    assert found["addBatch, P=200/P=8"].spread.median == 1.5
    assert found["addBatch at P=200, late/early"].spread.median == pytest.approx(1.2)
    assert not found["addBatch at P=200, late/early"].met


def test_the_end_of_a_short_stream_is_not_compared() -> None:
    result = Result(workload("wide"), {"cairn-8": [ONE], "cairn-200": [ONE]})
    assert [target.what for target in targets(result)] == ["addBatch, P=200/P=8"]
