"""An increment, checked against the changes that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cairn.errors import DamagedStateError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_store import LocalStore
from cairn.runtime.materialization.increment import net_changes, touched_by
from cairn.state.entries import entry_prefix, state_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes

GROUPS = KeyGroupRange(0, 3)
LONG = b"long" * 200
"""Longer than LMDB's keys."""
KEY = entry_prefix(0, 1, b"a")

groups = st.integers(GROUPS.start, GROUPS.end - 1)
names = st.sampled_from([b"", b"a", b"ab", LONG, LONG + b"b"])
collections = st.builds(entry_prefix, groups, st.sampled_from([1, 2]), names)
suffixes = st.sampled_from([b"", b"1", b"12", LONG])
keys = st.builds(lambda prefix, suffix: prefix + suffix, collections, suffixes)
changes = st.one_of(
    st.tuples(st.just(PUT), keys, st.binary(max_size=3)),
    st.tuples(st.just(DELETE), keys, st.none()),
    st.tuples(st.just(DELETE_PREFIX), collections, st.none()),
    st.tuples(st.just(DELETE_PREFIX), st.builds(state_prefix, groups, st.just(1)), st.none()),
)
batches = st.lists(st.lists(changes, max_size=6), min_size=1, max_size=6)


def packed(rows: Iterable[tuple[int, bytes, bytes | None]]) -> Changes:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return Changes(*map(list, columns))


def apply(store: LocalStore, rows: Changes) -> dict[bytes, bytes]:
    with store.write() as writer:
        writer.apply(rows)
    with store.read() as reader:
        return dict(reader.range(GROUPS))


def increment(reader: LocalReader, parts: list[Changes]) -> Changes:
    touched = touched_by(enumerate(parts, start=1), {})
    found = [net_changes(reader, one) for _, one in sorted(touched.items())]
    return packed(row for one in found for row in zip(one.ops, one.keys, one.values, strict=True))


@settings(max_examples=150, deadline=None)
@given(made=batches, split=st.integers(0, 6), overlap=st.integers(0, 6))
@example(made=[[(PUT, KEY, b"1")], [(DELETE, KEY, None)]], split=1, overlap=0)
def test_an_increment_brings_every_state_since_its_base_to_that_of_its_snapshot(
    made: list[list[tuple[int, bytes, bytes | None]]], split: int, overlap: int
) -> None:
    parts = [packed(rows) for rows in made]
    since, until = min(split, len(parts)), min(split + overlap, len(parts))
    with TemporaryDirectory() as directory:
        newest, older = (LocalStore(Path(directory) / name / "state") for name in ("new", "old"))
        for part in parts:
            expected = apply(newest, part)
        for part in parts[:until]:  # further than the base, as local state may be
            apply(older, part)
        with newest.read() as reader:
            found = increment(reader, parts[since:])
        assert apply(older, found) == expected
        assert len(found) <= sum(map(len, parts[since:])) + len(expected)


UNDER = entry_prefix(0, 2, b"map")
OTHER = entry_prefix(0, 1, b"b")
CHANGED = packed(
    [
        (PUT, KEY, b"1"),
        (DELETE, OTHER, None),
        (DELETE_PREFIX, UNDER, None),
        (PUT, UNDER + b"1", b"first"),
        (PUT, UNDER + b"2", b"second"),
    ]
)


@pytest.mark.parametrize(
    "damage",
    [
        (PUT, KEY, b"0"),
        (DELETE, KEY, None),
        (PUT, OTHER, b""),
        (PUT, UNDER + b"1", b"another"),
        (DELETE, UNDER + b"1", None),
        (PUT, UNDER + b"3", b"third"),
    ],
    ids=["value", "lost", "not deleted", "under a prefix", "lost there", "more there"],
)
def test_a_value_that_is_not_that_of_the_changes_is_noticed(
    tmp_path: Path, damage: tuple[int, bytes, bytes | None]
) -> None:
    store = LocalStore(tmp_path / "state")
    apply(store, CHANGED)
    touched = touched_by([(1, CHANGED)], {})[0]
    with store.read() as reader:
        assert len(net_changes(reader, touched)) == len(CHANGED)
    apply(store, packed([damage]))
    with pytest.raises(DamagedStateError, match="not what was written"), store.read() as reader:
        net_changes(reader, touched)


def test_changes_that_a_base_has_replaced_are_not_compared(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "state")
    apply(store, CHANGED)
    newer = packed([(PUT, KEY, b"2"), (PUT, UNDER + b"3", b"third"), (DELETE, UNDER + b"1", None)])
    apply(store, newer)
    # The newer ones are in the base, and gone: some other key group still needed the old.
    touched = touched_by([(3, CHANGED)], {0: 5})[0]
    with store.read() as reader:
        found = net_changes(reader, touched)
    assert dict(zip(found.keys, found.values, strict=True))[KEY] == b"2"
