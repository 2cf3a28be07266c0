"""Figures of the measurements: medians with their spread, ratios, and whether targets are met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.materializations import BATCHES_SKIPPED, NEAR_BATCHES
from benchmarks.results import Repetition, Result
from benchmarks.workloads import (
    CAIRN,
    CAIRN_MATERIALIZING,
    CAIRN_NARROW,
    CAIRN_S3,
    CAIRN_SLOW_S3,
    CAIRN_WIDE,
    FLOOR,
    NATIVE,
    NATIVE_200,
    REQUEST_DELAY_MS,
)

FEWER_FILES = 20
FEWER_FILES_THAN_200 = 100
MOST_ROUND_TRIPS = 2
MOST_WHILE_MATERIALIZING = 1.1
MOST_WIDE = 2
MOST_LATER = 1.1
_EARLY, _LATE = slice(20, 60), slice(-40, None)
"""Batches at the start of a stream, once it is warm, and at its end."""
_MANY = 100
"""Batches from which on these are not the same."""
LEAST_COMPARED = 5
"""Batches with a materialization, and without, in a repetition."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the repetitions."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one engine did on one workload; times in ms, counts a batch."""

    workload: str
    engine: str
    add_batch_ms: Spread
    trigger_ms: Spread
    first_batch_ms: Spread
    restart_ms: Spread
    files: Spread
    snapshot_files: Spread
    checksum_files: Spread
    requests: Spread


@dataclass(frozen=True, slots=True)
class Target:
    """A comparison and its target: at least `bound`, or at most."""

    workload: str
    what: str
    spread: Spread
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the median is on the right side of the bound."""
        median = self.spread.median
        return median >= self.bound if self.at_least else median <= self.bound


def figures(result: Result) -> Iterator[Figures]:
    """Yields the figures of each engine."""
    for name, repetitions in result.repetitions.items():

        def spread(
            figure: Callable[[Repetition], float], repetitions: list[Repetition] = repetitions
        ) -> Spread:
            return Spread.of([figure(repetition) for repetition in repetitions])

        yield Figures(
            workload=result.workload.name,
            engine=name,
            add_batch_ms=spread(_add_batch_ms),
            trigger_ms=spread(lambda one: statistics.median(one.trigger_ms)),
            first_batch_ms=spread(lambda one: one.first_batch_ms),
            restart_ms=spread(lambda one: one.restart_ms),
            files=spread(_files),
            snapshot_files=spread(lambda one: one.snapshot_files / one.batches),
            checksum_files=spread(lambda one: one.checksum_files / one.batches),
            requests=spread(_requests),
        )


def targets(result: Result) -> Iterator[Target]:
    """Yields what the engines of a workload are compared by."""
    work, by_engine = result.workload, result.repetitions

    def target(what: str, values: Sequence[float], bound: float, *, at_least: bool) -> Target:
        return Target(work.name, what, Spread.of(values), bound, at_least)

    def ratio(above: str, below: str, figure: Callable[[Repetition], float]) -> list[float]:
        return [
            figure(one) / figure(other)
            for one, other in zip(by_engine[above], by_engine[below], strict=True)
        ]

    native, cairn, floor = NATIVE.name, CAIRN.name, FLOOR.name
    if {native, cairn} <= by_engine.keys():
        faster = ratio(native, cairn, _add_batch_ms)
        yield target("addBatch, native/Cairn", faster, work.faster_than_native, at_least=True)
        restart = ratio(cairn, native, lambda one: one.first_batch_ms)
        yield target("restart, first batch, Cairn/native", restart, 1, at_least=False)
        files = ratio(native, cairn, _files)
        yield target("files, native/Cairn", files, FEWER_FILES, at_least=True)
    if {cairn, floor} <= by_engine.keys() and work.above_floor is not None:
        above = ratio(cairn, floor, _add_batch_ms)
        yield target("addBatch, Cairn/floor", above, work.above_floor, at_least=False)
    compared = map(_while_materializing, by_engine.get(CAIRN_MATERIALIZING.name, []))
    if slower := [found for found in compared if found is not None]:
        what = "addBatch, materializing/not"
        yield target(what, slower, MOST_WHILE_MATERIALIZING, at_least=False)
    if {NATIVE_200.name, cairn} <= by_engine.keys():
        files = ratio(NATIVE_200.name, cairn, _files)
        yield target("files, native at 200/Cairn", files, FEWER_FILES_THAN_200, at_least=True)
    wide = CAIRN_WIDE.name
    if {CAIRN_NARROW.name, wide} <= by_engine.keys():
        longer = ratio(wide, CAIRN_NARROW.name, _add_batch_ms)
        yield target("addBatch, P=200/P=8", longer, MOST_WIDE, at_least=False)
        if later := [_late(one) / _early(one) for one in by_engine[wide] if one.batches > _MANY]:
            yield target("addBatch at P=200, late/early", later, MOST_LATER, at_least=False)
    if {CAIRN_S3.name, CAIRN_SLOW_S3.name} <= by_engine.keys():
        slow, fast = by_engine[CAIRN_SLOW_S3.name], by_engine[CAIRN_S3.name]
        requests = [_requests(one) for one in slow]
        yield target("S3 requests a batch", requests, MOST_ROUND_TRIPS, at_least=False)
        added = [
            (_add_batch_ms(one) - _add_batch_ms(other)) / REQUEST_DELAY_MS
            for one, other in zip(slow, fast, strict=True)
        ]
        what = f"time added by S3 / {REQUEST_DELAY_MS} ms"
        yield target(what, added, MOST_ROUND_TRIPS, at_least=False)


def _add_batch_ms(one: Repetition) -> float:
    return statistics.median(one.add_batch_ms)


def _early(one: Repetition) -> float:
    return statistics.median(one.add_batch_ms[_EARLY])


def _late(one: Repetition) -> float:
    return statistics.median(one.add_batch_ms[_LATE])


def _while_materializing(one: Repetition) -> float | None:
    """Returns how much longer batches took all through which some subtask was materialized.

    Each is compared with the median of those near it in which none was, because a stream becomes
    faster and slower by itself, and counted only if there are enough of them. Returns the median of
    these ratios; None if there are too few.
    """
    batches = list(zip(one.add_batch_ms, one.materializing, strict=True))[BATCHES_SKIPPED:]
    ratios = []
    for place, (ms, share) in enumerate(batches):
        near = batches[max(0, place - NEAR_BATCHES) : place + NEAR_BATCHES + 1]
        without = [ms for ms, share in near if share == 0]
        if share == 1 and len(without) >= LEAST_COMPARED:
            ratios.append(ms / statistics.median(without))
    return statistics.median(ratios) if len(ratios) >= LEAST_COMPARED else None


def _files(one: Repetition) -> float:
    return one.files / one.batches


def _requests(one: Repetition) -> float:
    return statistics.median(one.requests)
