"""Channel state: however it is split among subtasks, every row is read once and in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange, range_of
from cairn.segments import channel
from cairn.segments.channel import InFlight, decode, encode, read_channel
from cairn.segments.format import encode as encode_changes
from cairn.state.view import Changes
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind

KEY_GROUPS = 12
METADATA = {"job": "clicks", "checkpoint": "7", "subtask": "0", "kind": "channel"}
ROWS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("words", pa.list_(pa.struct([("w", pa.string())]))),
    ],
    metadata={"of": "Spark"},
)

Row = tuple[int, int, dict[str, Any]]
"""Key group, input and columns."""

rows_in_flight = st.lists(
    st.tuples(
        st.integers(0, KEY_GROUPS - 1),
        st.integers(0, 3),
        st.fixed_dictionaries(
            {
                "key": st.text(max_size=3),
                "n": st.none() | st.integers(-(2**63), 2**63 - 1),
                "words": st.none()
                | st.lists(st.fixed_dictionaries({"w": st.none() | st.text(max_size=2)})),
            }
        ),
    ),
    max_size=30,
)


def in_flight(rows: Sequence[Row]) -> InFlight:
    return InFlight(
        pa.array([group for group, _, _ in rows], pa.uint16()),
        pa.array([given for _, given, _ in rows], pa.uint16()),
        pa.RecordBatch.from_pylist([columns for _, _, columns in rows], schema=ROWS),
    )


def plain(parts: Iterable[InFlight]) -> list[Row]:
    rows: list[Row] = []
    for part in parts:
        assert len(part) == len(part.key_groups) == len(part.inputs)
        rows += zip(
            part.key_groups.to_pylist(), part.inputs.to_pylist(), part.rows.to_pylist(), strict=True
        )
    return rows


def by_group(rows: Iterable[Row]) -> dict[int, list[Row]]:
    groups = defaultdict[int, list[Row]](list)
    for row in rows:
        groups[row[0]].append(row)
    return groups


@settings(deadline=None)
@given(rows_in_flight, st.integers(1, 7))
def test_decoded_rows_are_those_that_were_encoded_in_order_within_their_key_group(
    rows: list[Row], rows_per_batch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "ROWS_PER_BATCH", rows_per_batch)
        data = encode(in_flight(rows), metadata=METADATA)
    parts = list(decode(data))
    assert max(map(len, parts), default=0) <= rows_per_batch
    assert plain(parts) == sorted(rows, key=lambda row: row[0]), "sorted keeps the order of equals"


@settings(deadline=None)
@given(rows_in_flight, st.lists(st.integers(1, KEY_GROUPS), max_size=4))
def test_over_any_parallelisms_and_back_every_row_is_there_once_and_in_order(
    rows: list[Row], parallelisms: list[int]
) -> None:
    """As in FLIP-547: 1 -> 10 -> 1 restores each record once; each subtask writes its own again."""
    segments = [encode(in_flight(rows), metadata=METADATA)]
    for parallelism in [*parallelisms, 1]:
        written = []
        for subtask in range(parallelism):
            own = range_of(subtask, parallelism, KEY_GROUPS)
            taken = [row for data in segments for row in plain(decode(data, own))]
            assert all(group in own for group, _, _ in taken)
            written.append(encode(in_flight(taken), metadata=METADATA))
        segments = written
    assert by_group(plain(decode(segments[0]))) == by_group(rows)


@settings(deadline=None)
@given(rows_in_flight, st.lists(st.integers(0, KEY_GROUPS), max_size=5))
def test_adjacent_ranges_give_all_rows_between_them(rows: list[Row], cuts: list[int]) -> None:
    data = encode(in_flight(rows), metadata=METADATA)
    ends = sorted({0, KEY_GROUPS, *cuts})
    ranges = [KeyGroupRange(*pair) for pair in pairwise(ends)]
    assert [row for one in ranges for row in plain(decode(data, one))] == plain(decode(data))


def test_any_arrow_tool_can_read_it_and_tell_what_it_is() -> None:
    data = encode(in_flight([(3, 1, {"key": "a", "n": 1, "words": None})]), metadata=METADATA)
    table = pa.ipc.open_file(data).read_all()
    assert table.column_names == ["key_group", "input", "row"]
    assert table.to_pylist() == [
        {"key_group": 3, "input": 1, "row": {"key": "a", "n": 1, "words": None}}
    ]
    assert table.schema.metadata[b"cairn.kind"] == b"channel"
    assert table.schema.metadata[b"cairn.channel_version"] == b"1"


def test_a_cut_or_changed_segment_gives_no_error_but_corrupt() -> None:
    rows: list[Row] = [(group, 0, {"key": "k", "n": group, "words": []}) for group in (2, 1, 1)]
    data = encode(in_flight(rows), metadata=METADATA)
    for size_bytes in range(len(data)):
        with pytest.raises(CorruptSegmentError, match="cannot be decoded"):
            list(decode(data[:size_bytes]))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        try:
            list(decode(bytes(damaged)))
        except CorruptSegmentError:
            continue


def arrow_file(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_what_is_no_channel_state_is_refused() -> None:
    changes = encode_changes(Changes([], [], []), metadata=METADATA)
    with pytest.raises(CorruptSegmentError, match="but no channel state"):
        list(decode(changes))
    good = encode(in_flight([(2, 0, {"key": "k", "n": 1, "words": []})] * 2), metadata=METADATA)
    [batch] = pa.ipc.open_file(good).read_all().to_batches()
    newer = arrow_file(
        batch.replace_schema_metadata({**batch.schema.metadata, b"cairn.channel_version": b"2"})
    )
    with pytest.raises(CorruptSegmentError, match="format version 2"):
        list(decode(newer))
    less = arrow_file(batch.select(["row"]))
    with pytest.raises(CorruptSegmentError, match="other columns"):
        list(decode(less))
    groups = pa.array([2, 1], pa.uint16())
    turned = pa.RecordBatch.from_arrays([groups, *batch.columns[1:]], schema=batch.schema)
    unsorted = arrow_file(turned)
    with pytest.raises(CorruptSegmentError, match="not in order of key groups"):
        list(decode(unsorted))


def test_a_segment_in_storage_is_checked_and_its_place_is_named(tmp_path: Path) -> None:
    data = encode(in_flight([(2, 0, {"key": "k", "n": 1, "words": []})]), metadata=METADATA)
    (tmp_path / "file.seg").write_bytes(b"before" + data + b"after")

    def handle_of(given: bytes) -> SegmentHandle:
        spec = SegmentSpec.of(
            given,
            kind=SegmentKind.CHANNEL,
            key_groups=KeyGroupRange(0, 4),
            entries=1,
            checkpoint_id=7,
        )
        return spec.at("file.seg", 6, segment_id="s-1")

    store = PosixStore(tmp_path)
    found = plain(read_channel(store, handle_of(data), KeyGroupRange(2, 3), job="clicks"))
    assert [group for group, _, _ in found] == [2]
    assert not plain(read_channel(store, handle_of(data), KeyGroupRange(0, 2), job="clicks"))
    told = r"s-1.*checkpoint 7, file file.seg, offset 6"
    with pytest.raises(CorruptSegmentError, match=told):
        list(read_channel(store, handle_of(b"other"), KeyGroupRange(0, 4), job="clicks"))
    (tmp_path / "file.seg").write_bytes(b"before" + b"not arrow")
    with pytest.raises(CorruptSegmentError, match=told):
        list(read_channel(store, handle_of(b"not arrow"), KeyGroupRange(0, 4), job="clicks"))
