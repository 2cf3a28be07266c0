"""Runs one workload on its engines in turn."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.memory import WorkerSampler
from benchmarks.results import Result, WorkerMemory
from benchmarks.session import spark_session
from benchmarks.source import Source
from benchmarks.streams import Place, Stream
from benchmarks.workloads import Kind, Workload

MEMORY_BATCHES = 3


class WrongResultError(Exception):
    """The engines do not agree on the output of a batch."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How often a workload is run: more gives a narrower spread."""

    warm_up_batches: int = 4
    repetitions: int = 5
    batches: int = 4
    """Timed ones in a repetition."""


QUICK = Effort(warm_up_batches=1, repetitions=1, batches=1)


def run_workload(
    workload: Workload,
    place: Place,
    *,
    effort: Effort,
    log: Path,
    tell: Callable[[str], None],
) -> Result:
    """Returns the measurements of a workload.

    A repetition restarts the stream of each engine in turn, for one batch that is counted as the
    restart and then those that are timed. The order rotates. What the streams wrote is removed.

    Raises:
        WrongResultError: the engines do not agree on a further batch.
    """
    source = Source(workload, place.directory / "input")
    streams = [Stream(workload, engine, place) for engine in workload.engines]
    result = Result(workload, {stream.engine.name: [] for stream in streams})
    repetitions = 1 if workload.once else effort.repetitions
    with spark_session(log) as session:
        tell(f"{workload.name}: preload and warm-up")
        files = source.preload() + source.batches(effort.warm_up_batches)
        for stream in streams:
            stream.run(session, files)
        for repetition in range(repetitions):
            files = source.batches(1 + (workload.batches or effort.batches))
            shift = repetition % len(streams)
            for stream in streams[shift:] + streams[:shift]:
                result.repetitions[stream.engine.name].append(stream.run(session, files))
            tell(f"{workload.name}: repetition {repetition + 1}/{repetitions}: {_line(result)}")
        _check(session, streams, source)
    if workload.memory:
        for stream in streams:
            if stream.engine.kind is not Kind.FLOOR:
                memory = _worker_memory(stream, source.batches(MEMORY_BATCHES), log)
                result.memory[stream.engine.name] = memory
    shutil.rmtree(place.directory)
    return result


def _line(result: Result) -> str:
    return ", ".join(
        f"{name} {statistics.median(repetitions[-1].add_batch_ms):.0f} ms"
        for name, repetitions in result.repetitions.items()
    )


def _check(session: SparkSession, streams: Sequence[Stream], source: Source) -> None:
    file = source.batches(1)[0]
    stateful = [stream for stream in streams if stream.engine.kind is not Kind.FLOOR]
    outputs = {stream.engine.name: stream.output(session, file) for stream in stateful}
    (first, expected), *others = outputs.items()
    for name, output in others:
        if not output.equals(expected):
            raise WrongResultError(
                f"{first} and {name} put out different rows, {expected.num_rows} and "
                f"{output.num_rows}; no time of this workload means anything"
            )


def _worker_memory(stream: Stream, files: Sequence[Path], log: Path) -> WorkerMemory:
    """Returns the memory of workers that have run nothing but this stream."""
    with spark_session(log) as session, WorkerSampler() as sampler:
        stream.run(session, files)
    return sampler.peak()
