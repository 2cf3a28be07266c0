"""Folding segments into bases: the state of `snapshot`, in memory that does not grow with it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError, RefusedError, StorageError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments import base_writer, net_changes, whole_segment
from cairn.segments.base_writer import FoldedBase
from cairn.segments.fold import fold
from cairn.segments.format import decode
from cairn.segments.snapshot import snapshot
from cairn.state.entries import entry_prefix, state_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT
from cairn.storage import ObjectStore, open_store
from metastore.enums import SegmentKind
from tests.segments.test_snapshot import (
    EVERYTHING,
    Change,
    key_group,
    ranges,
    segments,
    write,
)


@pytest.fixture
def store(tmp_storage: str) -> ObjectStore:
    return open_store(tmp_storage)


def written(
    store: ObjectStore, drawn: list[tuple[SegmentKind, KeyGroupRange, list[Change]]]
) -> list[SegmentHandle]:
    """Returns segments as Cairn writes them: bases by key and without deletions."""
    handles = []
    for kind, key_groups, changes in drawn:
        rows = [row for row in changes if key_group(row[1]) in key_groups]
        if kind is SegmentKind.KEYED_FULL:
            rows = sorted({row[1]: row for row in rows if row[0] == PUT}.values())
        rows.sort(key=lambda row: key_group(row[1]))
        handles.append(write(store, kind, key_groups, rows))
    return handles


def entries_of(bases: list[FoldedBase]) -> dict[bytes, bytes]:
    """Returns what bases hold; each is what its spec says."""
    found: dict[bytes, bytes] = {}
    for base in bases:
        data = b"".join(base.pieces)
        entries = {
            key: value
            for changes in decode(data)
            for key, value in zip(changes.keys, changes.values, strict=True)
        }
        assert all(key_group(key) in base.spec.key_groups for key in entries)
        assert base.spec.entries == len(entries)
        assert not set(entries) & set(found)
        found |= entries  # type: ignore[arg-type]
        assert base.spec == dataclasses.replace(
            base.spec.of(
                data,
                kind=SegmentKind.KEYED_FULL,
                key_groups=base.spec.key_groups,
                entries=len(entries),
                checkpoint_id=7,
            )
        )
    return found


def folded(
    store: ObjectStore,
    handles: list[SegmentHandle],
    wanted: KeyGroupRange = EVERYTHING,
    *,
    chunk_bytes: int = 1 << 20,
    sort_bytes: int = 1 << 20,
    scratch: Path | None = None,
) -> list[FoldedBase]:
    bases = fold(
        store,
        handles,
        wanted,
        job="clicks",
        subtask=0,
        as_of_checkpoint=7,
        chunk_bytes=chunk_bytes,
        sort_bytes=sort_bytes,
        scratch=scratch,
    )
    return list(bases)


PREFIX = entry_prefix(1, 1, b"a")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    drawn=segments,
    wanted=ranges,
    chunk_bytes=st.sampled_from([1, 40, 1 << 20]),
    sort_bytes=st.sampled_from([1, 600, 1 << 20]),
    is_spooled=st.booleans(),
)
@example(
    drawn=[
        (SegmentKind.KEYED_FULL, EVERYTHING, [(PUT, PREFIX + b"x", b"1"), (PUT, PREFIX, b"2")]),
        (SegmentKind.CHANGELOG, EVERYTHING, [(DELETE_PREFIX, PREFIX, None)]),
        (SegmentKind.CHANGELOG, EVERYTHING, [(PUT, PREFIX + b"x", b"3")]),
        (SegmentKind.CHANGELOG, EVERYTHING, [(DELETE, PREFIX + b"xy", None)]),
    ],
    wanted=EVERYTHING,
    chunk_bytes=1,
    sort_bytes=1,
    is_spooled=True,
)
@example(
    drawn=[
        (SegmentKind.CHANGELOG, EVERYTHING, [(PUT, PREFIX, b"older")]),
        (SegmentKind.KEYED_FULL, KeyGroupRange(1, 2), []),
        (SegmentKind.CHANGELOG, EVERYTHING, [(DELETE_PREFIX, state_prefix(0, 1), None)]),
    ],
    wanted=EVERYTHING,
    chunk_bytes=1,
    sort_bytes=1,
    is_spooled=False,
)
@example(
    drawn=[
        (SegmentKind.CHANGELOG, EVERYTHING, [(PUT, PREFIX + b"x", b"older")]),
        (SegmentKind.CHANGELOG, EVERYTHING, [(DELETE_PREFIX, PREFIX, None)]),
    ],
    wanted=EVERYTHING,
    chunk_bytes=1,
    sort_bytes=1,
    is_spooled=False,
)
def test_the_fold_of_any_history_is_its_snapshot(
    store: ObjectStore,
    drawn: list[tuple[SegmentKind, KeyGroupRange, list[Change]]],
    wanted: KeyGroupRange,
    chunk_bytes: int,
    sort_bytes: int,
    is_spooled: bool,
) -> None:
    handles = written(store, drawn)
    expected = snapshot(store, handles, wanted, job="clicks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net_changes, "FAN_IN", 2)
        if is_spooled:
            patch.setattr(whole_segment, "IN_MEMORY_BYTES", 1)
            patch.setattr("cairn.segments.fold.IN_MEMORY_BYTES", 1)
            patch.setattr(base_writer, "ROWS_PER_BATCH", 2)
            patch.setattr(base_writer, "IN_MEMORY_BYTES", 1)
        bases = folded(store, handles, wanted, chunk_bytes=chunk_bytes, sort_bytes=sort_bytes)
    assert list(entries_of(bases).items()) == list(expected.items())
    covered = [group for base in bases for group in range(*bounds(base))]
    assert covered == list(range(wanted.start, wanted.end))


def bounds(base: FoldedBase) -> tuple[int, int]:
    return base.spec.key_groups.start, base.spec.key_groups.end


def test_a_base_ends_with_the_key_group_that_fills_it(store: ObjectStore) -> None:
    rows: list[Change] = [
        (PUT, entry_prefix(group, 1, b"%d" % n), bytes(90)) for group in range(4) for n in range(10)
    ]
    handles = written(store, [(SegmentKind.CHANGELOG, EVERYTHING, rows)])
    bases = folded(store, handles, chunk_bytes=1500)
    assert [bounds(base) for base in bases] == [(0, 2), (2, 4)]


def test_changes_that_a_base_replaces_are_not_read(store: ObjectStore, tmp_path: Path) -> None:
    handles = written(
        store, [(SegmentKind.CHANGELOG, EVERYTHING, []), (SegmentKind.KEYED_FULL, EVERYTHING, [])]
    )
    (tmp_path / "storage" / handles[0].path).unlink()
    assert entries_of(folded(store, handles)) == {}


def test_a_base_that_is_not_by_key_is_refused(store: ObjectStore) -> None:
    """The merge looks for keys by halving: it would lose entries."""
    rows: list[Change] = [(PUT, PREFIX + b"x", b"1"), (PUT, PREFIX, b"2")]
    handle = write(store, SegmentKind.KEYED_FULL, EVERYTHING, rows)
    with pytest.raises(CorruptSegmentError, match=f"base {handle.segment_id} holds something else"):
        folded(store, [handle])


@pytest.mark.parametrize("kind", [SegmentKind.KEYED_FULL, SegmentKind.CHANGELOG])
def test_a_key_that_is_no_state_is_refused(store: ObjectStore, kind: SegmentKind) -> None:
    handle = write(store, kind, EVERYTHING, [(PUT, b"\0\0\0\1\0\0\0\x09", b"v")])
    with pytest.raises(CorruptSegmentError, match=r"something else than state.*job clicks"):
        folded(store, [handle])


@pytest.mark.parametrize("in_memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize("kind", [SegmentKind.KEYED_FULL, SegmentKind.CHANGELOG])
def test_other_bytes_than_were_recorded_are_refused_before_any_is_used(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int, kind: SegmentKind
) -> None:
    monkeypatch.setattr(whole_segment, "IN_MEMORY_BYTES", in_memory_bytes)
    monkeypatch.setattr("cairn.segments.fold.IN_MEMORY_BYTES", in_memory_bytes)
    rows: list[Change] = [(PUT, PREFIX, b"1")]
    handle = dataclasses.replace(write(store, kind, EVERYTHING, rows), sha256="0" * 64)
    with pytest.raises(CorruptSegmentError, match="is not what was written"):
        folded(store, [handle])


def test_a_missing_segment_is_told(store: ObjectStore, tmp_path: Path) -> None:
    [handle] = written(store, [(SegmentKind.CHANGELOG, EVERYTHING, [])])
    (tmp_path / "storage" / handle.path).unlink()
    with pytest.raises(StorageError, match="no such object"):
        folded(store, [handle])


def test_entries_that_no_batch_takes_are_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_writer, "BINARY_LIMIT_BYTES", 50)
    handles = written(store, [(SegmentKind.CHANGELOG, EVERYTHING, [(PUT, PREFIX, bytes(60))])])
    with pytest.raises(RefusedError, match=r"periodic-materialize\.by to stream"):
        folded(store, handles)


def test_zeros_are_written_so_that_they_can_be_read_however_large_the_key_group(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zstd packs them more tightly than a reader takes."""
    monkeypatch.setattr(base_writer, "IN_MEMORY_BYTES", 1)
    monkeypatch.setattr(base_writer, "ROWS_PER_BATCH", 2)
    rows: list[Change] = [(PUT, PREFIX + b"%d" % n, bytes(1 << 20)) for n in range(5)]
    bases = folded(store, written(store, [(SegmentKind.CHANGELOG, EVERYTHING, rows)]))
    assert list(entries_of(bases).values()) == [bytes(1 << 20)] * 5


def test_nothing_is_left_on_disk(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_segment, "IN_MEMORY_BYTES", 1)
    monkeypatch.setattr(base_writer, "IN_MEMORY_BYTES", 1)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows: list[Change] = [(PUT, PREFIX + b"%d" % n, b"v") for n in range(9)]
    drawn = [(kind, EVERYTHING, rows) for kind in (SegmentKind.KEYED_FULL, SegmentKind.CHANGELOG)]
    assert len(entries_of(folded(store, written(store, drawn), sort_bytes=1, scratch=scratch))) == 9
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_key_group_of_400_mb_is_folded_in_less_than_300(tmp_path: Path) -> None:
    """Two thirds of it as a base, one third as changelog, and one base made of both."""
    most_kb = subprocess.run(
        [sys.executable, "-m", "tests.segments.large_fold", str(tmp_path), "400"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert int(most_kb) < 300 << 10
