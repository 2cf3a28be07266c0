"""Each reader of bytes that come from storage or the metastore, with bytes that it can read.

Whatever the bytes, a reader gives what they hold, CorruptSegmentError or RefusedError: no other
error, and in time and memory that follow from the number of the bytes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from cairn import manifest, segment_index
from cairn.errors import BadInputError
from cairn.handles import SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments import channel, indexed, operator_segment, snapshot
from cairn.segments import format as segment_format
from cairn.segments.reader import read_segments
from cairn.state.codec import TupleCodec
from cairn.state.entries import entry_prefix, list_suffix
from cairn.state.evolution import merge
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from metastore.enums import Scope, SegmentKind
from tests.fuzz.mutations import mutated, mutated_json, random_bytes

EVERYTHING, SOME = KeyGroupRange(0, 8), KeyGroupRange(2, 5)
_ID = "11111111-1111-1111-1111-111111111111"


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, and how a case is made: of one of the seeds."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    change: Callable[[Random, bytes], bytes]

    def case(self, number: int) -> bytes:
        """Returns the bytes of a case, the same every time."""
        random = Random(number)
        return self.change(random, random.choice(self.seeds()))


class _OneObject:
    """A store whose only object is these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Returns the bytes of a range that lies in them, and all of them for any other."""
        end = len(self._data) if size_bytes is None else offset + size_bytes
        return self._data[offset:end] if end <= len(self._data) else self._data


def _changed(random: Random, data: bytes) -> bytes:
    return random_bytes(random, data) if random.random() < 0.1 else mutated(random, data)


def _changed_footer(random: Random, data: bytes) -> bytes:
    return mutated(random, data, last=600)


@cache
def _segments() -> list[bytes]:
    random = Random(1)
    keys = sorted(
        entry_prefix(group, 1 + group % 3, b"k%d" % number) + list_suffix(place)
        for group in range(8)
        for number in range(5)
        for place in range(3)
    )
    ops = [random.choice([PUT, PUT, DELETE, DELETE_PREFIX]) for _ in keys]
    values = [random.randbytes(random.randrange(40)) if op == PUT else None for op in ops]
    many = [entry_prefix(0, 1, b"z%05d" % number) for number in range(1000)]
    long = [entry_prefix(0, 1, b"l" * 300), entry_prefix(0, 1, b"l" * 300) + list_suffix(1)]
    return [
        segment_format.encode(Changes(ops, keys, values), metadata={"job": "words"}),
        segment_format.encode(Changes([PUT] * 1000, many, [b"v" * 20] * 1000), metadata={}),
        segment_format.encode(Changes([PUT, DELETE], long, [b"v", None]), metadata={}),
    ]


def _read_segment(data: bytes) -> None:
    for part in (None, SOME):
        for _ in segment_format.decode(data, part):
            pass


def _read_snapshot(data: bytes) -> object:
    """Bytes that are what was recorded, but that nobody wrote."""
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.CHANGELOG,
        key_groups=EVERYTHING,
        entries=_rows_in(data),
        checkpoint_id=1,
    )
    store: Any = _OneObject(data)
    handles = [spec.at("words-1/shared/a.seg")]
    for _ in read_segments(store, handles, job="words", use_threads=False):
        pass
    return snapshot.snapshot(store, handles, SOME, job="words")


@cache
def _indexed_segments() -> list[bytes]:
    keys = [entry_prefix(group, 1, b"%03d" % one) for group in range(8) for one in range(15)]
    changes = Changes([PUT] * 120, keys, [b"v" * (one % 30) for one in range(120)])
    with (
        patch.object(segment_format, "INDEXED_FROM_BYTES", 1),
        patch.object(indexed, "BLOCK_BYTES", 300),
    ):
        return [segment_format.encode(changes, metadata={"job": "words"})]


def _changed_part(random: Random, data: bytes) -> bytes:
    """Changes the blocks, and gives the index their new checksums; or changes the index."""
    size_bytes = segment_index.index_bytes(data)
    file, index = data[:-size_bytes], data[-size_bytes:]
    if random.random() < 0.5:
        return file + _changed(random, index)
    file = _changed(random, file)
    found = segment_index.decode(index)
    blocks = [
        replace(block, sha256=hashlib.sha256(file[block.offset : block.end]).digest())
        for block in found.blocks
    ]
    return file + segment_index.encode(replace(found, blocks=blocks))


def _read_part(data: bytes) -> None:
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.CHANGELOG,
        key_groups=EVERYTHING,
        entries=120,
        checkpoint_id=1,
    )
    store: Any = _OneObject(data)
    handles = [spec.at("words-1/shared/a.seg")]
    for part in (SOME, KeyGroupRange(0, 1), KeyGroupRange(7, 8)):
        for _ in read_segments(store, handles, job="words", key_groups=part, use_threads=False):
            pass


def _rows_in(data: bytes) -> int:
    return {len(seed): rows for seed, rows in zip(_segments(), (120, 1000, 2), strict=True)}.get(
        len(data), 120
    )


@cache
def _operator_segments() -> list[bytes]:
    return [operator_segment.encode({1: [b"a", b"bb"], 2: [b""] * 40}, metadata={"job": "words"})]


@cache
def _channel_segments() -> list[bytes]:
    rows = pa.RecordBatch.from_pydict(
        {
            "n": [*range(50)],
            "s": [f"x{n}" if n % 3 else None for n in range(50)],
            "l": [[1] * (n % 4) for n in range(50)],
            "nothing": pa.nulls(50),
            "m": pa.array([[("a", 1)]] * 50, pa.map_(pa.string(), pa.int32())),
        }
    )
    groups = pa.array([n // 7 for n in range(50)], pa.uint16())
    inputs = pa.array([n % 2 for n in range(50)], pa.uint16())
    return [channel.encode(channel.InFlight(groups, inputs, rows), metadata={})]


def _read_channel(data: bytes) -> None:
    for part in (None, KeyGroupRange(1, 4)):
        for found in channel.decode(data, part):
            found.rows.to_pylist()


_LAYOUT: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        {"name": "d", "type": "date", "nullable": True, "metadata": {}},
        {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
        {"name": "t", "type": "time(6)", "nullable": True, "metadata": {}},
        {"name": "i", "type": "interval day to second", "nullable": True, "metadata": {}},
        {
            "name": "a",
            "type": {"type": "array", "elementType": "binary", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
        {
            "name": "m",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": {
                    "type": "struct",
                    "fields": [{"name": "x", "type": "float", "nullable": False, "metadata": {}}],
                },
                "valueContainsNull": True,
            },
            "nullable": True,
            "metadata": {},
        },
    ],
}
_FLAT = {"type": "struct", "fields": _LAYOUT["fields"][:1]}


@cache
def _values() -> list[bytes]:
    codec, flat = TupleCodec(_LAYOUT, name="v"), TupleCodec(_FLAT, name="v")
    values = (
        5,
        datetime.datetime(2024, 1, 2, 3),
        datetime.date(2024, 1, 2),
        Decimal("1.50"),
        datetime.time(1, 2),
        datetime.timedelta(3),
        [b"a", None],
        {"k": (0.5,), "l": None},
    )
    return [codec.encode(values), codec.encode((None,) * 8), flat.encode((2**40,))]


@cache
def _codecs() -> list[TupleCodec]:
    added = merge(_FLAT, {**_LAYOUT, "fields": _LAYOUT["fields"][:3]}, name="v")
    return [
        TupleCodec(_LAYOUT, name="v"),
        TupleCodec(_FLAT, name="v"),
        TupleCodec({**_LAYOUT, "fields": _LAYOUT["fields"][:3]}, name="v", layout=added),
    ]


def _read_value(data: bytes) -> None:
    first: Exception | None = None
    for codec in _codecs():
        for read in (codec.decode, codec.to_json):
            try:
                read(data)
            except Exception as error:  # noqa: BLE001 - it is raised below
                if first is None or not hasattr(error, "job"):
                    first = error
    if first is not None:
        raise first


def _read_layout(data: bytes) -> None:
    layout = json.loads(data)
    try:
        merged = merge(layout, _LAYOUT, name="v")
        codec = TupleCodec(_LAYOUT, name="v", layout=merged)
        for value in _values()[:2]:
            codec.decode(value)
    except BadInputError:  # as of a processor that wants another schema
        pass


@cache
def _manifests() -> list[bytes]:
    variable = manifest.ManifestVariable(
        state_id=1,
        name="v",
        kind="value",  # type: ignore[arg-type]  # as in JSON
        value_layout=_LAYOUT,
        user_key_schema=None,
        has_ttl=False,
        is_dropped=False,
    )
    segment = manifest.ManifestSegment(
        segment_id=_ID,
        file_id=_ID,
        kind=SegmentKind.CHANGELOG,
        subtask=0,
        key_groups=KeyGroupRange(0, 4),
        offset=0,
        size_bytes=10,
        sha256="0" * 64,
        entries=1,
        first_checkpoint=5,
        as_of_checkpoint=5,
        sequence_number=0,
        index=segment_index.IndexRef(5, "0" * 64),
    )
    whole = manifest.Manifest(
        job="words",
        job_id="words-1234abcd",
        max_parallelism=8,
        key_schema=_FLAT,
        time_mode="none",
        checkpoint_id=5,
        parent_checkpoint=4,
        query_id="q",
        batch_id=3,
        epoch=2,
        run_id=_ID,
        parallelism=2,
        processing_ms=1,
        watermark_ms=2,
        max_event_ms=(1, None),
        variables=(variable,),
        files=(manifest.ManifestFile(_ID, "words-1234abcd/shared/a.seg", Scope.SHARED),),
        segments=(segment,),
    )
    return [manifest.encode(whole)]


def _with_digest(body: bytes) -> bytes:
    return b"cairn-manifest 1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _changed_manifest(random: Random, data: bytes) -> bytes:
    body = data.partition(b"\n")[2]
    if random.random() < 0.7:
        return _with_digest(json.dumps(mutated_json(random, json.loads(body))).encode())
    if random.random() < 0.5:
        return _with_digest(_changed(random, body))
    return _changed(random, data)


def _read_manifest(data: bytes) -> object:
    return manifest.decode(data, file="words-1234abcd/chk-5/_metadata").handles()


def _changed_layout(random: Random, data: bytes) -> bytes:
    return json.dumps(mutated_json(random, json.loads(data))).encode()


READERS = {
    "segment": Reader(_read_segment, _segments, _changed),
    "footer": Reader(_read_segment, _segments, _changed_footer),
    "part of a segment": Reader(_read_part, _indexed_segments, _changed_part),
    "snapshot": Reader(_read_snapshot, _segments, _changed),
    "operator segment": Reader(operator_segment.decode, _operator_segments, _changed),
    "channel segment": Reader(_read_channel, _channel_segments, _changed),
    "manifest": Reader(_read_manifest, _manifests, _changed_manifest),
    "value": Reader(_read_value, _values, _changed),
    "layout": Reader(_read_layout, lambda: [json.dumps(_LAYOUT).encode()], _changed_layout),
}
