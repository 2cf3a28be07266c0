"""The metastore of a job stays as large as its history, however many batches pass."""

from __future__ import annotations

import pytest

from benchmarks.history import CLEANUP_BATCHES, Year
from benchmarks.metastore_server import TableSize

STAY = 2 * CLEANUP_BATCHES


@pytest.mark.slow
def test_tables_do_not_grow_however_many_batches_pass(metastore_url: str, tmp_storage: str) -> None:
    year = Year(metastore_url, tmp_storage, STAY)
    try:
        early = after_cycles(year, 5)
        late = after_cycles(year, 6)
    finally:
        year.close()
    assert STAY <= late["checkpoints"].rows <= STAY + CLEANUP_BATCHES
    trimmed = ("checkpoints", "group_commits", "physical_files", "deletions", "maintenance_runs")
    for name in trimmed:
        assert late[name].rows == early[name].rows
        # Pages of indexes by random ids settle half full.
        assert bytes_of(late[name]) < 1.2 * bytes_of(early[name]), name


def after_cycles(year: Year, cycles: int) -> dict[str, TableSize]:
    """Returns the sizes of tables after some cleanups, each with a vacuum, whoever else does it."""
    for _ in range(cycles):
        year.cycle()
        year.server.execute("VACUUM")
    return year.server.sizes()


def bytes_of(size: TableSize) -> int:
    return size.heap_bytes + size.index_bytes
