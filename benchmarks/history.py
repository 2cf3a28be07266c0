"""`python -m benchmarks.history`: whether the metastore stays small and fast over a year.

A job with P=4 on one executor has a batch a second and a cleanup each ten minutes. Its history is
made by SQL. What a batch, a cleanup's plan and a trim take is measured with the catalog's calls,
when the history is full for the first time and at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import new_table, positive, workplace
from benchmarks.history_rows import PARALLELISM, add_batches
from benchmarks.metastore_calls import CatalogCalls
from benchmarks.metastore_server import Server
from benchmarks.metastore_shape import Batch, JobRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.embedded import resolve_url
from cairn.maintenance.housekeeping import trim_job

CLEANUP_BATCHES = 600
SAMPLES = 30
MOST_GROWTH = 1.2
"""Of a call, from when the history is full for the first time."""
VACUUM_SHARE = 0.2
"""PostgreSQL's default: autovacuum comes when so much of a table is dead. A year in minutes leaves
it no time, so it is done here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The metastore after a number of batches: MB with indexes, rows, and ms of a call, medians."""

    batches: int
    size_mb: float
    rows: int
    begin_ms: float
    intent_ms: float
    ack_ms: float
    plan_ms: float
    trim_ms: float


class Year:
    """A job with a history, on a metastore of its own."""

    def __init__(self, url: str, storage: str, checkpoints: int) -> None:
        self.server = Server(url)
        self.calls = CatalogCalls(url)
        self.calls.migrate()
        self.catalog = Catalog(url, timeout_ms=600_000)
        self.job: JobRef = self.calls.register("year", PARALLELISM, storage)
        # Of a time long ago, so the age must not decide.
        self.server.execute(
            "UPDATE cairn.jobs SET history_retention_ms = 1000000000000,"  # noqa: S608 - a number
            f" history_max_checkpoints = {checkpoints}"
        )
        self.start = datetime.now(UTC) - timedelta(days=800)
        self.batches = 0
        self.trims_ms: list[float] = []

    def cycle(self) -> None:
        """Lets the batches between two cleanups pass, and the cleanup."""
        first, last = self.batches, self.batches + CLEANUP_BATCHES - 1
        add_batches(self.catalog, self.job, self.start, first, last)
        self.batches = last + 1
        facts = JobFacts(
            job_id=self.job.job_id,
            name=self.job.name,
            storage="",
            num_retained=3,
            file_retention_ms=0,
            current_epoch=1,
        )
        began_s = time.monotonic()
        trim_job(self.catalog, facts)
        self.trims_ms.append(1000 * (time.monotonic() - began_s))
        self._vacuum()

    def _vacuum(self) -> None:
        tables = self.server.read(
            "SELECT s.relname FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid"
            " WHERE s.schemaname = 'cairn'"
            " AND s.n_dead_tup > 50 + :share * greatest(c.reltuples, 0)",
            share=VACUUM_SHARE,
        )
        for (table,) in tables:
            self.server.execute(f"VACUUM (ANALYZE) cairn.{table}")

    def measure(self) -> Measured:
        """Runs some batches by the protocol's calls; returns what they take, and the sizes."""
        sizes = self.server.sizes().values()
        times: dict[str, list[float]] = {"begin": [], "intent": [], "ack": [], "plan": []}
        for _ in range(SAMPLES):
            batch = Batch(self.job, self.batches)
            began_s = time.monotonic()
            checkpoint_id = self.calls.begin(batch, range(PARALLELISM))
            times["begin"].append(time.monotonic() - began_s)
            taken = self.calls.commit_group(batch, checkpoint_id, 0, range(PARALLELISM))
            for name, seconds in taken.items():
                times[name].append(seconds)
            began_s = time.monotonic()
            self.calls.plan_cleanup(self.job)
            times["plan"].append(time.monotonic() - began_s)
            self.batches += 1
        found = {name: 1000 * statistics.median(seconds) for name, seconds in times.items()}
        return Measured(
            batches=self.batches,
            size_mb=sum(one.heap_bytes + one.index_bytes for one in sizes) / 1e6,
            rows=sum(one.rows for one in sizes),
            begin_ms=found["begin"],
            intent_ms=found["intent"],
            ack_ms=found["ack"],
            plan_ms=found["plan"],
            trim_ms=statistics.median(self.trims_ms[-20:]),
        )

    def close(self) -> None:
        """Closes the connections."""
        self.server.close()
        self.calls.close()


def measure_years(year: Year, turnovers: int, cycles: int, console: Console) -> list[Measured]:
    """Lets the history fill and be replaced so often; returns what was measured now and then."""
    found: list[Measured] = []
    for turnover in range(turnovers + 1):
        for _ in range(cycles):
            year.cycle()
        if turnover in (0, 1, turnovers) or turnover % 10 == 0:
            found.append(year.measure())
            console.print(found[-1])
    return found


def table_of(found: list[Measured], title: str) -> Table:
    """Returns a row for each time that something was measured."""
    columns = ("batches", "MB", "rows", "begin", "intent", "ack", "plan", "trim")
    table = new_table(title, *columns)
    for each in found:
        calls_ms = (each.begin_ms, each.intent_ms, each.ack_ms, each.plan_ms, each.trim_ms)
        sizes = (f"{each.batches:,}", f"{each.size_mb:.1f}", f"{each.rows:,}")
        table.add_row(*sizes, *(f"{ms:.1f}" for ms in calls_ms))
    return table


def main(arguments: list[str]) -> int:
    """Lets the batches pass, measures, prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history")
    parser.add_argument("--checkpoints", type=positive, default=6_000, help="that stay")
    parser.add_argument("--turnovers", type=positive, default=20, help="how often all are replaced")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    cycles = -(-chosen.checkpoints // CLEANUP_BATCHES)
    with workplace(chosen.output / "history") as (work, metastore):
        storage = work / "storage"
        storage.mkdir()
        year = Year(resolve_url(metastore), storage.as_uri(), chosen.checkpoints)
        try:
            found = measure_years(year, chosen.turnovers, cycles, console)
            for name, one in sorted(year.server.sizes().items()):
                console.print(name, one)
        finally:
            year.close()
    title = f"{chosen.checkpoints} checkpoints stay, load {os.getloadavg()[0]:.1f}"
    console.print(table_of(found, title))
    first, last = found[0], found[-1]
    for name, ratio in (
        ("begin", last.begin_ms / first.begin_ms),
        ("ack", last.ack_ms / first.ack_ms),
        ("MB", last.size_mb / first.size_mb),
    ):
        console.print(f"{name}, last over first: {ratio:.2f} (wanted: at most {MOST_GROWTH})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
