"""A stream with maintenance beside it and without, and what its executors are spared by it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import cairn
from benchmarks.beside import maintained
from benchmarks.executor_cpu import ExecutorCpu
from benchmarks.maintenance_shape import Figure, Place
from benchmarks.maintenance_steps import allow
from benchmarks.processors import Count
from benchmarks.session import spark_session
from benchmarks.stub_s3 import stub_s3
from metastore.enums import MaterializedBy

MOST_SLOWDOWN = 1.05
_PARALLELISM = 2
_PAUSE_S = 0.05
_LONGEST_BATCH_S = 60
_SPREAD = 7919
"""Neighbouring rows are of other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """Some batches: how long each took, and the CPU that a batch cost the executors."""

    batches_ms: Sequence[float]
    workers_cpu_ms: float
    materializing_cpu_ms: float

    @property
    def median_ms(self) -> float:
        return statistics.median(self.batches_ms)

    @property
    def cpu_ms(self) -> float:
        return self.workers_cpu_ms + self.materializing_cpu_ms


def measure_stream(place: Place) -> list[Figure]:
    """Returns how much slower batches are beside maintenance, and the executors' CPU a batch."""
    with stub_s3() as s3, spark_session(place.directory / "spark.log") as session:
        s3.slow_down(place.sizes.delay_ms)
        allow(s3.url)
        with _running(place, session, s3.url, MaterializedBy.STREAM) as stream:
            alone = [stream.phase() for _ in range(place.sizes.rounds)]
        with _running(place, session, s3.url, MaterializedBy.MAINTENANCE) as stream:
            pairs, done = _pairs(place, stream)
    return _figures(alone, pairs, done)


Pairs = Sequence[tuple[_Phase, _Phase]]


def _pairs(place: Place, stream: _Stream) -> tuple[Pairs, dict[str, float]]:
    """Returns phases without maintenance and with it, in turns, and what that did altogether."""
    pairs: list[tuple[_Phase, _Phase]] = []
    total: dict[str, float] = {}
    for number in range(place.sizes.rounds):
        found: dict[bool, _Phase] = {}
        for is_maintained in (number % 2 == 1, number % 2 == 0):
            beside = maintained(place.url, stream.name) if is_maintained else nullcontext(dict)
            with beside as done:
                stream.settle()
                found[is_maintained] = stream.phase()
            for name, count in done().items():
                total[name] = total.get(name, 0.0) + count
        pairs.append((found[False], found[True]))
    return pairs, total


class _Stream:
    """A query with a batch a second."""

    def __init__(self, name: str, query: StreamingQuery, cpu: ExecutorCpu, batches: int) -> None:
        self.name = name
        self._query, self._cpu, self._batches = query, cpu, batches

    def settle(self) -> None:
        """Waits for some batches that are not measured."""
        self._wait_for(self._newest() + max(1, self._batches // 5))

    def phase(self) -> _Phase:
        """Returns the next batches."""
        first = self._newest() + 1
        before_s = (self._cpu.workers_s, self._cpu.materializing_s)
        self._wait_for(first + self._batches - 1)
        used_s = (self._cpu.workers_s - before_s[0], self._cpu.materializing_s - before_s[1])
        return _Phase(
            batches_ms=[
                found["durationMs"]["triggerExecution"]
                for found in self._query.recentProgress
                if found["batchId"] >= first and found["numInputRows"]
            ],
            workers_cpu_ms=1000 * used_s[0] / self._batches,
            materializing_cpu_ms=1000 * used_s[1] / self._batches,
        )

    def _newest(self) -> int:
        newest = self._query.lastProgress
        return int(newest["batchId"]) if newest else -1

    def _wait_for(self, batch: int) -> None:
        seen, moved_s = self._newest(), time.monotonic()
        while seen < batch:
            time.sleep(_PAUSE_S)
            if error := self._query.exception():
                raise RuntimeError(f"{self.name} failed") from error
            newest = self._newest()
            if newest > seen:
                seen, moved_s = newest, time.monotonic()
            elif time.monotonic() - moved_s > _LONGEST_BATCH_S:
                raise RuntimeError(f"{self.name}: no batch after {seen}")


@contextmanager
def _running(
    place: Place, session: SparkSession, storage: str, by: MaterializedBy
) -> Iterator[_Stream]:
    """Yields a stream whose first batches, while Java compiles, are over."""
    sizes, name = place.sizes, f"stream-by-{by.value}"
    job = cairn.Job(
        name,
        storage=storage,
        metastore=place.url,
        parallelism=_PARALLELISM,
        options={
            "cairn.local-dir": str(place.directory / "local"),
            "cairn.changelog.periodic-materialize.interval": f"{sizes.materialize_s} s",
            "cairn.changelog.periodic-materialize.by": by.value,
        },
    )
    session.conf.set("spark.sql.shuffle.partitions", str(_PARALLELISM))
    rows = session.readStream.format("rate").option("rowsPerSecond", sizes.stream_rows).load()
    keyed = rows.selectExpr(f"concat('k', value * {_SPREAD} % {sizes.stream_keys}) AS key")
    counts = job.groupBy(keyed, "key").transformWithState(
        Count(), "key string, n long", "Update", "None"
    )
    writer = counts.writeStream.outputMode("update").trigger(processingTime="1 second")
    checkpoint = place.directory / "checkpoints" / name
    with ExecutorCpu() as cpu:
        query = writer.option("checkpointLocation", str(checkpoint)).format("noop").start()
        try:
            stream = _Stream(name, query, cpu, sizes.stream_batches)
            stream.phase()
            yield stream
        finally:
            query.stop()


def _figures(alone: Sequence[_Phase], pairs: Pairs, done: dict[str, float]) -> list[Figure]:
    beside = [with_it for _, with_it in pairs]
    batches = sum(len(one.batches_ms) for one in beside)
    told = ", ".join(f"{done[name]:.0f} {name}" for name in ("folds", "cleanups", "sweeps"))
    return [
        _figure("a batch without maintenance", [one.median_ms for one, _ in pairs]),
        _figure(f"a batch beside it ({told})", [one.median_ms for one in beside]),
        Figure(
            workload="stream",
            name="beside over without, of a round",
            value=statistics.median(b.median_ms / a.median_ms for a, b in pairs),
            unit="times",
            wanted=MOST_SLOWDOWN,
            at_least=False,
        ),
        _figure("executors' CPU a batch, by stream", [one.cpu_ms for one in alone]),
        _figure("of it materializing", [one.materializing_cpu_ms for one in alone]),
        _figure("executors' CPU a batch, by maintenance", [one.cpu_ms for one in beside]),
        _figure("the maintenance's own CPU a batch", [1000 * done["cpu_s"] / batches]),
    ]


def _figure(name: str, values_ms: Sequence[float]) -> Figure:
    return Figure(workload="stream", name=name, value=statistics.median(values_ms), unit="ms")
