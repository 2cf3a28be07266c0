from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from cairn.errors import BadInputError, CorruptSegmentError
from cairn.state.codec import TupleCodec
from cairn.state.evolution import ADDED, merge
from cairn.state.handle import StateDeclaration, StateHandle, VariableSpec
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

WIDENINGS = {
    "byte": ["short", "integer", "long"],
    "short": ["integer", "long"],
    "integer": ["long"],
    "float": ["double"],
    "decimal(4,1)": ["decimal(5,1)", "decimal(38,1)"],
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(4,1)": st.decimals("-999.9", "999.9", places=1),
    "decimal(5,1)": st.decimals("-9999.9", "9999.9", places=1),
    "decimal(38,1)": st.decimals(-(10**30), 10**30, places=1),
    "string": st.text(max_size=3),
    "date": st.dates(),
}
NAMES = ["a", "b", "c", "d", "e", "f"]


def named(name: str, data_type: Any, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": {}}


def struct(**types: Any) -> dict[str, Any]:
    """Returns a struct of fields by name; a type may end in "not null"."""
    fields = []
    for name, data_type in types.items():
        required = isinstance(data_type, str) and data_type.endswith(" not null")
        kept = data_type.removesuffix(" not null") if required else data_type
        fields.append(named(name, kept, nullable=not required))
    return {"type": "struct", "fields": fields}


def array(of: Any, *, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": contains_null}


def mapping(key: Any, of: Any, *, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": of, "valueContainsNull": contains_null}


def structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
        lambda types: {
            "type": "struct",
            "fields": [
                named(NAMES[i], data_type, nullable=nullable)
                for i, (data_type, nullable) in enumerate(types)
            ],
        }
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        structs(inner)
        | st.builds(array, inner, contains_null=st.booleans())
        | st.builds(mapping, st.just("string"), inner, contains_null=st.booleans())
    )


types = st.recursive(st.sampled_from(list(VALUES)), nested, max_leaves=4)


def value_of(data_type: Any) -> st.SearchStrategy[Any]:
    if isinstance(data_type, str):
        return VALUES[data_type]
    if data_type["type"] == "struct":
        return st.tuples(
            *(
                value_of(field["type"]) | (st.none() if field["nullable"] else st.nothing())
                for field in data_type["fields"]
            )
        )
    of, nullable = ("elementType", "containsNull")
    if data_type["type"] == "map":
        of, nullable = ("valueType", "valueContainsNull")
    inner = value_of(data_type[of]) | (st.none() if data_type[nullable] else st.nothing())
    if data_type["type"] == "map":
        return st.dictionaries(st.text(max_size=2), inner, max_size=2)
    return st.lists(inner, max_size=2)


@st.composite
def evolved(draw: st.DrawFn, data_type: Any) -> Any:
    """Returns what a type may become in one step, at every level of nesting."""
    if isinstance(data_type, str):
        return draw(st.sampled_from([data_type, *WIDENINGS.get(data_type, [])]))
    if data_type["type"] != "struct":
        of, null = ("elementType", "containsNull")
        if data_type["type"] == "map":
            of, null = ("valueType", "valueContainsNull")
        looser = data_type[null] or draw(st.booleans())
        return {**data_type, of: draw(evolved(data_type[of])), null: looser}
    fields = [
        {
            **field,
            "type": draw(evolved(field["type"])),
            "nullable": field["nullable"] or draw(st.booleans()),
        }
        for field in data_type["fields"]
    ]
    free = [name for name in NAMES if name not in {field["name"] for field in fields}]
    for name in free[: draw(st.integers(0, 2))]:
        fields.append(named(name, draw(types), nullable=True))
    return {"type": "struct", "fields": draw(st.permutations(fields))}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, tuple[Any, ...]]]:
    """Returns schemas, each made from the one before, with a value written under each."""
    found = [draw(structs(types))]
    for _ in range(draw(st.integers(1, 3))):
        found.append(draw(evolved(found[-1])))
    return [(one, draw(value_of(one))) for one in found]


def as_under(value: Any, before: Any, after: Any) -> Any:
    """Returns what a value of one schema is under a later one."""
    if value is None or isinstance(after, str):
        return value
    if after["type"] == "array":
        return [as_under(v, before["elementType"], after["elementType"]) for v in value]
    if after["type"] == "map":
        return {k: as_under(v, before["valueType"], after["valueType"]) for k, v in value.items()}
    kept = {
        field["name"]: (item, field) for item, field in zip(value, before["fields"], strict=True)
    }
    return tuple(
        as_under(kept[field["name"]][0], kept[field["name"]][1]["type"], field["type"])
        if field["name"] in kept
        else None
        for field in after["fields"]
    )


@settings(deadline=None, max_examples=100)
@given(history=histories())
def test_values_of_every_schema_are_read_right_under_every_later_one(
    history: list[tuple[Any, tuple[Any, ...]]],
) -> None:
    layout, written = history[0][0], list[tuple[Any, Any, bytes]]()
    for wanted, value in history:
        layout = merge(layout, wanted, name="x")
        assert merge(layout, wanted, name="x") == layout
        coder = TupleCodec(wanted, name="state variable x", layout=layout)
        for schema_before, value_before, data in written:
            expected = as_under(value_before, schema_before, wanted)
            assert coder.decode(data) == expected
            assert coder.decode(coder.encode(expected)) == expected
            shown = TupleCodec(layout, name="state variable x").to_json(data)
            assert coder.to_json(data) == shown
        data = coder.encode(value)
        assert coder.decode(data) == value
        written.append((wanted, value, data))


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (struct(a="integer", b="float"), struct(a="long", b="double")),
        (struct(a="long not null"), struct(a="long")),
        (struct(a=array("integer", contains_null=False)), struct(a=array("long"))),
        (struct(a="decimal(4,1)"), struct(a="decimal(5,1)")),
    ],
)
def test_layout_is_the_schema_while_fields_keep_their_places(
    known: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert merge(known, wanted, name="x") == wanted


def test_new_fields_come_last_in_the_layout_and_are_marked_for_ever() -> None:
    known = struct(a="integer", b="string")
    layout = merge(known, struct(c="date", b="string", a="long"), name="x")
    again = merge(layout, struct(d="integer", a="long", b="string", c="date"), name="x")
    assert [field["name"] for field in again["fields"]] == ["a", "b", "c", "d"]
    assert [field.get(ADDED) for field in again["fields"]] == [None, None, True, True]
    assert again["fields"][0]["type"] == "long"


@pytest.mark.parametrize(
    ("known", "wanted", "message"),
    [
        (struct(a="long", b="long"), struct(a="long"), "b: .* has long, .* wants no such field"),
        (struct(a="long"), struct(b="long"), "a: .* has long, .* wants no such field"),
        (struct(), struct(a="long not null"), "a: .* no such field, .* long not null"),
        (struct(a="long"), struct(a="integer"), "a: the job's state has long, .* wants integer"),
        (struct(a="integer"), struct(a="double"), "a: .* integer, .* double"),
        (struct(a="double"), struct(a="float"), "a: .* double, .* float"),
        (struct(a="long"), struct(a="long not null"), "a: .* long, .* long not null"),
        (struct(a="date"), struct(a="timestamp"), "a: .* date, .* timestamp"),
        (struct(a="decimal(5,1)"), struct(a="decimal(4,1)"), r"a: .* decimal\(4,1\)"),
        (struct(a="decimal(5,1)"), struct(a="decimal(6,2)"), r"a: .* decimal\(6,2\)"),
        (struct(a="string"), struct(a=array("string")), "a: .* string, .* array"),
        (struct(a=struct()), struct(a=array("long")), "a: .* struct, .* array"),
        (struct(a=struct(b="long")), struct(a=struct(b="byte")), r"a\.b: .* long, .* byte"),
        (struct(a=array("long")), struct(a=array("byte")), r"a\.element: .* long, .* byte"),
        (
            struct(a=array("long")),
            struct(a=array("long", contains_null=False)),
            r"a\.element: .* long, .* long not null",
        ),
        (
            struct(a=mapping("byte", "long")),
            struct(a=mapping("byte", "byte")),
            r"a\.value: .* long, .* byte",
        ),
        (
            struct(a=mapping("byte", "byte")),
            struct(a=mapping("long", "byte")),
            "a: .* map of byte, .* map of long",
        ),
    ],
)
def test_what_could_lose_values_is_refused_by_variable_and_field(
    known: dict[str, Any], wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=rf"state variable x, field {message}.*\. Allowed are"):
        merge(known, wanted, name="x")


def test_fields_of_one_name_are_refused_rather_than_mixed_up() -> None:
    twice = {"fields": [named("a", "long", nullable=True), named("a", "long", nullable=True)]}
    with pytest.raises(BadInputError, match="two fields are named a"):
        merge(twice, struct(a="long"), name="x")


def test_a_value_that_was_cut_is_not_taken_for_an_old_one() -> None:
    wanted = struct(c="long", a="long", b="long")
    layout = merge(struct(a="long", b="long"), wanted, name="x")
    coder = TupleCodec(wanted, name="x", layout=layout)
    for names in ("a", "abcd"):
        data = TupleCodec(struct(**dict.fromkeys(names, "long")), name="x").encode(
            (1,) * len(names)
        )
        with pytest.raises(CorruptSegmentError, match="2 to 3 expected"):
            coder.decode(data)


def test_state_is_read_and_written_in_the_order_of_the_processors_schema(
    committed: DictState,
) -> None:
    first = struct(n="integer", s=struct(x="integer"))
    later = struct(s=struct(y="string", x="long"), n="integer")
    key = (0, b"\x91\x01")
    overlay = Overlay(committed)
    spec = VariableSpec(name="v", kind="value", value_schema=first, state_id=0)
    handle = StateHandle({"v": spec}, overlay, row_factory=Row)
    value: Any = handle.getValueState("v", first)
    handle.set_key(*key)
    value.update((1, (2,)))
    committed.apply(overlay.changes())
    declaration = StateDeclaration(name="v", kind="value", value_schema=later)
    spec = VariableSpec.of(declaration, 0, merge(first, later, name="v"))
    handle = StateHandle({"v": spec}, Overlay(committed), row_factory=Row)
    value = handle.getValueState("v", later)
    handle.set_key(*key)
    assert value.get() == (Row(y=None, x=2), 1)
    assert value.get()[0].x == 2
    value.update((Row(y="new", x=2**40), 5))
    assert value.get() == (Row(y="new", x=2**40), 5)
    with pytest.raises(BadInputError, match=r"state variable v, field s\.x: expected long"):
        value.update((Row(y="new", x=1.0), 5))
