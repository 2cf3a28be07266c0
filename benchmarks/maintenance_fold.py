"""How fast a fold is beside the store's plain copy, and its CPU beside the stream's own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.apart import Apart, run_apart
from benchmarks.applied import Folded, fold
from benchmarks.maintenance_shape import (
    LEAST_COPY_SHARE,
    Figure,
    Place,
    memory_figure,
    transaction_figure,
)
from benchmarks.maintenance_steps import allow
from benchmarks.plain_copies import copy_through_client
from benchmarks.restore_history import HistoryWriter
from benchmarks.restore_rows import KEY_BYTES, LONG_BYTES, Shape, Step
from benchmarks.stores import copying_store
from cairn.settings import Settings
from cairn.storage import open_store

MOST_CPU_SHARE = 2.0
_PARALLELISM = 2
_BATCHES = 5
"""Of the state, and of what changes before each materialization."""
_CHANGED = 0.25
_MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A fold, plain copies in the same minute, and the stream's own bases of the same state."""

    fold: Apart[Folded]
    copied_bytes_per_s: float
    stream_cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.fold.found.size_bytes / self.fold.found.seconds


def measure_fold(place: Place) -> list[Figure]:
    """Returns throughput and CPU of folds, for small and for large entries."""
    figures: list[Figure] = []
    with copying_store(place) as storage:
        allow(storage)
        for entry_bytes, entries in place.sizes.folded:
            shape = Shape(entries, entry_bytes - KEY_BYTES - LONG_BYTES)
            rounds = _rounds(place, storage, shape)
            figures += _figures(f"{entries:,} entries of {entry_bytes} bytes", rounds)
    return figures


def _rounds(place: Place, storage: str, shape: Shape) -> list[_Round]:
    steps = _steps(shape, 2 * place.sizes.rounds)
    name = f"folded-{shape.payload_bytes}"
    settings = replace(
        Settings(), local_dir=str(place.directory / name), persist_delay_ms=0, file_retention_ms=0
    )
    writer = HistoryWriter(name, shape, steps, _PARALLELISM, storage, place.url, settings)
    batches = iter(steps)

    def change() -> None:
        for _ in range(_BATCHES):
            step = next(batches)
            writer.write(writer.begin(step.number), step)

    change()
    writer.materialize(writer.begin(_BATCHES), 0.0)
    rounds = []
    for number in range(place.sizes.rounds):
        change()
        stream_cpu_s = writer.materialize(writer.begin(_BATCHES * (2 * number + 2)), 0.0)
        change()
        writer.begin(_BATCHES * (2 * number + 3))
        rounds.append(_round(place, storage, writer, stream_cpu_s))
    return rounds


def _round(place: Place, storage: str, writer: HistoryWriter, stream_cpu_s: float) -> _Round:
    bases = _largest(storage, writer.plan.job_id)
    before_s = run_apart(copy_through_client, storage, list(bases)).found
    done = run_apart(fold, place.url, writer.plan.job, _PARALLELISM)
    after_s = run_apart(copy_through_client, storage, list(bases)).found
    return _Round(
        fold=done,
        copied_bytes_per_s=sum(bases.values()) / statistics.mean((before_s, after_s)),
        stream_cpu_s=stream_cpu_s,
    )


def _steps(shape: Shape, changes: int) -> list[Step]:
    """Returns a history that writes all keys, and then changes some of them again and again."""
    chance = np.random.default_rng(12)
    parts = np.array_split(chance.permutation(shape.keys), _BATCHES)
    for _ in range(changes):
        some = chance.permutation(shape.keys)[: int(shape.keys * _CHANGED)]
        parts += np.array_split(some, _BATCHES)
    return [Step(number, keys, then_materialize=False) for number, keys in enumerate(parts)]


def _largest(storage: str, job_id: str) -> dict[str, int]:
    """Returns the sizes of a job's largest objects, by path: about as many bytes as are folded."""
    found = sorted(open_store(storage).list(f"{job_id}/"), key=lambda one: -one.size_bytes)
    return {one.path: one.size_bytes for one in found[: 2 * _BATCHES]}


def _figures(name: str, rounds: Sequence[_Round]) -> list[Figure]:
    shares = [one.bytes_per_s / one.copied_bytes_per_s for one in rounds]
    cpu_shares = [one.fold.found.cpu_s / one.stream_cpu_s for one in rounds]
    return [
        _figure(f"{name}: plain copy", [r.copied_bytes_per_s / _MB for r in rounds], "MB/s"),
        _figure(f"{name}: fold", [r.bytes_per_s / _MB for r in rounds], "MB/s"),
        _figure(f"{name}: over the plain copy", shares, "times", wanted=LEAST_COPY_SHARE),
        _figure(f"{name}: CPU of a fold", [r.fold.found.cpu_s for r in rounds], "s"),
        _figure(f"{name}: CPU of the stream's own", [r.stream_cpu_s for r in rounds], "s"),
        _figure(
            f"{name}: CPU over the stream's own",
            cpu_shares,
            "times",
            wanted=MOST_CPU_SHARE,
            at_least=False,
        ),
        transaction_figure("fold", name, max(r.fold.longest_transaction_ms for r in rounds)),
        memory_figure("fold", name, max(r.fold.memory_mb for r in rounds)),
    ]


def _figure(name: str, values: Sequence[float], unit: str, **aim: Any) -> Figure:  # noqa: ANN401
    return Figure(workload="fold", name=name, value=statistics.median(values), unit=unit, **aim)
