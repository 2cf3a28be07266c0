"""Random work of a processor over several batches, against plain dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.segments.format import decode, encode
from cairn.state.handle import StateHandle, VariableSpec
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

NUMBER = {"fields": [{"name": "n", "type": "long", "nullable": True}]}
WORD = {"fields": [{"name": "w", "type": "string", "nullable": True}]}
SPECS = {
    name: VariableSpec(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        value_schema=NUMBER,
        user_key_schema=WORD if kind == "map" else None,
        state_id=state_id,
    )
    for state_id, (name, kind) in enumerate(
        [("value", "value"), ("list", "list"), ("map", "map"), ("other list", "list")]
    )
}

numbers = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1))
words = st.tuples(st.sampled_from(["", "a", "b", "ä", "a longer word"]))
value_calls = st.one_of(
    st.tuples(st.just("value"), st.just("update"), numbers),
    st.tuples(st.just("value"), st.just("clear")),
)
list_calls = st.one_of(
    st.tuples(st.sampled_from(["list", "other list"]), st.just("appendValue"), numbers),
    st.tuples(
        st.sampled_from(["list", "other list"]),
        st.sampled_from(["put", "appendList"]),
        st.lists(numbers, max_size=3),
    ),
    st.tuples(st.sampled_from(["list", "other list"]), st.just("clear")),
)
map_calls = st.one_of(
    st.tuples(st.just("map"), st.just("updateValue"), words, numbers),
    st.tuples(st.just("map"), st.just("removeKey"), words),
    st.tuples(st.just("map"), st.just("clear")),
)
keys = st.sampled_from([(0, b"\x91\x01"), (0, b"\x91\x01\x00"), (1, b"\x91\x01"), (127, b"\x91k")])
calls = st.tuples(keys, value_calls | list_calls | map_calls)


class Model:
    """The state of one key in plain values."""

    def __init__(self) -> None:
        self.value: Any = None
        self.lists: dict[str, list[Any]] = {"list": [], "other list": []}
        self.map: dict[Any, Any] = {}

    def call(self, variable: str, method: str, *args: Any) -> None:
        if variable == "value":
            self.value = args[0] if method == "update" else None
        elif variable == "map":
            if method == "updateValue":
                self.map[args[0]] = args[1]
            elif method == "removeKey":
                self.map.pop(args[0], None)
            else:
                self.map = {}
        else:
            before = self.lists[variable] if method.startswith("append") else []
            added = [args[0]] if method == "appendValue" else list(*args)
            self.lists[variable] = before + added

    def check(self, state: dict[str, Any]) -> None:
        assert state["value"].get() == self.value
        assert state["value"].exists() == (self.value is not None)
        for name, expected in self.lists.items():
            assert list(state[name].get()) == expected
            assert state[name].exists() == bool(expected)
        assert dict(state["map"].iterator()) == self.map
        assert state["map"].exists() == bool(self.map)
        for word in [("",), ("a",), ("b",), ("not there",)]:
            assert state["map"].getValue(word) == self.map.get(word)
            assert state["map"].containsKey(word) == (word in self.map)


def declare(handle: StateHandle) -> dict[str, Any]:
    return {
        "value": handle.getValueState("value", "n long"),
        "list": handle.getListState("list", "n long"),
        "map": handle.getMapState("map", "w string", "n long"),
        "other list": handle.getListState("other list", "n long"),
    }


@settings(deadline=None)
@given(batches=st.lists(st.lists(calls, max_size=12), min_size=1, max_size=4))
def test_state_of_every_key_equals_the_model_in_and_after_every_batch(
    make_committed: type[DictState], batches: list[list[Any]]
) -> None:
    committed, models = make_committed(), dict[Any, Model]()
    for batch in batches:
        overlay = Overlay(committed)
        handle = StateHandle(SPECS, overlay)
        state = declare(handle)
        for key, (variable, method, *args) in batch:
            handle.set_key(*key)
            getattr(state[variable], method)(*args)
            models.setdefault(key, Model()).call(variable, method, *args)
            models[key].check(state)
        changes = overlay.changes()
        assert changes.keys == sorted(changes.keys)
        data = encode(changes, metadata={"job": "model"})
        for decoded in decode(data):
            committed.apply(decoded)
        handle = StateHandle(SPECS, Overlay(committed))
        state = declare(handle)
        for key, model in models.items():
            handle.set_key(*key)
            model.check(state)
