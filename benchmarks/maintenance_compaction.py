"""How fast a compaction is beside the store's plain copy, and what it reads and writes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from benchmarks.apart import run_apart
from benchmarks.applied import compact
from benchmarks.maintenance_shape import (
    LEAST_COPY_SHARE,
    Figure,
    Place,
    memory_figure,
    transaction_figure,
)
from benchmarks.maintenance_steps import allow
from benchmarks.metastore_shape import JobRef
from benchmarks.plain_copies import copy_in_store, copy_whole_in_store
from benchmarks.stores import copying_store
from benchmarks.wasteful_job import BASES_A_FILE, wasteful_job
from cairn.catalog.catalog import Catalog

_MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One compaction, and plain copies of as many bytes in the same minute."""

    seconds: float
    plain_s: float
    whole_s: float
    """Of plain copies with one request an object."""
    done: dict[str, Any]
    memory_mb: float
    longest_transaction_ms: float

    @property
    def share(self) -> float:
        """The compaction's throughput over the plain copy's."""
        return self.plain_s / self.seconds


def measure_compaction(place: Place) -> list[Figure]:
    """Returns the throughput of a compaction, with the store's own in the same rounds."""
    with copying_store(place) as storage:
        allow(storage)
        rounds = [_round(place, storage, number) for number in range(place.sizes.rounds)]
    copied_bytes = rounds[0].done["copied_bytes"]
    name = f"{copied_bytes / _MB:,.0f} MB"
    return [
        _figure(f"{name}, whole objects", _median(copied_bytes / _MB / r.whole_s for r in rounds)),
        _figure(f"{name}, plain copy", _median(copied_bytes / _MB / r.plain_s for r in rounds)),
        _figure(name, _median(copied_bytes / _MB / r.seconds for r in rounds)),
        Figure(
            workload="compaction",
            name=f"{name} over the plain copy",
            value=_median(r.share for r in rounds),
            unit="times",
            wanted=LEAST_COPY_SHARE,
        ),
        Figure(
            workload="compaction",
            name="bytes read and written for a byte freed",
            value=2 * copied_bytes / rounds[0].done["freed_bytes"],
            unit="",
        ),
        transaction_figure("compaction", name, max(one.longest_transaction_ms for one in rounds)),
        memory_figure("compaction", name, max(one.memory_mb for one in rounds)),
    ]


def _round(place: Place, storage: str, number: int) -> _Round:
    sizes = place.sizes
    job = wasteful_job(
        place.url, storage, f"wasteful-{number}", sizes.compacted_files, sizes.segment_bytes
    )
    # As many bytes as are live in all of them.
    plain = _large_files(place.url, job)[: sizes.compacted_files // BASES_A_FILE or 1]
    whole_s = run_apart(copy_whole_in_store, storage, plain).found
    plain_s = [run_apart(copy_in_store, storage, plain, sizes.segment_bytes).found]
    made = run_apart(compact, place.url, job.name)
    plain_s.append(run_apart(copy_in_store, storage, plain, sizes.segment_bytes).found)
    seconds, done = made.found
    live_bytes = sizes.compacted_files * sizes.segment_bytes
    if (done["copied_bytes"], done["outpaced_files"]) != (live_bytes, 0):
        raise RuntimeError(f"{live_bytes} bytes are live, and the compaction did {done}")
    return _Round(
        seconds=seconds,
        plain_s=statistics.mean(plain_s),
        whole_s=whole_s,
        done=done,
        memory_mb=made.memory_mb,
        longest_transaction_ms=made.longest_transaction_ms,
    )


def _large_files(url: str, job: JobRef) -> list[str]:
    statement = text(
        "SELECT path FROM cairn.physical_files WHERE job_id = :job AND status = 'SEALED'"
        " AND dead_bytes > 0 ORDER BY path"
    )
    return Catalog(url).run(
        "listing files", lambda c: list(c.scalars(statement, {"job": job.job_id}))
    )


def _figure(name: str, value: float) -> Figure:
    return Figure(workload="compaction", name=name, value=value, unit="MB/s")


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))
