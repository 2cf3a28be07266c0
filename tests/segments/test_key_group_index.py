"""Some key groups of a segment are read without the rest of it, and nothing unchecked is served."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange, range_of
from cairn.segment_index import VERSION, Block, IndexRef, SegmentIndex, decode, encode
from cairn.segments import format as segment_format
from cairn.segments import indexed
from cairn.segments.indexed import BLOCK_BYTES, INDEXED_FROM_BYTES, MOST_BLOCKS
from cairn.segments.partial import read_index
from cairn.segments.reader import read_segment, read_segments
from cairn.state.entries import entry_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind

GROUPS = 128
OFFSET = 5
Row = tuple[int, bytes, bytes | None]


class Counted(PosixStore):
    """A store that notes the sizes of what is read of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sizes: list[int] = []

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        data = super().get(path, offset, size_bytes)
        self.sizes.append(len(data))
        return data


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def rows_of(counts: Sequence[int], value_bytes: int = 60) -> list[Row]:
    """Returns so many rows of each key group: puts, a deletion and a deleted prefix."""
    random = Random(3)
    rows: list[Row] = []
    for group, count in enumerate(counts):
        for number in range(count):
            key = entry_prefix(group, 1, b"%06d" % number)
            op = DELETE if number % 50 == 7 else DELETE_PREFIX if number % 50 == 9 else PUT
            rows.append((op, key, random.randbytes(value_bytes) if op == PUT else None))
    return rows


def changes_of(rows: Sequence[Row]) -> Changes:
    return Changes(*map(list, zip(*rows, strict=True))) if rows else Changes([], [], [])


def placed(store: PosixStore, rows: Sequence[Row], groups: int = GROUPS) -> SegmentHandle:
    data = segment_format.encode(changes_of(rows), metadata={})
    return put(store, data, len(rows), groups)


def put(store: PosixStore, data: bytes, entries: int, groups: int = GROUPS) -> SegmentHandle:
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.CHANGELOG,
        key_groups=KeyGroupRange(0, groups),
        entries=entries,
        checkpoint_id=1,
    )
    path = f"job/{hashlib.sha256(data).hexdigest()}.seg"
    if store.list(path) is None or not any(True for _ in store.list(path)):
        store.put(path, [b"other", data, b"another"])
    return spec.at(path, OFFSET)


def rows_read(store: PosixStore, handle: SegmentHandle, wanted: KeyGroupRange) -> list[Row]:
    return [
        row
        for batch in read_segment(store, handle, job="job", key_groups=wanted)
        for row in zip(batch.ops, batch.keys, batch.values, strict=True)
    ]


def within(rows: Sequence[Row], wanted: KeyGroupRange) -> list[Row]:
    return [row for row in rows if int.from_bytes(row[1][:2], "big") in wanted]


@cache
def even() -> tuple[Row, ...]:
    return tuple(rows_of([200] * GROUPS))


@pytest.mark.parametrize(("parallelism", "most"), [(2, 1.01), (8, 1.02), (12, 1.6), (5, 1.3)])
def test_subtasks_of_any_parallelism_together_read_little_more_than_the_segment(
    store: Counted, parallelism: int, most: float
) -> None:
    handle = placed(store, even())
    found: list[Row] = []
    for subtask in range(parallelism):
        found += rows_read(store, handle, range_of(subtask, parallelism, GROUPS))
    assert found == list(even())
    assert sum(store.sizes) <= most * handle.size_bytes
    assert len(store.sizes) == 2 * parallelism


def test_a_segment_is_read_whole_by_one_request_where_all_of_it_is_needed(store: Counted) -> None:
    handle = placed(store, even())
    assert rows_read(store, handle, KeyGroupRange(0, GROUPS)) == list(even())
    assert store.sizes == [handle.size_bytes]


def test_a_small_segment_has_no_index_and_costs_no_byte_more() -> None:
    rows = rows_of([10] * GROUPS)
    data = segment_format.encode(changes_of(rows), metadata={})
    assert changes_of(rows).size_bytes < INDEXED_FROM_BYTES
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.CHANGELOG,
        key_groups=KeyGroupRange(0, GROUPS),
        entries=len(rows),
        checkpoint_id=1,
    )
    assert spec.index is None
    assert data.endswith(b"ARROW1")


counts = st.one_of(
    st.lists(st.sampled_from([0, 0, 1, 3, 40]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 400]), min_size=1, max_size=12),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=counts,
    before=st.integers(1, 6),
    after=st.integers(1, 12),
    rows_per_batch=st.sampled_from([7, 65_536]),
    bytes_per_batch=st.sampled_from([500, 64 << 20]),
    block_bytes=st.sampled_from([1, 300, 5_000]),
)
def test_any_rescaling_of_any_rows_gives_each_subtask_exactly_its_own(
    store: Counted,
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int],
    before: int,
    after: int,
    rows_per_batch: int,
    bytes_per_batch: int,
    block_bytes: int,
) -> None:
    rows, groups = rows_of(counts), len(counts)
    before, after = min(before, groups), min(after, groups)
    with monkeypatch.context() as patch:
        patch.setattr(segment_format, "INDEXED_FROM_BYTES", 1)
        patch.setattr(segment_format, "ROWS_PER_BATCH", rows_per_batch)
        patch.setattr(segment_format, "BYTES_PER_BATCH", bytes_per_batch)
        patch.setattr(indexed, "BLOCK_BYTES", block_bytes)
        handles = [
            replace(placed(store, within(rows, own), groups), key_groups=own)
            for own in (range_of(subtask, before, groups) for subtask in range(before))
        ]
    for subtask in range(after):
        own = range_of(subtask, after, groups)
        wanted = [one for one in handles if len(one.key_groups.intersect(own))]
        read = read_segments(store, wanted, job="job", key_groups=own, use_threads=False)
        found = [row for _, c in read for row in zip(c.ops, c.keys, c.values, strict=True)]
        assert found == within(rows, own)


def index_in(store: PosixStore, handle: SegmentHandle) -> SegmentIndex:
    return read_index(store, handle)


def test_blocks_are_few_and_a_giant_key_group_has_its_own(store: Counted) -> None:
    giant = rows_of([20] * 60 + [80_000] + [20] * 67, value_bytes=20)
    index = index_in(store, placed(store, giant))
    assert len(index.blocks) <= 2 * MOST_BLOCKS
    of_giant = [block for block in index.blocks if block.first <= 60 <= block.last]
    assert {(block.first, block.last) for block in of_giant} == {(60, 60)}
    assert sum(block.rows for block in of_giant) == 80_000
    assert all(one.end == other.offset for one, other in pairwise(index.blocks))


def test_blocks_end_where_most_parallelisms_cut(store: Counted) -> None:
    firsts = [block.first for block in index_in(store, placed(store, even())).blocks]
    assert set(range(0, GROUPS, GROUPS // 8)) <= set(firsts)
    assert len(firsts) <= 2 * (changes_of(even()).size_bytes // BLOCK_BYTES)


def test_key_groups_without_rows_read_nothing_but_the_index(store: Counted) -> None:
    handle = placed(store, rows_of([400] * 64 + [0] * 64))
    assert rows_read(store, handle, KeyGroupRange(64, 128)) == []
    assert handle.index is not None
    assert store.sizes == [handle.index.size_bytes]


def damaged(store: PosixStore, handle: SegmentHandle, at: int) -> SegmentHandle:
    """Returns the segment with one other byte, in a file of its own."""
    data = bytearray(store.get(handle.path))
    data[OFFSET + at] ^= 1
    path = f"job/damaged-{at}.seg"
    store.put(path, [bytes(data)])
    return replace(handle, path=path)


def places(handle: SegmentHandle) -> Iterator[int]:
    assert handle.index is not None
    end, index = handle.size_bytes, handle.size_bytes - handle.index.size_bytes
    yield from (index, index + 8, end - 1, end - 5, end - 6, end - 10)


@pytest.mark.parametrize("place", range(6))
def test_a_damaged_index_is_found_before_any_of_it_is_used(store: Counted, place: int) -> None:
    handle = placed(store, even())
    broken = damaged(store, handle, list(places(handle))[place])
    with pytest.raises(
        CorruptSegmentError, match="index by key group is not what was written"
    ) as found:
        rows_read(store, broken, KeyGroupRange(0, 8))
    assert found.value.file == broken.path
    assert len(store.sizes) == 2  # the copy made above, and the index


def test_a_damaged_block_is_found_by_who_needs_it_and_by_nobody_else(store: Counted) -> None:
    handle = placed(store, even())
    index = index_in(store, handle)
    middle = index.blocks[len(index.blocks) // 2]
    broken = damaged(store, handle, middle.offset + middle.size_bytes // 2)
    assert rows_read(store, broken, KeyGroupRange(0, 8)) == within(even(), KeyGroupRange(0, 8))
    with pytest.raises(CorruptSegmentError, match="are not what was written") as error:
        rows_read(store, broken, KeyGroupRange(middle.first, middle.last + 1))
    assert error.value.offset == broken.offset


def with_index(data: bytes, index: bytes) -> bytes:
    size_bytes = len(encode(decode_of(data)))
    return data[:-size_bytes] + index


def decode_of(data: bytes) -> SegmentIndex:
    [count] = struct.unpack_from(">I", data, len(data) - 9)
    return decode(data[-18 - 48 * count :])


def crafted(store: PosixStore, index: SegmentIndex) -> SegmentHandle:
    """Returns the segment of the even rows with another index, rightly recorded."""
    data = segment_format.encode(changes_of(even()), metadata={})
    return put(store, with_index(data, encode(index)), len(even()))


def even_index() -> SegmentIndex:
    return decode_of(segment_format.encode(changes_of(even()), metadata={}))


def test_another_segments_index_is_refused(store: Counted) -> None:
    index = even_index()
    fewer = SegmentIndex(index.blocks[:-1], index.has_long_offsets)
    beyond = replace(index.blocks[-1], last=GROUPS)
    for other in (fewer, SegmentIndex([*index.blocks[:-1], beyond], has_long_offsets=False)):
        with pytest.raises(CorruptSegmentError, match="another segment's"):
            rows_read(store, crafted(store, other), KeyGroupRange(0, 8))


def changed(index: SegmentIndex, **first: object) -> SegmentIndex:
    """Returns the index with another first block, which has that block's right checksum."""
    return SegmentIndex([replace(index.blocks[0], **first), *index.blocks[1:]], False)  # type: ignore[arg-type]


def test_a_block_with_other_rows_than_its_index_says_is_refused(store: Counted) -> None:
    index = even_index()
    one, two = index.blocks[:2]
    moved = [replace(one, rows=one.rows + 1), replace(two, rows=two.rows - 1), *index.blocks[2:]]
    with pytest.raises(CorruptSegmentError, match="other rows or key groups than its index"):
        rows_read(store, crafted(store, SegmentIndex(moved, False)), KeyGroupRange(0, 2))
    with pytest.raises(CorruptSegmentError, match="other rows or key groups than its index"):
        # Else key groups that the index does not name would be left out without a word.
        rows_read(store, crafted(store, changed(index, last=one.first)), KeyGroupRange(0, 1))


def test_blocks_that_are_no_record_batches_are_refused(store: Counted) -> None:
    index = even_index()
    data = segment_format.encode(changes_of(even()), metadata={})
    one = index.blocks[0]
    for offset, size_bytes in ((one.offset + 8, one.size_bytes - 8), (0, one.offset), (0, one.end)):
        sha256 = hashlib.sha256(data[offset : offset + size_bytes]).digest()
        block = replace(one, offset=offset, size_bytes=size_bytes, sha256=sha256, rows=len(even()))
        crafted_one = crafted(store, SegmentIndex([replace(block, last=GROUPS - 1)], False))
        with pytest.raises(CorruptSegmentError, match="cannot be decoded"):
            rows_read(store, crafted_one, KeyGroupRange(0, 1))


def crafted_block(store: PosixStore, message: bytes) -> SegmentHandle:
    """Returns a segment whose one block, of a row of key group 0 by its index, is this message."""
    sha256 = hashlib.sha256(message).digest()
    block = Block(first=0, last=0, rows=1, offset=0, size_bytes=len(message), sha256=sha256)
    return put(store, message + encode(SegmentIndex([block], has_long_offsets=False)), 1)


def message_of(rows: Sequence[Row]) -> bytes:
    """Returns rows as a record batch of a segment, with its head."""
    schema = segment_format.schema_of({}, pa.binary())
    changes = changes_of(rows)
    batch = segment_format.record_batch(schema, changes.ops, changes.keys, changes.values)
    message: bytes = batch.serialize().to_pybytes()
    return message


def test_an_empty_block_is_refused(store: Counted) -> None:
    one = crafted_block(store, message_of(rows_of([1])))
    assert rows_read(store, one, KeyGroupRange(0, 1)) == rows_of([1])
    handle = crafted_block(store, message_of([]))
    with pytest.raises(CorruptSegmentError, match="other rows or key groups than its index") as got:
        rows_read(store, handle, KeyGroupRange(0, 1))
    assert (got.value.file, got.value.offset) == (handle.path, OFFSET)


def test_a_block_that_arrow_reads_as_the_end_is_refused(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = crafted_block(store, bytes(4) + message_of(rows_of([1]))[4:])
    with pytest.raises(CorruptSegmentError, match="no mark at its start") as got:
        rows_read(store, handle, KeyGroupRange(0, 1))
    assert (got.value.file, got.value.offset) == (handle.path, OFFSET)
    monkeypatch.setattr("cairn.segments.ipc._MARK", 0)
    with pytest.raises(CorruptSegmentError, match="other blocks than its index says"):
        rows_read(store, handle, KeyGroupRange(0, 1))


def test_blocks_out_of_order_are_refused() -> None:
    index = even_index()
    with pytest.raises(CorruptSegmentError, match="out of order"):
        decode(encode(SegmentIndex(index.blocks[::-1], False)))
    with pytest.raises(CorruptSegmentError, match="out of order"):
        decode(encode(changed(index, rows=0)))


def test_an_index_of_another_version_says_which_cairn_reads_it(store: Counted) -> None:
    data = bytearray(segment_format.encode(changes_of(even()), metadata={}))
    data[-5] = VERSION + 1
    size_bytes = len(encode(even_index()))
    ref = IndexRef(size_bytes, hashlib.sha256(data[-size_bytes:]).hexdigest())
    store.put("job/newer.seg", [b"other", bytes(data)])
    handle = replace(placed(store, even()), path="job/newer.seg", index=ref)
    with pytest.raises(CorruptSegmentError, match=f"version {VERSION + 1}, this .* reads version"):
        rows_read(store, handle, KeyGroupRange(0, 8))
    # Whole, too: what follows the Arrow file is part of the form.
    with pytest.raises(CorruptSegmentError, match=f"version {VERSION + 1}"):
        list(segment_format.decode(bytes(data)))


def test_an_index_that_does_not_fit_is_refused() -> None:
    whole = encode(even_index())
    for cut in (whole[1:], whole[-17:], whole[-18:], b""):
        with pytest.raises(CorruptSegmentError, match="index by key group"):
            decode(cut)


def test_a_segment_without_an_index_is_read_whole_for_some_key_groups(store: Counted) -> None:
    data = segment_format.encode(changes_of(even()), metadata={})
    older = data[: -len(encode(even_index()))]
    handle = put(store, older, len(even()))
    assert handle.index is None
    assert rows_read(store, handle, KeyGroupRange(8, 16)) == within(even(), KeyGroupRange(8, 16))
    assert store.sizes == [len(older)]


def test_blocks_that_unpack_to_more_than_any_segment_does_are_refused(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = placed(store, even())
    monkeypatch.setattr("cairn.segments.partial.UNPACKED_PER_BYTE", 1)
    with pytest.raises(CorruptSegmentError, match="claim to unpack"):
        rows_read(store, handle, KeyGroupRange(0, 127))


def test_block_names_its_key_groups_in_its_error() -> None:
    block = Block(first=3, last=4, rows=1, offset=0, size_bytes=1, sha256=bytes(32))
    with pytest.raises(CorruptSegmentError, match="key groups 3 to 4"):
        block.check(b"x")
