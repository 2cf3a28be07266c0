"""The bytes of a manifest: the same for the same checkpoint, and nothing else is taken for one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError, RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.manifest import (
    Manifest,
    ManifestFile,
    ManifestSegment,
    ManifestVariable,
    decode,
    encode,
)
from cairn.names import is_job_name, is_name
from metastore.enums import Scope, SegmentKind, StateKind

KEY: dict[str, Any] = {"type": "struct", "fields": [{"name": "word", "type": "string"}]}
FILE_ID = "f0000000-0000-4000-8000-000000000001"
FILE = ManifestFile(FILE_ID, f"job-1/shared/subtask-0-2/{FILE_ID}.seg", Scope.SHARED)
SEGMENT = ManifestSegment(
    segment_id="50000000-0000-4000-8000-000000000001",
    file_id=FILE_ID,
    kind=SegmentKind.KEYED_FULL,
    subtask=1,
    key_groups=KeyGroupRange(4, 8),
    offset=10,
    size_bytes=20,
    sha256="ab" * 32,
    entries=3,
    first_checkpoint=7,
    as_of_checkpoint=5,
    sequence_number=2,
)
MANIFEST = Manifest(
    job="clicks",
    job_id="job-1",
    max_parallelism=8,
    key_schema=KEY,
    time_mode="eventtime",
    checkpoint_id=7,
    parent_checkpoint=6,
    query_id="q",
    batch_id=4,
    epoch=2,
    run_id="70000000-0000-4000-8000-000000000001",
    parallelism=2,
    processing_ms=1,
    watermark_ms=2,
    max_event_ms=(3, None),
    variables=(
        ManifestVariable(
            state_id=1,
            name="n",
            kind=StateKind.VALUE,
            value_layout=KEY,
            user_key_schema=None,
            has_ttl=True,
            is_dropped=False,
        ),
    ),
    files=(FILE,),
    segments=(SEGMENT,),
)

# PostgreSQL has no NUL in text, so no checkpoint has one in a name.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
manifests = st.builds(
    replace,
    st.just(MANIFEST),
    job=names.filter(is_job_name),
    time_mode=st.none() | names,
    batch_id=st.integers(-1, 2**62),
    epoch=st.integers(1, 2**62),
    max_event_ms=st.lists(st.none() | st.integers(-(2**62), 2**62)).map(tuple),
    variables=st.lists(
        st.builds(
            ManifestVariable,
            state_id=st.integers(1, 32767),
            name=names.filter(is_name),
            kind=st.sampled_from(StateKind),
            value_layout=st.dictionaries(names, names | st.integers(0, 9)),
            user_key_schema=st.none() | st.dictionaries(names, names),
            has_ttl=st.booleans(),
            is_dropped=st.booleans(),
        ),
        max_size=3,
        unique_by=lambda variable: variable.state_id,
    ).map(tuple),
)


@given(manifests)
def test_a_manifest_reads_back_as_it_was(manifest: Manifest) -> None:
    assert decode(encode(manifest), file="m") == manifest


def test_equal_manifests_have_equal_bytes_whatever_the_order_of_their_schemas() -> None:
    turned = replace(MANIFEST, key_schema=dict(reversed(KEY.items())))
    assert encode(turned) == encode(MANIFEST)


def test_its_handles_are_those_of_the_segments() -> None:
    assert MANIFEST.handles() == [
        (
            1,
            SegmentHandle(
                segment_id="50000000-0000-4000-8000-000000000001",
                kind=SegmentKind.KEYED_FULL,
                path=FILE.path,
                offset=10,
                size_bytes=20,
                sha256="ab" * 32,
                key_groups=KeyGroupRange(4, 8),
                entries=3,
                first_checkpoint=7,
                as_of_checkpoint=5,
                sequence_number=2,
            ),
        )
    ]


@given(st.data())
def test_a_changed_byte_is_found_wherever_it_is(data: st.DataObject) -> None:
    damaged = bytearray(encode(MANIFEST))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CorruptSegmentError, RefusedError), match="file m"):
        decode(bytes(damaged), file="m")


@pytest.mark.parametrize("size_bytes", [0, 1, 40, 90, 500])
def test_a_manifest_that_was_cut_is_refused(size_bytes: int) -> None:
    with pytest.raises(CorruptSegmentError, match="file m"):
        decode(encode(MANIFEST)[:size_bytes], file="m")


def test_a_newer_form_is_refused_with_what_to_use() -> None:
    newer = encode(MANIFEST).replace(b"cairn-manifest 1 ", b"cairn-manifest 2 ")
    with pytest.raises(RefusedError, match=r"version 2, this Cairn reads 1: .* a newer one"):
        decode(newer, file="m")


@pytest.mark.parametrize(
    "change",
    [
        {"files": ()},
        {"files": (replace(FILE, path="job-2/shared/f-1.seg"),)},
        {"files": (replace(FILE, path="job-1/../job-2/f-1.seg"),)},
        {"segments": (replace(SEGMENT, first_checkpoint=8),)},
        {"segments": (replace(SEGMENT, kind=SegmentKind.MANIFEST),)},
        {"max_parallelism": 7},
    ],
    ids=["no file", "another job's file", "a way out", "later", "a manifest", "key groups"],
)
def test_segments_that_do_not_fit_their_checkpoint_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptSegmentError, match=f"{SEGMENT.segment_id} of the manifest is no"):
        decode(encode(replace(MANIFEST, **change)), file="m")


VARIABLE = MANIFEST.variables[0]


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint_id": 10**30},
        {"checkpoint_id": -1},
        {"epoch": 2**63},
        {"run_id": "zzz"},
        {"parallelism": 0},
        {"parallelism": 9},
        {"max_parallelism": 10**11},
        {"job": "a\0b"},
        {"job": "a" * 10_000},
        {"job": " "},
        {"segments": (SEGMENT, SEGMENT)},
        {"files": (FILE, replace(FILE, path="job-1/shared/none.seg"))},
        {"variables": (VARIABLE, VARIABLE)},
        {"variables": (replace(VARIABLE, state_id=40_000),)},
        {"time_mode": 7},
        {"segments": (replace(SEGMENT, segment_id="zzz"),)},
        {"segments": (replace(SEGMENT, size_bytes=0),)},
        {"segments": (replace(SEGMENT, offset=-5),)},
        {"segments": (replace(SEGMENT, entries=-1),)},
        {"segments": (replace(SEGMENT, subtask=-1),)},
        {"segments": (replace(SEGMENT, sequence_number=10**6),)},
        {"segments": (replace(SEGMENT, sha256="ab"),)},
        {"segments": (replace(SEGMENT, as_of_checkpoint=8),)},
    ],
    ids=repr,
)
def test_values_that_no_metastore_takes_are_refused_whatever_the_checksum(
    change: dict[str, Any],
) -> None:
    with pytest.raises(CorruptSegmentError):
        decode(encode(replace(MANIFEST, **change)), file="m")


def test_a_manifest_that_is_nested_too_deep_is_corrupt() -> None:
    body = b'{"key_schema":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    head = f"cairn-manifest 1 {hashlib.sha256(body).hexdigest()}\n".encode()
    with pytest.raises(CorruptSegmentError, match="the manifest cannot be read"):
        decode(head + body, file="m")


def test_a_manifest_that_differs_in_its_variables_alone_is_of_the_same_checkpoint() -> None:
    assert MANIFEST.is_same_checkpoint(replace(MANIFEST, variables=()))
    assert not MANIFEST.is_same_checkpoint(replace(MANIFEST, segments=()))
