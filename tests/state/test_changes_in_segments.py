"""A batch's changes in segments: wherever these end, they lead to the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.segments.format import decode, encode
from cairn.state.handle import StateHandle
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes, Overlay
from tests.state.test_state_model import SPECS, Model, calls, declare

if TYPE_CHECKING:
    from tests.state.conftest import DictState

TAKE = "take"
work = st.lists(calls | st.just(TAKE), max_size=20)


def rows(changes: Changes) -> list[Any]:
    return list(zip(changes.ops, changes.keys, changes.values, strict=True))


def apply(committed: DictState, changes: Changes) -> None:
    """Applies changes as a restore reads them from a segment."""
    assert changes.keys == sorted(changes.keys)
    data = encode(changes, metadata={"job": "model"})
    for decoded in decode(data):
        committed.apply(decoded)


@settings(deadline=None)
@given(batches=st.lists(work, min_size=1, max_size=4))
def test_segments_in_order_lead_to_the_state_of_the_model_and_of_one_segment(
    make_committed: type[DictState], batches: list[list[Any]]
) -> None:
    in_parts, at_once, models = make_committed(), make_committed(), dict[Any, Model]()
    for batch in batches:
        overlays = Overlay(in_parts), Overlay(at_once)
        handles = [StateHandle(SPECS, overlay) for overlay in overlays]
        states = [declare(handle) for handle in handles]
        parts: list[Changes] = []
        for step in batch:
            if step == TAKE:
                parts.append(overlays[0].take())
                continue
            key, (variable, method, *args) = step
            for handle, state in zip(handles, states, strict=True):
                handle.set_key(*key)
                getattr(state[variable], method)(*args)
            models.setdefault(key, Model()).call(variable, method, *args)
            models[key].check(states[0])
        for part in (*parts, overlays[0].changes()):
            apply(in_parts, part)
        apply(at_once, overlays[1].changes())
        assert in_parts.entries == at_once.entries


def test_what_was_taken_does_not_come_again(committed: DictState) -> None:
    overlay = Overlay(committed)
    overlay.put(b"a", b"1")
    overlay.under(b"m").put(b"1", b"1")
    assert rows(overlay.take()) == [(PUT, b"a", b"1"), (PUT, b"m1", b"1")]
    assert rows(overlay.changes()) == []
    overlay.put(b"a", b"2")
    overlay.delete(b"b")
    overlay.under(b"m").put(b"2", b"2")
    assert rows(overlay.take()) == [(PUT, b"a", b"2"), (DELETE, b"b", None), (PUT, b"m2", b"2")]
    assert rows(overlay.changes()) == []


def test_a_collection_is_deleted_by_its_prefix_once_and_then_entry_by_entry(
    committed: DictState,
) -> None:
    overlay = Overlay(committed)
    entries = overlay.under(b"m")
    entries.put(b"1", b"1")
    overlay.take()
    entries.clear()
    entries.put(b"1", b"1")
    entries.put(b"2", b"2")
    assert rows(overlay.take()) == [
        (DELETE_PREFIX, b"m", None),
        (PUT, b"m1", b"1"),
        (PUT, b"m2", b"2"),
    ]
    entries.clear()
    entries.put(b"3", b"3")
    assert rows(overlay.changes()) == [
        (DELETE, b"m1", None),
        (DELETE, b"m2", None),
        (PUT, b"m3", b"3"),
    ]


@pytest.mark.parametrize("number", [10, 1000])
def test_the_size_is_that_of_what_was_not_taken(committed: DictState, number: int) -> None:
    overlay = Overlay(committed)
    for place in range(number):
        overlay.put(b"%09d" % place, b"x" * 91)
        overlay.under(b"%09d" % place).put(b"suffix", b"x" * 185)
    assert overlay.size_bytes == number * 300
    overlay.take()
    assert overlay.size_bytes == 0
    overlay.put(b"new", b"x" * 97)
    assert overlay.size_bytes == pytest.approx(100, abs=1)
    overlay.under(b"%09d" % 0).clear()
    assert overlay.size_bytes == pytest.approx(100, abs=1)


few_calls = st.one_of(
    st.just((TAKE,)),
    st.tuples(st.just("clear"), st.sampled_from([b"m", b"n"])),
    st.tuples(st.just("delete"), st.sampled_from([b"m", b"n"]), st.sampled_from([b"1", b"2"])),
    st.tuples(
        st.just("put"),
        st.sampled_from([b"m", b"n"]),
        st.sampled_from([b"1", b"2"]),
        st.sampled_from([b"", b"x", b"y"]),
    ),
)


@settings(deadline=None, max_examples=300)
@given(before=st.sets(st.sampled_from([b"m1", b"m2", b"n1"])), calls=st.lists(few_calls))
def test_few_entries_changed_often_lead_to_the_same_state_in_segments(
    make_committed: type[DictState], before: set[bytes], calls: list[Any]
) -> None:
    committed, expected = make_committed(), dict.fromkeys(before, b"old")
    committed.entries = dict(expected)
    overlay, parts = Overlay(committed), []
    for call, *args in calls:
        if call == TAKE:
            parts.append(overlay.take())
            continue
        prefix, *rest = args
        getattr(overlay.under(prefix), call)(*rest)
        if call == "clear":
            expected = {k: v for k, v in expected.items() if not k.startswith(prefix)}
        elif call == "delete":
            expected.pop(prefix + rest[0], None)
        else:
            expected[prefix + rest[0]] = rest[1]
    for part in (*parts, overlay.changes()):
        committed.apply(part)
    assert committed.entries == expected
