from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cairn.keygroups import KeyGroupRange
from cairn.state.entries import (
    EntryKey,
    entry_prefix,
    key_group_bounds,
    list_sequence,
    list_suffix,
    split,
)
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState


def test_entry_key_splits_into_the_parts_it_was_made_of() -> None:
    prefix = entry_prefix(300, 7, b"key")
    assert split(prefix + b"suffix") == EntryKey(300, 7, b"key", b"suffix")
    assert split(prefix) == EntryKey(300, 7, b"key", b"")
    assert list_sequence(list_suffix(2**40)) == 2**40


@pytest.mark.parametrize("size_bytes", [0, 7, 10])
def test_truncated_entry_key_is_refused(size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"{size_bytes} bytes"):
        split(entry_prefix(1, 2, b"key")[:size_bytes])


def test_prefixes_of_two_keys_never_cover_each_other() -> None:
    short, long = entry_prefix(1, 1, b"a"), entry_prefix(1, 1, b"ab")
    assert not long.startswith(short)


def test_key_group_bounds_hold_exactly_the_groups_of_the_range() -> None:
    lower, upper = key_group_bounds(KeyGroupRange(255, 257))
    inside = [g for g in range(600) if lower <= entry_prefix(g, 65535, b"\xff" * 9) < upper]
    assert inside == [255, 256]


def test_overlay_hides_the_committed_entry_and_never_writes_to_it(committed: DictState) -> None:
    committed.entries = {b"a": b"1", b"b": b"2"}
    overlay = Overlay(committed)
    overlay.put(b"a", b"new")
    overlay.delete(b"b")
    assert (overlay.get(b"a"), overlay.get(b"b"), overlay.get(b"c")) == (b"new", None, None)
    assert committed.entries == {b"a": b"1", b"b": b"2"}


def test_scan_merges_in_order_of_suffix(committed: DictState) -> None:
    committed.entries = {b"p1": b"old", b"p3": b"old", b"p5": b"old", b"q1": b"old"}
    entries = Overlay(committed).under(b"p")
    entries.put(b"0", b"new")
    entries.put(b"3", b"new")
    entries.put(b"9", b"new")
    entries.delete(b"5")
    entries.delete(b"6")
    assert list(entries.scan()) == [(b"0", b"new"), (b"1", b"old"), (b"3", b"new"), (b"9", b"new")]


def test_scan_shows_the_state_as_of_its_start(committed: DictState) -> None:
    committed.entries = {b"p1": b"old", b"p2": b"old"}
    entries = Overlay(committed).under(b"p")
    scan = entries.scan()
    entries.put(b"3", b"new")
    first = next(scan)
    entries.clear()
    assert [first, *scan] == [(b"1", b"old"), (b"2", b"old")]


def test_last_is_the_greatest_suffix_that_is_there(committed: DictState) -> None:
    committed.entries = {b"p1": b"", b"p2": b"", b"q9": b""}
    entries = Overlay(committed).under(b"p")
    assert entries.last() == b"2"
    entries.delete(b"2")
    assert entries.last() == b"1"
    entries.put(b"5", b"")
    assert entries.last() == b"5"
    entries.clear()
    assert entries.last() is None


def test_a_cleared_collection_has_nothing_of_what_is_committed(committed: DictState) -> None:
    committed.entries = {b"p1": b"old", b"q1": b"old"}
    overlay = Overlay(committed)
    entries = overlay.under(b"p")
    entries.clear()
    assert (entries.get(b"1"), list(entries.scan())) == (None, [])
    entries.put(b"2", b"new")
    assert (entries.get(b"2"), entries.get(b"1")) == (b"new", None)
    assert overlay.under(b"q").get(b"1") == b"old"


def test_changes_are_sorted_with_a_prefix_delete_before_what_is_put_under_it(
    committed: DictState,
) -> None:
    committed.entries = {b"m1": b"", b"m2": b""}
    overlay = Overlay(committed)
    overlay.put(b"z", b"1")
    overlay.delete(b"a")
    entries = overlay.under(b"m")
    entries.put(b"7", b"gone")
    entries.clear()
    entries.put(b"2", b"2")
    entries.put(b"3", b"3")
    entries.delete(b"3")
    overlay.under(b"n").put(b"1", b"4")
    overlay.under(b"untouched")
    changes = overlay.changes()
    assert list(zip(changes.ops, changes.keys, changes.values, strict=True)) == [
        (DELETE, b"a", None),
        (DELETE_PREFIX, b"m", None),
        (PUT, b"m2", b"2"),
        (PUT, b"n1", b"4"),
        (PUT, b"z", b"1"),
    ]


def test_size_grows_with_what_is_changed(committed: DictState) -> None:
    overlay = Overlay(committed)
    assert overlay.size_bytes == 0
    overlay.put(b"key", b"value")
    overlay.under(b"prefix").put(b"1", b"value")
    assert overlay.size_bytes == 8 + 12
