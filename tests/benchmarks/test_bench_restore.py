from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.figures import Spread
from benchmarks.restore import Run, measure, measure_starts
from benchmarks.restore_figures import Measured, plot, targets, to_json
from benchmarks.restore_history import CHANGELOG, MATERIALIZED, History, Kinds, write_history
from benchmarks.restore_local import (
    Reads,
    Restore,
    SubtaskRestore,
    WrongStateError,
    check,
    restore,
)
from benchmarks.restore_rows import (
    WRITES,
    Probe,
    Shape,
    key_names,
    payloads,
    spark_hashes,
    steps,
    write_final_rows,
)
from benchmarks.restore_spark import CAIRN, NATIVE, Order, Start
from benchmarks.session import ROOT
from cairn.catalog.catalog import Catalog
from cairn.runtime.executor.run_context import RunContext
from cairn.settings import Settings

SMALL = Shape.of(1_000_000, 1000)
KINDS = {"changelog", "keyed_full", "keyed_increment"}


@pytest.mark.slow
def test_a_small_run_reads_what_the_checkpoint_holds_and_no_more(
    shared_metastore_url: str, tmp_path: Path
) -> None:
    measured = measure(run_in(tmp_path, shared_metastore_url, repetitions=1))
    assert measured.holds[MATERIALIZED].segments.keys() == KINDS
    assert measured.holds[CHANGELOG].segments.keys() == {"changelog"}
    for name, [one] in measured.restores.items():
        held = measured.holds[name]
        assert one.reads.size_bytes == sum(held.size_bytes.values())
        assert one.reads.requests == sum(held.segments.values())
        assert 2 <= one.reads.most_in_flight <= one.reads.requests
        assert one.seconds > 0
        assert one.cpu_s > 0
    # Random bytes do not compress, so every write of a key is in the changelog once.
    assert sum(measured.holds[CHANGELOG].size_bytes.values()) > WRITES * SMALL.state_bytes
    report = json.loads(json.dumps(to_json(measured)))
    assert report["state"]["bytes"] == 1_000_000
    assert report["targets"][0]["met"]
    assert CHANGELOG in plot(measured)


def run_in(directory: Path, metastore_url: str, repetitions: int) -> Run:
    """Returns a small run without Spark."""
    log = directory / "spark.log"
    return Run(SMALL, 2, repetitions, None, directory, log, metastore_url, lambda _: None)


def test_targets_compare_within_a_repetition_and_with_the_states_bytes() -> None:
    def restored(seconds: float, size_bytes: int) -> Restore:
        return Restore(seconds, 0.1, Reads(size_bytes, 3, 2))

    restores = {
        MATERIALIZED: [restored(1, 1_100_000), restored(2, 1_200_000)],
        CHANGELOG: [restored(4, 900_000), restored(10, 900_000)],
    }
    read, faster = targets(Measured(SMALL, 2, 0.0, restores=restores))
    assert astuple(read.spread) == pytest.approx((1.15, 1.1, 1.2))
    assert faster.spread == Spread(4.5, 4, 5)
    assert read.met
    assert faster.met


@pytest.mark.spark
def test_both_engines_start_on_the_state_and_say_how_long_they_load(
    metastore_url: str, tmp_path: Path
) -> None:
    history = write_history(MATERIALIZED, SMALL, 2, tmp_path / "history", metastore_url)
    warm_up, *probes = write_final_rows(SMALL, tmp_path / "rows", probes=3, probe_keys=20)
    final = [str(file) for file in sorted((tmp_path / "rows").glob("[0-9]*.parquet"))]
    given = {NATIVE: [*final, str(probes[0].file)], CAIRN: [str(probe.file) for probe in probes]}
    orders = [
        Order(
            *(engine, str(tmp_path / engine), files, str(warm_up.file)),
            *(2, str(tmp_path / "log"), metastore_url, history.manifest),
            collects=True,
        )
        for engine, files in given.items()
    ]
    native, ours = carry_out(orders)
    assert ours.output == probes[0].expected
    assert ours.restore_ms is not None
    assert native.native_ms.keys() >= {"rocksdbLoadLatencyMs"}
    assert [len(one.add_batch_ms) for one in (native, ours)] == [2, 2]


def carry_out(orders: Sequence[Order]) -> list[Start]:
    """Returns what a process of the module, with one JVM, prints for each order."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restore_spark"],
        input=b"\n".join(map(msgspec.json.encode, orders)),
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [msgspec.json.decode(line, type=Start) for line in done.stdout.splitlines()]


def orders_of(tmp_path: Path, *, lies: str = "") -> list[Order]:
    """Returns the orders of two repetitions that nobody carries out.

    Each engine finds its state, except the one that lies.
    """
    probes = [Probe(tmp_path / f"{n}.parquet", [(f"key-{n}", n, n)]) for n in range(7)]
    expected = {str(probe.file): probe.expected for probe in probes}
    orders: list[Order] = []

    def note(order: Order) -> Start:
        orders.append(order)
        local = Path(order.directory, "local")
        assert not (order.collects and local.exists())
        local.mkdir(parents=True)
        is_right = order.collects and order.engine != lies
        return Start([300, 100], [400, 200], output=expected[order.files[0]] if is_right else [])

    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "000.parquet").touch()
    starts = measure_starts(run_in(tmp_path, "", repetitions=2), note, "manifest", probes)
    assert {name: len(found) for name, found in starts.items()} == {NATIVE: 2, CAIRN: 2}
    return orders


def test_engines_take_turns_on_the_same_rows_without_their_local_state(tmp_path: Path) -> None:
    made = [
        (order.engine, [Path(file).stem for file in order.files], order.collects)
        for order in orders_of(tmp_path)
    ]
    assert made == [
        (NATIVE, ["000", "1", "2"], False),
        (CAIRN, ["1", "2"], False),
        (NATIVE, ["3", "4"], True),
        (CAIRN, ["3", "4"], True),
        (CAIRN, ["5", "6"], True),
        (NATIVE, ["5", "6"], True),
    ]


@pytest.mark.parametrize("engine", [NATIVE, CAIRN])
def test_a_start_on_other_state_is_no_measurement(engine: str, tmp_path: Path) -> None:
    with pytest.raises(WrongStateError, match=f"{engine} has other state"):
        orders_of(tmp_path, lies=engine)


def history_of(entries: int, digest: int) -> History:
    """Returns a history of two segments with 300 bytes that nobody wrote."""
    plan = RunContext(
        job="job",
        job_id="job",
        run_id="run",
        epoch=1,
        parallelism=2,
        max_parallelism=128,
        storage="",
        catalog=Catalog(""),
        settings=Settings(),
        tasks=2,
    )
    held = Kinds({"changelog": 2}, {"changelog": 300})
    return History("small", plan, 1, entries, digest, held, "manifest")


def test_a_restore_of_other_state_than_was_written_is_no_measurement(tmp_path: Path) -> None:
    found = [
        SubtaskRestore(0, 1, 1, Reads(size_bytes, 1, 1), entries=2, digest=2**64 - 1)
        for size_bytes in (100, 200)
    ]
    history = history_of(entries=4, digest=2**64 - 2)
    check(history, found)
    for wrong in (history_of(4, 5), history_of(3, 2**64 - 2)):
        with pytest.raises(WrongStateError, match="restored 4 entries with digest"):
            check(wrong, found)
    for segments, size_bytes in ((1, 300), (2, 301)):
        held = Kinds({"changelog": segments}, {"changelog": size_bytes})
        with pytest.raises(WrongStateError, match="2 requests read 300 bytes"):
            check(replace(history, holds=held), found)
    with pytest.raises(WrongStateError, match="before the restore"):
        restore(history, tmp_path)


def test_every_key_is_written_several_times_and_its_last_row_is_native_sparks_state(
    tmp_path: Path,
) -> None:
    writes: Counter[int] = Counter()
    last: dict[str, tuple[int, bytes]] = {}
    names = key_names(SMALL)
    for step in steps(SMALL):
        numbers = step.keys.tolist()
        writes.update(numbers)
        assert len(set(numbers)) == len(numbers)
        for number, payload in zip(numbers, payloads(SMALL, step), strict=True):
            last[names[number]] = (step.number, payload)
    assert len(writes) == SMALL.keys
    assert min(writes.values()) == WRITES
    assert len(steps(SMALL)) > 80
    probes = write_final_rows(SMALL, tmp_path / "rows", probes=3, probe_keys=20)
    found = [
        (row["key"], (row["value"], row["payload"]))
        for file in sorted((tmp_path / "rows").glob("[0-9]*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert len(found) == SMALL.keys
    assert dict(found) == last
    assert sum(len(k) + 8 + len(payload) for k, (_, payload) in found) == SMALL.state_bytes
    probed = [expected for probe in probes for expected in probe.expected]
    assert len({key for key, _, _ in probed}) == 60
    assert all(last[key][0] == value for key, value, _ in probed)
    assert all(zlib.crc32(last[key][1]) == checksum for key, _, checksum in probed)


def test_hashes_are_those_of_sparks_murmur3() -> None:
    # SELECT hash('user-0000000'), hash('user-0000001'), hash('user-9999999') in Spark 4.3.
    found = spark_hashes(["user-0000000", "user-0000001", "user-9999999"])
    assert found.dtype == np.int32
    assert found.tolist() == [1399028700, 528411428, 891373828]
