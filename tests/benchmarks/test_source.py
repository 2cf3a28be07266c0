from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import source
from benchmarks.source import Source
from benchmarks.workloads import WORKLOADS

SMALL = replace(WORKLOADS[0], rows=50, keys=7, items=3)


def test_preloading_gives_each_key_each_item_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PRELOAD_ROWS", 8)
    files = Source(SMALL, tmp_path / "input").preload()
    tables = [pq.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [8, 8, 5]
    cells = [(row["key"], row["item"]) for table in tables for row in table.to_pylist()]
    assert len(set(cells)) == len(cells) == 21
    assert len({key for key, _ in cells}) == 7


def test_every_run_reads_the_same_rows_and_every_batch_others(tmp_path: Path) -> None:
    one = [pq.read_table(file) for file in Source(SMALL, tmp_path / "a").batches(2)]
    again = [pq.read_table(file) for file in Source(SMALL, tmp_path / "b").batches(2)]
    assert one == again
    assert one[0] != one[1]
    assert [table.num_rows for table in one] == [50, 50]


def test_spark_reads_the_files_in_the_order_they_were_written(tmp_path: Path) -> None:
    made = Source(SMALL, tmp_path / "input")
    files = made.preload() + made.batches(3)
    assert sorted(files, key=lambda file: file.stat().st_mtime) == files
    assert len({file.stat().st_mtime for file in files}) == len(files)
