"""The rows of the restore benchmark, and the state that they lead to, without any of Cairn's code.

A key is text of 12 bytes, its state a long and a payload of random bytes, which no compression
makes smaller. What counts as the state's bytes is what a user's processor holds: the key's text, 8
bytes of the long, the payload; nothing of any encoding.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES, LONG_BYTES = 12, 8
WRITES = 4
"""How often each key is written before the last intervals."""
BATCHES_A_WRITE = 20
LAST_INTERVALS = (0.08, 0.08)
"""Shares of the keys that are written again in each of the last materialization intervals."""
SINCE = 0.04
"""The share that is written after the last materialization."""
BATCHES_AN_INTERVAL = 2
SCHEMA = "key string, value long, payload binary"

FINAL_BATCHES = 12
"""In which native Spark is given the state: more than it takes for a snapshot of it."""
MOST_ROWS = 20_000
"""Of such a batch, where there are fewer keys."""

Numbers = npt.NDArray[np.int64]
Row = tuple[str, int, bytes]
_FIRST_MTIME_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How much state there is."""

    keys: int
    payload_bytes: int

    @classmethod
    def of(cls, state_bytes: int, entry_bytes: int) -> Shape:
        """Returns the shape of so many bytes of state, in entries of so many bytes."""
        return cls(state_bytes // entry_bytes, entry_bytes - KEY_BYTES - LONG_BYTES)

    @property
    def state_bytes(self) -> int:
        """The bytes of all keys and values, as a processor holds them."""
        return self.keys * (KEY_BYTES + LONG_BYTES + self.payload_bytes)


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: the numbers of its keys, each once, and whether state is materialized after it."""

    number: int
    keys: Numbers
    then_materialize: bool


def steps(shape: Shape) -> list[Step]:
    """Returns the history: each key `WRITES` times, then the last intervals, then some more."""
    chance = np.random.default_rng(158)
    parts: list[tuple[Numbers, bool]] = []

    def add(keys: Numbers, batches: int, *, is_interval: bool = True) -> None:
        split = np.array_split(keys, batches)
        parts.extend((part, is_interval and at == batches) for at, part in enumerate(split, 1))

    for _ in range(WRITES):
        add(chance.permutation(shape.keys), BATCHES_A_WRITE)
    for share in LAST_INTERVALS:
        some = chance.permutation(shape.keys)[: int(shape.keys * share)]
        add(some, BATCHES_AN_INTERVAL)
    some = chance.permutation(shape.keys)[: int(shape.keys * SINCE)]
    add(some, BATCHES_AN_INTERVAL, is_interval=False)
    return [Step(number, keys, then) for number, (keys, then) in enumerate(parts)]


def payloads(shape: Shape, step: Step) -> Iterator[bytes]:
    """Yields the payload of each key of a batch, in its order; the same in every process."""
    size_bytes = shape.payload_bytes
    data = np.random.default_rng([158, step.number]).bytes(len(step.keys) * size_bytes)
    return (data[at : at + size_bytes] for at in range(0, len(data), size_bytes))


def last_steps(shape: Shape, history: list[Step]) -> Numbers:
    """Returns for each key the number of the last batch that writes it."""
    last = np.zeros(shape.keys, np.int64)
    for step in history:
        last[step.keys] = step.number
    return last


def key_names(shape: Shape) -> list[str]:
    """Returns the text of each key."""
    return [f"user-{number:07}" for number in range(shape.keys)]


def spark_hashes(names: list[str]) -> npt.NDArray[np.int32]:
    """Returns Spark's `hash` of keys of `KEY_BYTES` bytes: Murmur3 with the seed 42."""
    words = np.frombuffer("".join(names).encode(), "<u4").reshape(-1, KEY_BYTES // 4)
    found = np.full(len(names), 42, np.uint32)
    for word in words.T:
        mixed = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found = _rotated(found ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(KEY_BYTES)
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (found ^ (found >> np.uint32(16))).view(np.int32)


def _rotated(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


@dataclass(frozen=True, slots=True)
class Probe:
    """A small batch of keys: its file, and what the processor says of the state before it."""

    file: Path
    expected: list[tuple[str, int, int]]


def write_final_rows(shape: Shape, directory: Path, probes: int, probe_keys: int) -> list[Probe]:
    """Writes `NNN.parquet` files that together have each key's last row once, a file a batch.

    Returns `probes` batches of `probe_keys` keys each, no key in two of them.
    """
    directory.mkdir(parents=True)
    probed = np.random.default_rng(7).permutation(shape.keys)[: probes * probe_keys]
    wanted = set(probed.tolist())
    known: dict[int, Row] = {}
    rows: list[Row] = []
    most_rows = max(MOST_ROWS, shape.keys // FINAL_BATCHES)
    files = 0
    for number, row in _final_rows(shape):
        rows.append(row)
        if number in wanted:
            known[number] = row
        if len(rows) == most_rows or len(rows) + files * most_rows == shape.keys:
            _write(directory / f"{files:03}.parquet", files, rows)
            files, rows = files + 1, []
    return [
        _probe(directory / f"probe-{place:03}.parquet", place, [known[n] for n in keys.tolist()])
        for place, keys in enumerate(np.array_split(probed, probes))
    ]


def _final_rows(shape: Shape) -> Iterator[tuple[int, Row]]:
    history, names = steps(shape), key_names(shape)
    last = last_steps(shape, history)
    for step in history:
        for number, payload in zip(step.keys.tolist(), payloads(shape, step), strict=True):
            if last[number] == step.number:
                yield number, (names[number], step.number, payload)


def _probe(file: Path, place: int, rows: list[Row]) -> Probe:
    expected = sorted((name, value, zlib.crc32(payload)) for name, value, payload in rows)
    moment = FINAL_BATCHES + 1 + place
    _write(file, moment, [(name, moment, b"probed") for name, _, _ in expected])
    return Probe(file, expected)


def _write(file: Path, moment: int, rows: list[Row]) -> None:
    keys, values, found = zip(*rows, strict=True)
    table = pa.table({"key": keys, "value": values, "payload": found})
    pq.write_table(table, file, compression="none", use_dictionary=False)
    moment_s = _FIRST_MTIME_S + moment  # Spark reads the oldest file first
    os.utime(file, (moment_s, moment_s))
