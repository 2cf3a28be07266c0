"""Operator lists against plain lists: what calls do, and where elements are after restarts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import BadInputError
from cairn.segments.operator_segment import decode, encode
from cairn.state.handle import DeclaringHandle, StateHandle, VariableSpec
from cairn.state.operator_lists import Lists, OperatorListState, redistribute
from cairn.state.view import NoState, Overlay

NUMBER = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]}
SPECS = {
    "split": VariableSpec(name="split", kind="operator_list", value_schema=NUMBER, state_id=1),
    "union": VariableSpec(name="union", kind="operator_union", value_schema=NUMBER, state_id=2),
}
IDS = {name: spec.state_id for name, spec in SPECS.items()}
MAX_PARALLELISM = 6

numbers = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1))
calls = st.tuples(
    st.integers(0, MAX_PARALLELISM - 1),
    st.sampled_from(["split", "union"]),
    st.one_of(
        st.tuples(st.just("appendValue"), numbers),
        st.tuples(st.sampled_from(["put", "appendList"]), st.lists(numbers, max_size=4)),
        st.tuples(st.just("clear")),
    ),
)
batches = st.lists(calls, max_size=8)
runs = st.lists(
    st.tuples(st.integers(1, MAX_PARALLELISM), st.lists(batches, min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def declared(lists: Lists) -> dict[str, OperatorListState]:
    handle = StateHandle(SPECS, Overlay(NoState()), lists=lists)
    return {
        "split": handle.getOperatorListState("split", "n long"),
        "union": handle.getUnionListState("union", "n long"),
    }


def call(model: list[Any], method: str, *args: Any) -> None:
    if method in ("put", "clear"):
        model.clear()
    if method == "appendValue":
        model.append(args[0])
    elif args:
        model.extend(args[0])


Model = dict[int, dict[str, list[Any]]]
"""The elements of each subtask's lists by name."""


def run_batch(checkpoint: dict[int, bytes], model: Model, batch: list[Any]) -> dict[int, bytes]:
    """Does a batch's calls to a subtask's lists and the model's; returns the next checkpoint."""
    after: dict[int, bytes] = {}
    for subtask, plain in model.items():
        lists = decode(checkpoint[subtask])
        variables = declared(lists)
        for number, name, (method, *args) in batch:
            if number % len(model) == subtask:
                getattr(variables[name], method)(*args)
                call(plain[name], method, *args)
        for name, variable in variables.items():
            assert [*variable.get()] == plain[name]
            assert variable.exists() == bool(plain[name])
        after[subtask] = encode(lists, metadata={"job": "model"})
    return after


@settings(deadline=None)
@given(runs)
def test_lists_equal_the_model_in_every_batch_of_every_run_at_any_parallelism(
    runs: list[tuple[int, list[Any]]],
) -> None:
    checkpoint: dict[int, bytes] = {}
    model: Model = {}
    for parallelism, run in runs:
        before = {subtask: decode(data) for subtask, data in checkpoint.items()}
        together = {
            name: [e for subtask in sorted(model) for e in model[subtask][name]] for name in SPECS
        }
        started: Model = {}
        for subtask in range(parallelism):
            lists = redistribute(
                before,
                len(checkpoint),
                subtask=subtask,
                parallelism=parallelism,
                split=[IDS["split"]],
                union=[IDS["union"]],
            )
            checkpoint[subtask] = encode(lists, metadata={})
            variables = declared(lists)
            started[subtask] = {name: [*variables[name].get()] for name in SPECS}
            assert started[subtask]["union"] == together["union"]
        checkpoint = {subtask: checkpoint[subtask] for subtask in range(parallelism)}
        assert [e for s in range(parallelism) for e in started[s]["split"]] == together["split"]
        if len(model) == parallelism:
            assert {s: started[s]["split"] for s in started} == {
                s: model[s]["split"] for s in model
            }
        model = started
        for batch in run:
            checkpoint = run_batch(checkpoint, model, batch)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(1, 12), min_size=1))
def test_split_elements_are_spread_evenly_and_none_is_lost_or_doubled(
    elements: list[int], parallelisms: list[int]
) -> None:
    before: dict[int, Lists] = {0: {1: [b"%d" % e for e in elements]}}
    for parallelism in [*parallelisms, 1]:
        if parallelism == len(before):
            continue
        before = {
            subtask: redistribute(
                before,
                len(before),
                subtask=subtask,
                parallelism=parallelism,
                split=[1],
                union=[],
            )
            for subtask in range(parallelism)
        }
        sizes = [len(lists.get(1, [])) for lists in before.values()]
        assert max(sizes) - min(sizes) <= 1
        found = Counter(e for lists in before.values() for e in lists.get(1, []))
        assert found == Counter(b"%d" % e for e in elements)
    assert before[0].get(1, []) == [b"%d" % e for e in elements]


def test_lists_that_are_not_kept_are_left_out() -> None:
    before: dict[int, Lists] = {0: {1: [b"a"], 2: [b"b"], 3: [b"c"]}}
    left = redistribute(before, 1, subtask=0, parallelism=1, split=[1], union=[3])
    assert left == {1: [b"a"], 3: [b"c"]}


def test_a_list_that_is_iterated_may_be_changed_meanwhile() -> None:
    lists: Lists = {}
    split = declared(lists)["split"]
    split.put([(1,), (2,)])
    for (n,) in split.get():
        split.appendValue((n + 10,))
    assert [*split.get()] == [(1,), (2,), (11,), (12,)]


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_an_element_that_does_not_fit_changes_nothing(method: str) -> None:
    split = declared({1: []})["split"]
    split.appendValue((1,))
    with pytest.raises(BadInputError, match="state variable split"):
        getattr(split, method)([(2,), ("three",)])
    with pytest.raises(BadInputError, match="state variable split"):
        split.appendValue(("three",))
    assert [*split.get()] == [(1,)]


def test_when_the_plan_is_built_lists_are_declared_and_empty_whatever_init_does_to_them() -> None:
    handle = DeclaringHandle(lambda schema: NUMBER)
    one, two = handle.getOperatorListState("one", "n"), handle.getUnionListState("two", "n")
    one.appendValue((1,))
    assert [*two.get()] == []
    found = [(d.name, d.kind, d.value_schema, d.ttl_ms) for d in handle.declarations]
    assert found == [
        ("one", "operator_list", NUMBER, None),
        ("two", "operator_union", NUMBER, None),
    ]
    with pytest.raises(BadInputError, match="one already exists"):
        handle.getListState("one", "n")


def test_a_list_that_is_declared_late_or_otherwise_than_planned_is_refused() -> None:
    handle = StateHandle(SPECS, Overlay(NoState()))
    with pytest.raises(BadInputError, match="has a operator_list of that name"):
        handle.getUnionListState("split", "n long")
    handle.set_key(0, b"k")
    with pytest.raises(BadInputError, match="declare it in init"):
        handle.getOperatorListState("split", "n long")
    with pytest.raises(BadInputError, match="deleteIfExists names the state variable split"):
        handle.deleteIfExists("split")
