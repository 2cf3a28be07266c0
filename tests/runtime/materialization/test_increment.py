"""An increment, checked against the changes that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.local_store import LocalReader, LocalStore
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
    found = [net_changes(reader, touched) for _, touched in sorted(touched_by(parts).items())]
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
