from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

from cairn.errors import BadInputError
from cairn.state.handle import DeclaringHandle, StateDeclaration, StateHandle, VariableSpec
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

NUMBER = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]}
SPECS = {
    "v": VariableSpec(name="v", kind="value", value_schema=NUMBER, state_id=1),
    "l": VariableSpec(name="l", kind="list", value_schema=NUMBER, state_id=2),
    "m": VariableSpec(
        name="m", kind="map", value_schema=NUMBER, user_key_schema=NUMBER, state_id=3
    ),
}
ONE, OTHER = (5, b"\x91\x01"), (5, b"\x91\x02")


@pytest.fixture
def handle(committed: DictState) -> StateHandle:
    return StateHandle(SPECS, Overlay(committed))


def test_value_state_as_in_spark(handle: StateHandle) -> None:
    value = handle.getValueState("v", "n long")
    handle.set_key(*ONE)
    assert (value.get(), value.exists()) == (None, False)
    value.update((None,))
    assert (value.get(), value.exists()) == ((None,), True)
    value.update(Row(n=3))
    assert value.get() == (3,)
    value.clear()
    value.clear()
    assert (value.get(), value.exists()) == (None, False)
    with pytest.raises(TypeError):
        value.update(None)  # type: ignore[arg-type]


def test_list_state_as_in_spark(handle: StateHandle) -> None:
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    assert (list(numbers.get()), numbers.exists()) == ([], False)
    numbers.appendValue((3,))
    numbers.appendList([(1,), (2,)])
    assert (list(numbers.get()), numbers.exists()) == ([(3,), (1,), (2,)], True)
    seen = []
    for element in numbers.get():
        seen.append(element)
        numbers.appendValue((9,))
    assert seen == [(3,), (1,), (2,)]
    numbers.put([(7,)])
    assert list(numbers.get()) == [(7,)]
    numbers.clear()
    assert not numbers.exists()


def test_empty_put_clears_and_empty_append_changes_nothing(handle: StateHandle) -> None:
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    numbers.put([(1,)])
    numbers.appendList([])
    assert list(numbers.get()) == [(1,)]
    numbers.put([])
    assert not numbers.exists()


def test_list_can_be_put_from_its_own_iterator(handle: StateHandle) -> None:
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    numbers.put([(1,), (2,), (3,)])
    numbers.put(element for element in numbers.get() if element != (2,))
    assert list(numbers.get()) == [(1,), (3,)]


def test_refused_element_leaves_the_list_as_it_was(handle: StateHandle) -> None:
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    numbers.put([(1,)])
    for call in (numbers.put, numbers.appendList):
        with pytest.raises(BadInputError, match="state variable l, field n"):
            call([(2,), ("x",)])
    assert list(numbers.get()) == [(1,)]


def test_appending_to_a_committed_list_looks_up_its_end_once_and_reads_no_element(
    committed: DictState,
) -> None:
    overlay = Overlay(committed)
    handle = StateHandle(SPECS, overlay)
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    numbers.put([(1,), (2,)])
    committed.apply(overlay.changes())
    handle = StateHandle(SPECS, Overlay(committed))
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    committed.reads.clear()
    numbers.appendValue((3,))
    numbers.appendList([(4,), (5,)])
    assert committed.reads == ["last"]
    assert list(numbers.get()) == [(1,), (2,), (3,), (4,), (5,)]


def test_map_state_as_in_spark(handle: StateHandle) -> None:
    numbers = handle.getMapState("m", "n long", "n long")
    handle.set_key(*ONE)
    assert (numbers.getValue((1,)), numbers.exists()) == (None, False)
    numbers.removeKey((1,))
    for key in (300, -300, 0, 5, -1):
        numbers.updateValue((key,), (key * 2,))
    assert numbers.getValue((300,)) == (600,)
    assert numbers.containsKey((0,))
    assert not numbers.containsKey((1,))
    assert dict(numbers.iterator()) == {(k,): (k * 2,) for k in (300, -300, 0, 5, -1)}
    assert list(numbers.iterator()) == list(zip(numbers.keys(), numbers.values(), strict=True))
    seen = []
    keys = numbers.keys()
    for key_tuple in keys:
        seen.append(key_tuple)
        numbers.removeKey(key_tuple)
    assert len(seen) == 5
    assert not numbers.exists()
    numbers.updateValue((1,), (None,))
    assert (numbers.exists(), numbers.containsKey((1,))) == (True, True)
    numbers.clear()
    assert not numbers.exists()


def test_text_is_a_user_key_of_one_column(committed: DictState) -> None:
    word = {"type": "struct", "fields": [{"name": "w", "type": "string", "nullable": True}]}
    spec = VariableSpec(name="m", kind="map", value_schema=NUMBER, user_key_schema=word, state_id=3)
    handle = StateHandle({"m": spec}, Overlay(committed))
    words = handle.getMapState("m", "w string", "n long")
    handle.set_key(*ONE)
    words.updateValue("long", (1,))  # type: ignore[arg-type]
    assert words.getValue(("long",)) == (1,)
    assert list(words.keys()) == [("long",)]
    other = StateHandle(SPECS, Overlay(committed))
    numbers = other.getMapState("m", "n long", "n long")
    other.set_key(*ONE)
    with pytest.raises(BadInputError, match="expected long, found str 'long'"):
        numbers.getValue("long")  # type: ignore[arg-type]


def test_map_value_comes_with_field_names_from_get_value_only(committed: DictState) -> None:
    handle = StateHandle(SPECS, Overlay(committed), row_factory=Row)
    numbers = handle.getMapState("m", "n long", "n long")
    handle.set_key(*ONE)
    numbers.updateValue((1,), (2,))
    found: Any = numbers.getValue((1,))
    assert found.n == 2
    assert [type(value) for value in numbers.values()] == [tuple]


def test_each_key_has_its_own_state(handle: StateHandle) -> None:
    value = handle.getValueState("v", "n long")
    numbers = handle.getListState("l", "n long")
    by_number = handle.getMapState("m", "n long", "n long")
    for key, content in ((ONE, 1), (OTHER, 2), (ONE, 1)):
        handle.set_key(*key)
        value.update((content,))
        numbers.appendValue((content,))
        by_number.updateValue((content,), (content,))
    handle.set_key(*OTHER)
    assert value.get() == (2,)
    assert list(numbers.get()) == [(2,)]
    assert list(by_number.keys()) == [(2,)]
    handle.set_key(*ONE)
    assert list(numbers.get()) == [(1,), (1,)]
    numbers.clear()
    handle.set_key(*OTHER)
    assert list(numbers.get()) == [(2,)]


def test_iterator_keeps_to_the_key_it_was_made_under(handle: StateHandle) -> None:
    numbers = handle.getListState("l", "n long")
    handle.set_key(*ONE)
    numbers.put([(1,), (2,)])
    elements = numbers.get()
    handle.set_key(*OTHER)
    assert list(elements) == [(1,), (2,)]


@pytest.mark.parametrize(
    "use",
    [
        lambda handle: handle.getValueState("v", "n long").get(),
        lambda handle: handle.getValueState("v", "n long").update((1,)),
        lambda handle: handle.getValueState("v", "n long").clear(),
        lambda handle: handle.getListState("l", "n long").appendValue((1,)),
        lambda handle: handle.getMapState("m", "n long", "n long").exists(),
    ],
)
@pytest.mark.parametrize("declaring", [True, False])
def test_state_cannot_be_used_in_init(
    committed: DictState, use: Callable[[Any], Any], declaring: bool
) -> None:
    handle = (
        DeclaringHandle(lambda schema: NUMBER)
        if declaring
        else StateHandle(SPECS, Overlay(committed))
    )
    with pytest.raises(BadInputError, match="only while a key's rows are handled"):
        use(handle)


def test_same_name_twice_is_refused(handle: StateHandle) -> None:
    handle.getValueState("v", "n long")
    with pytest.raises(BadInputError, match="State variable with name v already exists"):
        handle.getValueState("v", "n long")
    declaring = DeclaringHandle(lambda schema: NUMBER)
    declaring.getValueState("v", "n long")
    with pytest.raises(BadInputError, match="State variable with name v already exists"):
        declaring.getListState("v", "n long")


def test_declaring_after_init_is_refused(handle: StateHandle) -> None:
    handle.set_key(*ONE)
    with pytest.raises(BadInputError, match="declare it in init"):
        handle.getValueState("v", "n long")


@pytest.mark.parametrize(("name", "planned"), [("new", "no such variable"), ("l", "a list of")])
def test_declaring_what_is_not_in_the_plan_is_refused(
    handle: StateHandle, name: str, planned: str
) -> None:
    with pytest.raises(BadInputError, match=f"value state variable {name}.* plan has {planned}"):
        handle.getValueState(name, "n long")


def test_delete_if_exists_takes_unknown_names_only(handle: StateHandle) -> None:
    handle.deleteIfExists("unknown")
    with pytest.raises(BadInputError, match="deleteIfExists names the state variable v"):
        handle.deleteIfExists("v")
    declaring = DeclaringHandle(lambda schema: NUMBER)
    declaring.deleteIfExists("unknown")
    declaring.deleteIfExists("v")
    with pytest.raises(BadInputError, match="deleteIfExists names the state variable v"):
        declaring.getValueState("v", "n long")


def test_declarations_are_recorded_in_order_with_resolved_schemas() -> None:
    handle = DeclaringHandle(
        lambda schema: NUMBER | {"fields": [{"name": schema, "type": "long", "nullable": True}]}
    )
    handle.getMapState(stateName="m", userKeySchema="k", valueSchema="v")
    handle.getValueState(stateName="v", schema="n")
    names = [(d.name, d.kind, d.value_schema["fields"][0]["name"]) for d in handle.declarations]
    assert names == [("m", "map", "v"), ("v", "value", "n")]
    user_key_schema = handle.declarations[0].user_key_schema
    assert user_key_schema is not None
    assert user_key_schema["fields"][0]["name"] == "k"
    assert handle.declarations[1].user_key_schema is None


def test_schema_that_is_no_struct_or_cannot_be_held_is_refused_at_plan_time() -> None:
    with pytest.raises(BadInputError, match="it has to be a StructType or DDL text"):
        DeclaringHandle(lambda schema: {"type": "array"}).getValueState("v", "array<int>")
    variant = {"type": "struct", "fields": [{"name": "n", "type": "variant", "nullable": True}]}
    with pytest.raises(BadInputError, match="state variable v, field n: state cannot hold variant"):
        DeclaringHandle(lambda schema: variant).getValueState("v", "n variant")


def test_spec_of_a_declaration_adds_its_id_only() -> None:
    declaration = StateDeclaration(name="v", kind="value", value_schema=NUMBER)
    assert VariableSpec.of(declaration, 1) == SPECS["v"]
