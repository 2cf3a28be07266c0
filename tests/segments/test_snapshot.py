from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments.format import encode
from cairn.segments.snapshot import snapshot
from cairn.state.entries import entry_prefix, state_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from cairn.storage import ObjectStore, open_store
from metastore.enums import KEYED, SegmentKind

KEY_GROUPS = 4
EVERYTHING = KeyGroupRange(0, KEY_GROUPS)

Change = tuple[int, bytes, bytes | None]
State = dict[bytes, bytes]

prefixes = st.builds(
    entry_prefix,
    st.integers(0, KEY_GROUPS - 1),
    st.integers(1, 2),
    st.sampled_from([b"", b"a", b"ab"]),
)
states = st.builds(state_prefix, st.integers(0, KEY_GROUPS - 1), st.integers(1, 2))
suffixes = st.sampled_from([b"", b"x", b"xy", b"\0"])
changes = st.one_of(
    st.tuples(st.just(PUT), st.builds(bytes.__add__, prefixes, suffixes), st.binary(max_size=3)),
    st.tuples(st.just(DELETE), st.builds(bytes.__add__, prefixes, suffixes), st.none()),
    st.tuples(st.just(DELETE_PREFIX), st.one_of(prefixes, states), st.none()),
)
ranges = st.builds(
    lambda a, b: KeyGroupRange(min(a, b), max(a, b)),
    st.integers(0, KEY_GROUPS),
    st.integers(0, KEY_GROUPS),
)
segments = st.lists(
    st.tuples(st.sampled_from(SegmentKind), ranges, st.lists(changes, max_size=8)), max_size=6
)


@pytest.fixture
def store(tmp_storage: str) -> ObjectStore:
    return open_store(tmp_storage)


def key_group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")


def write(
    store: ObjectStore, kind: SegmentKind, key_groups: KeyGroupRange, rows: list[Change]
) -> SegmentHandle:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    data = encode(Changes(*columns), metadata={})
    path = f"job-1/{sum(1 for _ in store.list('job-1/'))}.seg"
    store.put(path, [b"other", data])
    spec = SegmentSpec.of(
        data, kind=kind, key_groups=key_groups, entries=len(rows), checkpoint_id=1
    )
    return spec.at(path, len(b"other"))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(given_segments=segments, wanted=ranges)
@example(
    given_segments=[
        (SegmentKind.CHANGELOG, EVERYTHING, [(PUT, entry_prefix(1, 1, b"a"), b"older")]),
        (SegmentKind.KEYED_FULL, EVERYTHING, []),
    ],
    wanted=EVERYTHING,
)
def test_snapshot_is_the_state_that_the_segments_lead_to(
    store: ObjectStore,
    given_segments: list[tuple[SegmentKind, KeyGroupRange, list[Change]]],
    wanted: KeyGroupRange,
) -> None:
    model: State = {}
    handles = []
    for kind, key_groups, drawn in given_segments:
        rows = [row for row in drawn if key_group(row[1]) in key_groups]
        if kind is SegmentKind.KEYED_FULL:
            rows = [row for row in rows if row[0] == PUT]
            model = {k: v for k, v in model.items() if key_group(k) not in key_groups}
        rows.sort(key=lambda row: key_group(row[1]))
        for op, key, value in rows if kind in KEYED else []:
            if op == PUT and value is not None:
                model[key] = value
            else:
                gone = [k for k in model if k == key or (op != DELETE and k.startswith(key))]
                for k in gone:
                    del model[k]
        handles.append(write(store, kind, key_groups, rows))
    expected = {k: v for k, v in sorted(model.items()) if key_group(k) in wanted}
    found = snapshot(store, handles, wanted, job="clicks")
    assert list(found.items()) == list(expected.items())


def test_segments_outside_the_key_groups_are_not_read(store: ObjectStore, tmp_path: Path) -> None:
    handle = write(store, SegmentKind.CHANGELOG, KeyGroupRange(0, 2), [])
    (tmp_path / "storage" / handle.path).unlink()
    assert snapshot(store, [handle], KeyGroupRange(2, 4), job="clicks") == {}


def test_key_that_is_no_state_is_reported_with_its_segment(store: ObjectStore) -> None:
    handle = write(store, SegmentKind.CHANGELOG, EVERYTHING, [(PUT, b"\0\0\0\1\0\0\0\x09", b"v")])
    with pytest.raises(CorruptSegmentError, match=r"something else than state.*job clicks.*offset"):
        snapshot(store, [handle], EVERYTHING, job="clicks")


def test_many_states_that_are_dropped_take_time_by_their_number(store: ObjectStore) -> None:
    """By its square, this would take minutes."""
    puts: list[Change] = [(PUT, entry_prefix(0, 1, b"%d" % n), b"v") for n in range(20_000)]
    drops: list[Change] = [(DELETE_PREFIX, state_prefix(0, 2), None)] * 20_000
    handle = write(store, SegmentKind.CHANGELOG, EVERYTHING, puts + drops)
    started = time.process_time()
    assert len(snapshot(store, [handle], EVERYTHING, job="clicks")) == 20_000
    assert time.process_time() - started < 10
