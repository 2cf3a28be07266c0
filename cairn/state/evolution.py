"""How the schema of a state variable's values may change while stored values stay readable.

Stored values keep fields by position. So a variable has a layout besides its schema: a schema's
JSON value in which every field has the place where it was first registered, with new ones at the
end, at every level of nesting. A layout field with ADDED was not there from the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from cairn.errors import BadInputError, CairnError, CorruptSegmentError

ADDED = "added"
"""Marks a layout's field that values from before do not have."""

Schema = Mapping[str, Any]
_Type = str | Mapping[str, Any]

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What msgpack and the types' own functions raise for something else than was written."""

_WIDER = {"byte": 0, "short": 1, "integer": 2, "long": 3}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_ALLOWED = (
    "Allowed are new nullable fields, another order of fields, byte to short to integer to long, "
    "float to double, a decimal of higher precision and the same scale, and null where it was not "
    "allowed. Keep the field as it was, or use a new variable name"
)


def merge(known: Schema, wanted: Schema, *, name: str) -> dict[str, Any]:
    """Returns the layout of a state variable whose processor now wants another schema.

    `known` is its layout so far, or its first schema, `wanted` the processor's schema. The result
    equals `known` if nothing changes.

    Raises:
        BadInputError: stored values could not be read by the wanted schema, or would lose fields.
        CorruptSegmentError: `known` is no layout.
    """
    with reading(f"the layout of state variable {name}"):
        return _Merge(name).struct(known, wanted, "")


def unreadable(what: str, error: Exception) -> CorruptSegmentError:
    """Returns the error for bytes or a layout that Cairn did not write."""
    return CorruptSegmentError(
        f"{what} cannot be read: {error!r}. Restore the metastore or the local state, or restore a "
        "checkpoint"
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Makes CorruptSegmentError of what reading something else than was written raises."""
    try:
        yield
    except CairnError:
        raise
    except UNREADABLE as error:
        raise unreadable(what, error) from error


class Arrangement:
    """Brings the values of one struct from the order of its schema to that of its layout, and back.

    Values that were stored before fields were added are returned with None for them.
    """

    __slots__ = ("_fewest", "_from_schema", "_most", "_to_schema")

    def __init__(self, schema: Schema, layout: Schema) -> None:
        names = [field["name"] for field in schema["fields"]]
        kept_names = [field["name"] for field in layout["fields"]]
        self._to_schema = [kept_names.index(name) for name in names]
        self._from_schema = [names.index(name) for name in kept_names]
        self._most = len(kept_names)
        self._fewest = sum(not field.get(ADDED) for field in layout["fields"])

    def to_layout(self, values: list[Any]) -> list[Any]:
        """Returns values in the order in which they are stored."""
        return [values[position] for position in self._from_schema]

    def to_schema(self, kept: list[Any]) -> list[Any]:
        """Returns stored values in the order of the schema.

        Raises:
            ValueError: there are more or fewer than there ever were.
        """
        if len(kept) != self._most:
            if not self._fewest <= len(kept) < self._most:
                raise ValueError(
                    f"{len(kept)} fields found, {self._fewest} to {self._most} expected"
                )
            # Stored before the last fields were added, which are at the end.
            kept = [*kept, *[None] * (self._most - len(kept))]
        return [kept[position] for position in self._to_schema]


def arrangement(schema: Schema, layout: Schema) -> Arrangement | None:
    """Returns how a struct's values are stored; None if they simply are, in order.

    `layout` is what `merge` returned for the schema, or a part of both.
    """
    before, after = layout["fields"], schema["fields"]
    in_order = [field["name"] for field in before] == [field["name"] for field in after]
    if in_order and not any(field.get(ADDED) for field in before):
        return None
    return Arrangement(schema, layout)


class _Merge:
    def __init__(self, name: str) -> None:
        self._name = name

    def struct(self, known: Schema, wanted: Schema, path: str) -> dict[str, Any]:
        before = self._by_name(known, path)
        after = self._by_name(wanted, path)
        fields = []
        for name, field in before.items():
            if name not in after:
                raise self._refused(f"{path}{name}", _described(field), "no such field")
            fields.append(self._field(field, after[name], f"{path}{name}"))
        for name in [name for name in after if name not in before]:
            field = after[name]
            # Values from before do not have it, and nothing says what they would have.
            if not field["nullable"]:
                raise self._refused(f"{path}{name}", "no such field", _described(field))
            fields.append({**field, ADDED: True})
        return {**wanted, "fields": fields}

    def _field(self, known: Schema, wanted: Schema, path: str) -> dict[str, Any]:
        if known["nullable"] and not wanted["nullable"]:
            raise self._refused(path, _described(known), _described(wanted))
        merged = {**wanted, "type": self._type(known["type"], wanted["type"], path)}
        return merged | {ADDED: True} if known.get(ADDED) else merged

    def _type(self, known: _Type, wanted: _Type, path: str) -> _Type:
        if isinstance(known, str) or isinstance(wanted, str):
            if known == wanted or _widens(known, wanted):
                return wanted
        elif known["type"] == wanted["type"] == "struct":
            return self.struct(known, wanted, f"{path}.")
        elif known["type"] == wanted["type"] == "array":
            return self._element(known, wanted, "elementType", "containsNull", f"{path}.element")
        elif known["type"] == wanted["type"] == "map" and known["keyType"] == wanted["keyType"]:
            return self._element(known, wanted, "valueType", "valueContainsNull", f"{path}.value")
        raise self._refused(path, _type_name(known), _type_name(wanted))

    def _element(
        self, known: Schema, wanted: Schema, of: str, nullable: str, path: str
    ) -> dict[str, Any]:
        before = {"type": known[of], "nullable": known[nullable]}
        after = {"type": wanted[of], "nullable": wanted[nullable]}
        return {**wanted, of: self._field(before, after, path)["type"]}

    def _by_name(self, schema: Schema, path: str) -> dict[str, Schema]:
        names = [field["name"] for field in schema["fields"]]
        for name in names:
            if names.count(name) > 1:
                raise BadInputError(
                    f"state variable {self._name}: two fields are named {path}{name}; a schema may "
                    "change only while its fields have different names"
                )
        return {field["name"]: field for field in schema["fields"]}

    def _refused(self, path: str, known: str, wanted: str) -> BadInputError:
        return BadInputError(
            f"state variable {self._name}, field {path}: the job's state has {known}, the "
            f"processor wants {wanted}. {_ALLOWED}"
        )


def _widens(known: _Type, wanted: _Type) -> bool:
    if not isinstance(known, str) or not isinstance(wanted, str):
        return False
    if known in _WIDER and wanted in _WIDER:
        # Never narrower: a stored value may not fit.
        return _WIDER[known] < _WIDER[wanted]
    before, after = _DECIMAL.fullmatch(known), _DECIMAL.fullmatch(wanted)
    if before and after:
        # The same scale, as values are stored as text of that scale.
        return int(before[1]) < int(after[1]) and before[2] == after[2]
    return (known, wanted) == ("float", "double")


def _described(field: Schema) -> str:
    return _type_name(field["type"]) + ("" if field["nullable"] else " not null")


def _type_name(data_type: _Type) -> str:
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "map":
        return f"map of {_type_name(data_type['keyType'])}"
    name: str = data_type["type"]
    return name
