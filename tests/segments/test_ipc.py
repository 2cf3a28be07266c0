"""What a segment unpacks to is bounded by its size, whatever its bytes claim."""

from __future__ import annotations

import resource
from typing import Any

import pyarrow as pa
import pytest

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments import channel
from cairn.segments import format as segment_format
from cairn.segments.ipc import UNPACKED_PER_BYTE
from cairn.segments.reader import read_segment
from cairn.state.entries import entry_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from metastore.enums import SegmentKind

KEY = entry_prefix(0, 1, b"k")
ZEROS = bytes(32 << 20)
_LZ4_MAGIC = bytes.fromhex("04224d18")


def segment_of(arrays: dict[str, pa.Array], compression: str | None = "zstd") -> bytes:
    """Returns a segment of columns as they are; what is not given is of one PUT."""
    columns = {
        "key_group": pa.array([0], pa.uint16()),
        "state": pa.array([1], pa.uint16()),
        "op": pa.array([PUT], pa.uint8()),
        "key": pa.array([KEY], pa.binary()),
        "value": pa.array([b"v"], pa.binary()),
    } | arrays
    fields = [pa.field(n, a.type, nullable=n == "value") for n, a in columns.items()]
    schema = pa.schema(fields, metadata={b"cairn.format_version": b"1"})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write(pa.RecordBatch.from_arrays([*columns.values()], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def rows_of(kind: pa.Array) -> bytes:
    """Returns channel state with a row column of its own."""
    head = [pa.array([0] * len(kind), pa.uint16())] * 2
    rows = pa.StructArray.from_arrays([kind], ["x"])
    names = ["key_group", "input", "row"]
    fields = [
        pa.field(name, array.type, nullable=False)
        for name, array in zip(names, [*head, rows], strict=True)
    ]
    schema = pa.schema(fields, metadata={b"cairn.channel_version": b"1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write(pa.RecordBatch.from_arrays([*head, rows], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_a_segment_that_claims_to_unpack_to_far_more_is_refused_before_it_is_unpacked() -> None:
    data = segment_of({"value": pa.array([ZEROS], pa.binary())})
    assert len(data) < len(ZEROS) // 1000
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptSegmentError, match=r"claim to unpack to 335\d{5}"):
        [*segment_format.decode(data)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 8 << 10


def test_values_that_compress_better_than_that_are_written_so_that_they_can_be_read() -> None:
    changes = Changes([PUT], [KEY], [ZEROS])
    data = segment_format.encode(changes, metadata={})
    assert _LZ4_MAGIC in data
    assert len(ZEROS) / UNPACKED_PER_BYTE < len(data) < len(ZEROS) / 200
    assert [*segment_format.decode(data)] == [changes]
    batch = pa.RecordBatch.from_pydict({"x": pa.array([ZEROS])})
    groups = pa.array([0], pa.uint16())
    (found,) = channel.decode(channel.encode(channel.InFlight(groups, groups, batch), metadata={}))
    assert found.rows.equals(batch)


def test_one_batch_that_the_footer_names_often_is_refused() -> None:
    data = bytearray(segment_of({"value": pa.array([bytes(8_000)], pa.binary())}))
    (footer_bytes,) = (int.from_bytes(data[-10:-6], "little"),)
    # The vector of record batches: its one block is 24 bytes, after the count.
    footer = len(data) - 10 - footer_bytes
    count = next(
        at
        for at in range(footer, len(data) - 24)
        if data[at : at + 4] == b"\1\0\0\0"
        and 8 <= int.from_bytes(data[at + 4 : at + 12], "little") < footer
    )
    data[count : count + 4] = (2**20).to_bytes(4, "little")
    with pytest.raises(CorruptSegmentError):
        [*segment_format.decode(bytes(data))]


@pytest.mark.parametrize(
    "kind",
    [
        pa.array(["x" * 1_000] * 9, pa.string_view()),
        pa.array(["x" * 1_000] * 9).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([9], pa.int32()), pa.array(["x"])),
        pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
        pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1)),
    ],
    ids=["views", "dictionary", "runs", "lists of one length", "many nulls"],
)
def test_few_bytes_that_stand_for_many_values_are_no_channel_state(kind: Any) -> None:
    with pytest.raises(CorruptSegmentError):
        [*channel.decode(rows_of(kind))]


@pytest.mark.parametrize("entries", [1, 3])
def test_other_rows_than_were_recorded_are_refused(entries: int) -> None:
    data = segment_format.encode(Changes([PUT] * 2, [KEY, KEY + b"x"], [b"v"] * 2), metadata={})
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.CHANGELOG,
        key_groups=KeyGroupRange(0, 8),
        entries=entries,
        checkpoint_id=1,
    )

    class Store:
        def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            return data

    store: Any = Store()
    with pytest.raises(CorruptSegmentError, match=f"2 rows, but {entries} were recorded"):
        [*read_segment(store, spec.at("words-1/shared/a.seg"), job="words")]


@pytest.mark.parametrize(
    ("op", "key", "value"),
    [
        (PUT, KEY, None),
        (DELETE, KEY, b"v"),
        (DELETE_PREFIX, KEY, b"v"),
        (3, KEY, None),
        (PUT, b"", b"v"),
        (DELETE, KEY[:7], None),
        (DELETE_PREFIX, KEY[:3], None),
        (DELETE_PREFIX, KEY[:5], None),
        (PUT, entry_prefix(0, 1, b"k" * 400)[:-1], b"v"),
    ],
)
@pytest.mark.parametrize("others", [0, 9])
def test_rows_that_nobody_can_apply_are_refused(
    op: int, key: bytes, value: bytes | None, others: int
) -> None:
    ops, keys, values = [PUT] * others, [KEY] * others, [b"v"] * others
    changes = Changes([*ops, op], [*keys, key.ljust(4, b"\0")], [*values, value])
    data = segment_format.encode(changes, metadata={})
    if len(key) < 4:  # the writer takes the head apart
        column = pa.array([*keys, key], pa.binary())
        data = segment_of(
            {
                "key_group": pa.array([0] * (others + 1), pa.uint16()),
                "state": pa.array([1] * (others + 1), pa.uint16()),
                "op": pa.array(changes.ops, pa.uint8()),
                "key": column,
                "value": pa.array(changes.values, pa.binary()),
            }
        )
    with pytest.raises(CorruptSegmentError, match=r"no changes of|a row that is none"):
        [*segment_format.decode(data)]
