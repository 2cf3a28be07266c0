"""Reading many segments: how many at once, in which order, and what stops it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments import format as segment_format
from cairn.segments import reader
from cairn.segments.reader import READ_AHEAD, read_segments
from cairn.state.entries import entry_prefix
from cairn.state.view import PUT, Changes
from cairn.storage.posix import PosixStore
from metastore.enums import SegmentKind

KEYS = 3


class Watched:
    """A store whose reads wait until `together` of them are under way, and are counted."""

    def __init__(self, store: PosixStore, together: int = 1) -> None:
        self._store = store
        self._all_here = threading.Barrier(together)
        self._lock = threading.Lock()
        self._under_way = 0
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        with self._lock:
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        self._all_here.wait(timeout=30)
        data = self._store.get(path, offset, size_bytes)
        with self._lock:
            self._under_way -= 1
        return data


def changes(number: int) -> Changes:
    keys = [entry_prefix(number, 1, b"%d" % key) for key in range(KEYS)]
    return Changes([PUT] * KEYS, keys, [b"%d" % number] * KEYS)


def written(store: PosixStore, segments: Sequence[Changes]) -> list[SegmentHandle]:
    handles = []
    for number, one in enumerate(segments):
        data = segment_format.encode(one, metadata={})
        path = f"job/exclusive/{number}.seg"
        store.put(path, [data])
        spec = SegmentSpec.of(
            data,
            kind=SegmentKind.CHANGELOG,
            key_groups=KeyGroupRange(number, number + 1),
            entries=len(one),
            checkpoint_id=number + 1,
        )
        handles.append(spec.at(path))
    return handles


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path)


def test_small_segments_are_read_at_once_and_handed_over_in_order(store: PosixStore) -> None:
    handles = written(store, [changes(number) for number in range(2 * READ_AHEAD)])
    watched = Watched(store, together=READ_AHEAD)
    found = list(read_segments(watched, handles, job="words"))
    assert found == [(handle, changes(number)) for number, handle in enumerate(handles)]
    assert watched.most == READ_AHEAD


def test_segments_that_are_read_ahead_have_bounded_bytes_but_one_of_any_size_is_read(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = written(store, [changes(number) for number in range(9)])
    for segments, most in ((2.5, 2), (0.5, 1)):
        limit = int(handles[0].size_bytes * segments)
        monkeypatch.setattr(reader, "READ_AHEAD_BYTES", limit)
        watched = Watched(store)
        assert len(list(read_segments(watched, handles, job="words"))) == 9
        assert 1 <= watched.most <= most


def test_a_segment_without_changes_has_one_batch_without_any(store: PosixStore) -> None:
    segments = [changes(0), Changes([], [], []), changes(2)]
    handles = written(store, segments)
    assert list(read_segments(store, handles, job="words")) == list(
        zip(handles, segments, strict=True)
    )
    only = read_segments(store, handles, job="words", key_groups=KeyGroupRange(2, 3))
    assert [len(part) for _, part in only] == [0, 0, KEYS]


def test_what_comes_before_a_corrupt_segment_is_handed_over_and_then_it_is_named(
    store: PosixStore, tmp_path: Path
) -> None:
    handles = written(store, [changes(number) for number in range(4)])
    (tmp_path / handles[2].path).write_bytes(b"x" * handles[2].size_bytes)
    found: list[SegmentHandle] = []
    with pytest.raises(CorruptSegmentError, match=r"checkpoint 3, file job/exclusive/2.seg"):
        found.extend(handle for handle, _ in read_segments(store, handles, job="words"))
    assert found == handles[:2]


def test_a_reader_that_is_left_early_ends_its_threads(store: PosixStore) -> None:
    handles = written(store, [changes(number) for number in range(2 * READ_AHEAD)])
    before = threading.active_count()
    reading = read_segments(store, handles, job="words")
    next(reading)
    assert threading.active_count() > before
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert threading.active_count() == before
