from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.restore_history import CHANGELOG, MATERIALIZED, History, write_history
from benchmarks.restore_local import WrongStateError, restore
from benchmarks.restore_rows import (
    WRITES,
    Shape,
    key_names,
    payloads,
    spark_hashes,
    steps,
    write_final_rows,
)
from tests.benchmarks.running import run

SMALL = Shape.of(400_000, 1000)
KINDS = {"changelog", "keyed_full", "keyed_increment"}


def measure(tmp_path: Path, *arguments: str) -> Any:
    measured = run("benchmarks.restore", "--output", str(tmp_path), *arguments)
    assert measured == json.loads((tmp_path / "restore.json").read_text())
    assert not (tmp_path / "work-restore").exists()
    return measured


def test_a_small_run_reads_what_the_checkpoint_holds_and_no_more(tmp_path: Path) -> None:
    measured = measure(tmp_path, "--size-mb", "1", "--repetitions", "2", "--without-spark")
    state_bytes = measured["state"]["bytes"]
    assert state_bytes == 1_000_000
    assert measured["holds"][MATERIALIZED]["segments"].keys() == KINDS
    assert measured["holds"][CHANGELOG]["segments"].keys() == {"changelog"}
    for name, restores in measured["restores"].items():
        held = measured["holds"][name]
        assert len(restores) == 2
        for one in restores:
            assert one["reads"]["size_bytes"] == sum(held["size_bytes"].values())
            assert one["reads"]["requests"] == sum(held["segments"].values())
            assert 2 <= one["reads"]["most_in_flight"] <= one["reads"]["requests"]
            assert one["seconds"] > 0
            assert one["cpu_s"] > 0
    # Random bytes do not compress, so every write of a key is in the changelog once.
    assert sum(measured["holds"][CHANGELOG]["size_bytes"].values()) > WRITES * state_bytes
    read, faster = measured["targets"]
    by_repetition = zip(*measured["restores"].values(), strict=True)
    ratios = sorted(b["seconds"] / a["seconds"] for a, b in by_repetition)
    assert [faster["spread"]["lowest"], faster["spread"]["highest"]] == pytest.approx(ratios)
    held_bytes = sum(measured["holds"][MATERIALIZED]["size_bytes"].values())
    assert read["spread"]["median"] == pytest.approx(held_bytes / state_bytes)
    assert read["met"]


@pytest.mark.spark
def test_a_small_run_starts_both_engines_again_on_the_same_state(tmp_path: Path) -> None:
    measured = measure(tmp_path, "--size-mb", "1", "--repetitions", "1")
    [native], [ours] = measured["spark"]["native"], measured["spark"]["cairn"]
    assert ours["restore_ms"] > 0
    assert native["native_ms"]["rocksdbLoadLatencyMs"] > 0
    for one in (native, ours):
        assert len(one["add_batch_ms"]) == 2
        assert one["loading_ms"] == one["add_batch_ms"][0] - one["add_batch_ms"][1]


@pytest.fixture
def history(shared_metastore_url: str, tmp_path: Path) -> History:
    return write_history(MATERIALIZED, SMALL, 2, tmp_path / "histories", shared_metastore_url)


def test_a_restore_of_other_state_than_was_written_is_no_measurement(
    history: History, tmp_path: Path
) -> None:
    done = restore(history, tmp_path / "restored")
    assert done.reads.size_bytes == sum(history.holds.size_bytes.values())
    assert not (tmp_path / "restored").exists()
    with pytest.raises(WrongStateError, match="restored 400 entries with digest"):
        restore(replace(history, digest=history.digest ^ 1), tmp_path / "restored")
    more = replace(history.holds, segments={"changelog": 1})
    with pytest.raises(WrongStateError, match="requests read"):
        restore(replace(history, holds=more), tmp_path / "restored")
    (tmp_path / "restored").mkdir(exist_ok=True)
    with pytest.raises(WrongStateError, match="before the restore"):
        restore(history, tmp_path / "restored")


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
