from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments import format as segment_format
from cairn.segments.operator_segment import decode, encode, read_lists
from cairn.state.entries import entry_prefix, list_suffix
from cairn.state.operator_lists import Lists
from cairn.state.view import DELETE, PUT, Changes
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind

METADATA = {"job": "clicks", "checkpoint": "7", "subtask": "0", "kind": "operator"}
LISTS: Lists = {1: [b"a", b"", b"a"], 7: [b"b"]}


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 32767), st.lists(st.binary(max_size=9), min_size=1)))
def test_decoded_lists_are_those_that_were_encoded(lists: Lists) -> None:
    assert decode(encode(lists, metadata=METADATA)) == lists


def test_lists_of_several_record_batches_are_read_back_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_format, "ROWS_PER_BATCH", 2)
    assert decode(encode(LISTS, metadata=METADATA)) == LISTS


def element(position: int, state_id: int = 1, group: int = 0, key: bytes = b"") -> bytes:
    return entry_prefix(group, state_id, key) + list_suffix(position)


@pytest.mark.parametrize(
    ("op", "key", "value"),
    [
        (DELETE, element(0), None),
        (PUT, element(1), b"v"),
        (PUT, element(0, group=3), b"v"),
        (PUT, element(0, key=b"k"), b"v"),
        (PUT, element(0), None),
        (PUT, b"\0\0\0\1", b"v"),
    ],
    ids=["a change", "a gap", "a key group", "a key", "no value", "no entry"],
)
def test_a_segment_of_something_else_is_refused(op: int, key: bytes, value: bytes | None) -> None:
    data = segment_format.encode(Changes([op], [key], [value]), metadata=METADATA)
    with pytest.raises(CorruptSegmentError, match=r"no operator lists|no changes of"):
        decode(data)


@pytest.mark.parametrize("damage", ["bytes", "content"])
def test_damage_is_named_with_file_and_offset(tmp_path: Path, damage: str) -> None:
    data = encode(LISTS, metadata=METADATA)
    if damage == "content":
        data = segment_format.encode(Changes([DELETE], [element(0)], [None]), metadata=METADATA)
    (tmp_path / "file.seg").write_bytes(b"before" + data)
    recorded = data if damage == "content" else b"x"
    spec = SegmentSpec.of(
        recorded,
        kind=SegmentKind.OPERATOR,
        key_groups=KeyGroupRange(0, 4),
        entries=4,
        checkpoint_id=7,
    )
    handle = replace(spec, size_bytes=len(data)).at("file.seg", 6, segment_id="s-1")
    with pytest.raises(CorruptSegmentError, match=r"s-1.*checkpoint 7, file file.seg, offset 6"):
        read_lists(PosixStore(tmp_path), handle, job="clicks")
