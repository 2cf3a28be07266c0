"""Loading bases into local state: appended where nothing is behind them, and right everywhere."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor import local_writer
from cairn.runtime.executor.local_record import Position
from cairn.runtime.executor.local_store import LocalStore
from cairn.state.entries import entry_prefix, key_group_bounds
from cairn.state.view import PUT, Changes

GROUPS = KeyGroupRange(0, 4)
EXECUTOR = os.path.dirname(local_writer.__file__)
LONG = b"long" * 200
"""Longer than LMDB's keys."""

names = st.builds(
    lambda name, suffix: name + suffix,
    st.sampled_from([b"", b"a", b"ab", b"b", LONG]),
    st.binary(max_size=1),
)
keys = st.builds(entry_prefix, st.integers(0, 3), st.just(1), names)
entries = st.dictionaries(keys, st.binary(max_size=3), max_size=12)
ranges = st.sampled_from([(0, 1), (1, 2), (2, 4), (0, 4), (3, 4), (1, 3)])


def within(state: dict[bytes, bytes], groups: KeyGroupRange) -> dict[bytes, bytes]:
    lower, upper = key_group_bounds(groups)
    return {key: value for key, value in state.items() if lower <= key < upper}


def puts(state: dict[bytes, bytes], *, in_order: bool = True) -> Changes:
    found = sorted(state) if in_order else sorted(state, reverse=True)
    return Changes([PUT] * len(found), found, [state[key] for key in found])


def contents(store: LocalStore) -> dict[bytes, bytes]:
    with store.read() as reader:
        found = list(reader.range(GROUPS))
    assert len(dict(found)) == len(found)
    return dict(found)


@settings(max_examples=150, deadline=None)
@given(
    loads=st.lists(
        st.tuples(ranges, entries, st.booleans(), st.booleans()), min_size=1, max_size=6
    ),
    in_one_transaction=st.booleans(),
)
def test_bases_in_any_order_over_any_state_leave_exactly_what_they_hold(
    loads: list[tuple[tuple[int, int], dict[bytes, bytes], bool, bool]], in_one_transaction: bool
) -> None:
    state: dict[bytes, bytes] = {}
    with TemporaryDirectory() as directory:
        store = LocalStore(Path(directory) / "subtask-0-1")
        for some in [loads] if in_one_transaction else [[load] for load in loads]:
            with store.write() as writer:
                for (start, end), found, replaces, in_order in some:
                    groups = KeyGroupRange(start, end)
                    base = within(found, groups)
                    if replaces:
                        writer.clear(groups)
                        gone = within(state, groups)
                        state = {k: v for k, v in state.items() if k not in gone}
                    writer.apply(puts(base, in_order=in_order))
                    state |= base
                writer.move_to(Position(len(state) + 1, "run", 1))
            assert contents(store) == state
            with store.read() as reader:
                assert reader.position() == Position(len(state) + 1, "run", 1)


def test_a_key_twice_in_one_segment_has_its_last_value(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    key, other = entry_prefix(0, 1, b"a"), entry_prefix(0, 1, b"b")
    with store.write() as writer:
        writer.apply(Changes([PUT] * 3, [key, key, other], [b"first", b"second", b""]))
    assert contents(store) == {key: b"second", other: b""}


def test_a_put_without_a_value_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    for name in (b"short", LONG):
        with pytest.raises(ValueError, match="without a value"), store.write() as writer:
            writer.apply(Changes([PUT], [entry_prefix(0, 1, name)], [None]))
    assert contents(store) == {}


@contextmanager
def calls_counted() -> Iterator[Counter[str]]:
    """Yields how often each Python function of the local store is called meanwhile."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, happened: str, _: object) -> None:
        if happened == "call" and os.path.dirname(frame.f_code.co_filename) == EXECUTOR:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("parts", [1, 8])
def test_bases_fill_pages_and_cost_no_work_in_python_for_each_entry(
    tmp_path: Path, parts: int
) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    names = [b"%06d" % number for number in range(20_000)]
    value = b"v" * 100
    with store.write() as writer:
        writer.move_to(Position(1, "an older one", 1))
    with calls_counted() as calls, store.write() as writer:
        for part in range(parts):
            found = {entry_prefix(part, 1, name): value for name in names[: 20_000 // parts]}
            writer.clear(KeyGroupRange(part, part + 1))
            writer.apply(puts(found))
        writer.move_to(Position(2, "run", 1))
    assert 0 < calls.total() < 10 * (parts + 2), calls
    size_bytes = 20_000 * (len(entry_prefix(0, 1, names[0])) + len(value))
    pages = store._env.stat()
    assert pages["entries"] == 20_001
    assert pages["leaf_pages"] * pages["psize"] < 1.2 * size_bytes


def test_clearing_all_that_is_there_keeps_the_position_and_what_readers_see(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    state = {entry_prefix(g, 1, b"%d" % n): b"v" * 5000 for g in range(4) for n in range(100)}
    with store.write() as writer:
        writer.apply(puts(state))
        writer.move_to(Position(7, "run", 1))
    with store.read() as reader:
        with store.write() as writer:
            writer.clear(GROUPS)
        assert dict(reader.range(GROUPS)) == state
    assert contents(store) == {}
    with store.read() as reader:
        assert reader.position() == Position(7, "run", 1)


def test_a_clear_that_is_undone_leaves_everything(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    state = {entry_prefix(g, 1, b"k"): b"v" for g in range(4)}
    with store.write() as writer:
        writer.apply(puts(state))

    def fail_half_way() -> None:
        with store.write() as writer:
            writer.clear(GROUPS)
            writer.apply(puts({entry_prefix(0, 1, b"new"): b""}))
            raise ValueError("the segment cannot be read")

    with pytest.raises(ValueError, match="cannot be read"):
        fail_half_way()
    assert contents(store) == state
