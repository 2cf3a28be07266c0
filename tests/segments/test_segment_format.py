from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments import format as segment_format
from cairn.segments.format import FORMAT_VERSION, ROWS_PER_BATCH, SMALL_BYTES, decode, encode
from cairn.segments.reader import read_segment
from cairn.state.entries import entry_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind

_LZ4_MAGIC, _ZSTD_MAGIC = bytes.fromhex("04224d18"), bytes.fromhex("28b52ffd")
METADATA = {"job": "clicks", "checkpoint": "7", "subtask": "0", "kind": "changelog"}
CHANGES = Changes(
    [PUT, DELETE, DELETE_PREFIX, PUT],
    [
        entry_prefix(1, 2, b"a"),
        entry_prefix(1, 2, b"b"),
        entry_prefix(300, 9, b"c"),
        entry_prefix(300, 9, b"c") + b"x",
    ],
    [b"value", None, None, b""],
)


def encoded(changes: Changes = CHANGES) -> bytes:
    return encode(changes, metadata=METADATA)


def test_decoded_changes_are_those_that_were_encoded() -> None:
    assert list(decode(encoded())) == [CHANGES]


def test_segment_without_changes_decodes_to_none() -> None:
    assert list(decode(encoded(Changes([], [], [])))) == []


def test_any_arrow_tool_can_read_a_segment_and_tell_what_it_is() -> None:
    table = pa.ipc.open_file(encoded()).read_all()
    assert table.column_names == ["key_group", "state", "op", "key", "value"]
    assert table.column("key_group").to_pylist() == [1, 1, 300, 300]
    assert table.column("state").to_pylist() == [2, 2, 9, 9]
    assert table.schema.metadata == {
        b"cairn.format_version": b"1",
        b"cairn.job": b"clicks",
        b"cairn.checkpoint": b"7",
        b"cairn.subtask": b"0",
        b"cairn.kind": b"changelog",
    }


def test_record_batches_are_bounded() -> None:
    rows = ROWS_PER_BATCH + 1
    keys = [entry_prefix(0, 0, row.to_bytes(4, "big")) for row in range(rows)]
    parts = list(decode(encoded(Changes([PUT] * rows, keys, [b"v"] * rows))))
    assert [len(part) for part in parts] == [ROWS_PER_BATCH, 1]
    assert parts[0].keys + parts[1].keys == keys


@pytest.mark.parametrize("extra_bytes", [0, 1])
def test_only_a_large_segment_pays_for_zstd_and_both_are_read_back(extra_bytes: int) -> None:
    key = entry_prefix(1, 2, b"a")
    changes = Changes([PUT], [key], [b"v" * (SMALL_BYTES - len(key) + extra_bytes)])
    data = encoded(changes)
    assert (_LZ4_MAGIC in data, _ZSTD_MAGIC in data) == (not extra_bytes, bool(extra_bytes))
    assert list(decode(data)) == [changes]


@pytest.mark.slow
def test_changes_of_more_than_2_gib_are_read_back_in_batches_that_fit_into_memory() -> None:
    value = b"v" * (32 << 20)
    keys = [entry_prefix(row // 10, 0, row.to_bytes(4, "big")) for row in range(70)]
    data = encoded(Changes([PUT] * 70, keys, [value] * 70))
    read = []
    for part in decode(data):
        assert len(part) <= 2
        assert all(found == value for found in part.values)
        read += part.keys
    assert read == keys


def test_a_value_too_long_for_a_binary_column_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_format, "BYTES_PER_BATCH", 20)
    monkeypatch.setattr(segment_format, "BINARY_LIMIT_BYTES", 50)
    changes = Changes([PUT] * 2, CHANGES.keys[:2], [b"short", b"v" * 60])
    data = encoded(changes)
    assert pa.ipc.open_file(data).schema.field("value").type == pa.large_binary()
    parts = list(decode(data))
    assert [key for part in parts for key in part.keys] == changes.keys
    assert [value for part in parts for value in part.values] == changes.values


@pytest.mark.parametrize(
    ("start", "end", "kept"), [(0, 2, 2), (1, 1, 0), (2, 300, 0), (2, 301, 2), (0, 400, 4)]
)
def test_only_the_asked_key_groups_are_decoded(start: int, end: int, kept: int) -> None:
    parts = list(decode(encoded(), KeyGroupRange(start, end)))
    groups = [int.from_bytes(key[:2], "big") for part in parts for key in part.keys]
    assert len(groups) == kept
    assert all(start <= group < end for group in groups)


def test_truncated_segment_is_corrupt() -> None:
    data = encoded()
    for size_bytes in range(len(data)):
        with pytest.raises(CorruptSegmentError, match="cannot be decoded"):
            list(decode(data[:size_bytes]))


def test_flipped_bit_never_gives_another_error_than_corrupt() -> None:
    data = encoded()
    refused = 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        try:
            list(decode(bytes(damaged)))
        except CorruptSegmentError:
            refused += 1
    assert refused > len(data) // 4


def arrow_file(schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, schema).close()
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_arrow_file_that_is_no_segment_is_refused() -> None:
    with pytest.raises(CorruptSegmentError, match="not one that Cairn wrote"):
        list(decode(arrow_file(pa.schema([("key", pa.binary())]))))
    schema = pa.schema([("key", pa.binary())], {"cairn.format_version": FORMAT_VERSION})
    with pytest.raises(CorruptSegmentError, match="other columns"):
        list(decode(arrow_file(schema)))


def test_later_format_version_is_refused_by_name() -> None:
    schema = pa.ipc.open_file(encoded()).schema.with_metadata({"cairn.format_version": "2"})
    with pytest.raises(CorruptSegmentError, match="format version 2, this version of Cairn reads"):
        list(decode(arrow_file(schema)))


def stored(tmp_path: Path, data: bytes, sha256: str | None = None) -> SegmentHandle:
    (tmp_path / "file.seg").write_bytes(b"before" + data + b"after")
    return SegmentHandle(
        segment_id="s-1",
        kind=SegmentKind.CHANGELOG,
        path="file.seg",
        offset=6,
        size_bytes=len(data),
        sha256=sha256 or hashlib.sha256(data).hexdigest(),
        key_groups=KeyGroupRange(0, 400),
        entries=4,
        first_checkpoint=7,
        as_of_checkpoint=7,
    )


def test_segment_is_read_from_its_range_of_the_file(tmp_path: Path) -> None:
    handle = stored(tmp_path, encoded())
    assert list(read_segment(PosixStore(tmp_path), handle, job="clicks")) == [CHANGES]
    some = read_segment(PosixStore(tmp_path), handle, job="clicks", key_groups=KeyGroupRange(0, 2))
    assert [len(part) for part in some] == [2]


def test_wrong_checksum_is_refused_at_once_with_job_checkpoint_file_and_offset(
    tmp_path: Path,
) -> None:
    handle = stored(tmp_path, encoded(), sha256="0" * 64)
    with pytest.raises(CorruptSegmentError) as caught:
        read_segment(PosixStore(tmp_path), handle, job="clicks")
    error = caught.value
    assert (error.job, error.checkpoint, error.file, error.offset) == ("clicks", 7, "file.seg", 6)
    assert "0" * 64 in str(error)
    assert "restore a checkpoint" in str(error)


def test_undecodable_segment_with_the_right_checksum_names_its_place(tmp_path: Path) -> None:
    handle = stored(tmp_path, b"not arrow")
    with pytest.raises(CorruptSegmentError, match=r"s-1.*checkpoint 7, file file.seg, offset 6"):
        list(read_segment(PosixStore(tmp_path), handle, job="clicks"))
