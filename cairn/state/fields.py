"""How fields of a schema, nested ones too, are checked and kept in msgpack."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from cairn.errors import BadInputError
from cairn.state.evolution import Schema, arrangement
from cairn.state.scalars import MismatchError, Scalar, plain, scalar

RowFactory = Callable[..., Callable[..., tuple[Any, ...]]]
"""Makes rows of named fields: `row_factory(*names)(*values)`, as `pyspark.sql.Row` does."""

_pack = msgspec.msgpack.Encoder().encode


class Field(NamedTuple):
    """How one field is written, read and shown; None passes through each function.

    A `read` or `show` of None means the kept value as it is. `scalar` is None for nested types.
    """

    name: str
    nullable: bool
    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None
    show: Callable[[Any], Any] | None
    scalar: Scalar | None = None


class FieldCompiler:
    """Makes Fields of a schema. `subject` says in messages whose schema it is."""

    def __init__(self, subject: str, row_factory: RowFactory | None) -> None:
        self._subject = subject
        self._row_factory = row_factory

    def fields(self, schema: Schema, layout: Schema, path: str = "") -> list[Field]:
        """Returns the fields of a struct's JSON value, in its order.

        `layout` tells how structs in it are stored: see `cairn.state.evolution`.

        Raises:
            BadInputError: a field has a type that state cannot hold.
        """
        kept_types = {field["name"]: field["type"] for field in layout["fields"]}
        return [
            self._field(
                field["name"],
                field["type"],
                kept_types[field["name"]],
                nullable=field["nullable"],
                path=f"{path}{field['name']}",
                metadata=field.get("metadata") or {},
            )
            for field in schema["fields"]
        ]

    def _field(
        self,
        name: str,
        data_type: str | Schema,
        kept_type: str | Schema,
        *,
        nullable: bool,
        path: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> Field:
        # Keys are compared as bytes, and such strings are equal with other bytes.
        if metadata and "__COLLATIONS" in metadata:
            raise self._unsupported(path, "a string with a collation")
        if isinstance(data_type, str):
            return self._scalar_field(name, data_type, nullable=nullable, path=path)
        makers = {"struct": self._struct, "array": self._array, "map": self._map}
        maker = makers.get(data_type["type"])
        if maker is None:
            raise self._unsupported(path, data_type["type"])
        write, read, show = maker(data_type, cast(Schema, kept_type), path)
        checked = self._checked(path, data_type["type"], write, nullable=nullable)
        return Field(name, nullable, checked, _passing_none(read), _passing_none(show))

    def _scalar_field(self, name: str, type_name: str, *, nullable: bool, path: str) -> Field:
        found = scalar(type_name)
        if found is None:
            raise self._unsupported(path, type_name)
        return Field(
            name,
            nullable,
            self._checked(path, type_name, found.write, nullable=nullable),
            found.read and _passing_none(found.read),
            found.show and _passing_none(found.show),
            found,
        )

    def _checked(
        self, path: str, expected: str, write: Callable[[Any], Any], *, nullable: bool
    ) -> Callable[[Any], Any]:
        subject = self._subject
        kind = expected if nullable else f"{expected} not null"

        def write_field(value: object) -> object:
            if value is None:
                if nullable:
                    return None
                raise BadInputError(f"{subject}, field {path}: expected {kind}, found null")
            try:
                return write(value)
            except MismatchError as error:
                found = f"{type(value).__name__} {reprlib.repr(value)}"
                raise BadInputError(
                    f"{subject}, field {path}: expected {kind}, found {found}"
                ) from error

        return write_field

    def _struct(
        self, data_type: Schema, kept_type: Schema, path: str
    ) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
        fields = self.fields(data_type, kept_type, f"{path}.")
        arranged = arrangement(data_type, kept_type)
        names = [field.name for field in fields]
        writes = [field.write for field in fields]
        reads = [field.read for field in fields]
        make = self._row_factory(*names) if self._row_factory else None

        def write(value: object) -> list[Any]:
            if isinstance(value, dict):
                # Not dropped: a misspelt field would be lost in silence.
                if not value.keys() <= set(names):
                    raise MismatchError
                value = [value.get(name) for name in names]
            if not isinstance(value, tuple | list) or len(value) != len(writes):
                raise MismatchError
            written = [write(item) for write, item in zip(writes, value, strict=True)]
            return arranged.to_layout(written) if arranged else written

        def read(kept: list[Any]) -> tuple[Any, ...]:
            values = read_all(reads, arranged.to_schema(kept) if arranged else kept)
            return make(*values) if make else values

        def show(kept: list[Any]) -> dict[str, Any]:
            return show_all(fields, arranged.to_schema(kept) if arranged else kept)

        return write, read, show

    def _array(
        self, data_type: Schema, kept_type: Schema, path: str
    ) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
        nullable = data_type["containsNull"]
        element = self._field(
            "element",
            data_type["elementType"],
            kept_type["elementType"],
            nullable=nullable,
            path=f"{path}.element",
        )
        write_element, read, show = element.write, element.read, element.show

        def write(value: object) -> list[Any]:
            if not isinstance(value, list | tuple):
                value = plain(value)
            if not isinstance(value, list | tuple):
                raise MismatchError
            return [write_element(item) for item in value]

        return (
            write,
            lambda kept: [read(item) for item in kept] if read else kept,
            lambda kept: [show(item) for item in kept] if show else kept,
        )

    def _map(
        self, data_type: Schema, kept_type: Schema, path: str
    ) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
        # Such a key is a list or a dict in Python, which no dict can have as a key.
        if _has_collection(data_type["keyType"]):
            raise self._unsupported(path, "a map whose key holds an array or a map")
        key_type = data_type["keyType"]
        key = self._field("key", key_type, key_type, nullable=False, path=f"{path}.key")
        value = self._field(
            "value",
            data_type["valueType"],
            kept_type["valueType"],
            nullable=data_type["valueContainsNull"],
            path=f"{path}.value",
        )
        reads = [key.read, value.read]
        write_key, write_value = key.write, value.write

        def write(found: object) -> list[Any]:
            if not isinstance(found, dict):
                raise MismatchError
            # Sorted, so that equal maps have equal bytes.
            return sorted(
                ([write_key(k), write_value(v)] for k, v in found.items()),
                key=lambda pair: _pack(pair[0]),
            )

        def show(kept: list[list[Any]]) -> object:
            pairs = [show_all([key, value], pair) for pair in kept]
            # JSON has no other keys of objects.
            if all(isinstance(pair[0], str) for pair in kept):
                return {pair["key"]: pair["value"] for pair in pairs}
            return pairs

        return write, lambda kept: dict(read_all(reads, pair) for pair in kept), show

    def _unsupported(self, path: str, type_name: str) -> BadInputError:
        return BadInputError(
            f"{self._subject}, field {path}: state cannot hold {type_name}. Use another type"
        )


def read_all(reads: list[Callable[[Any], Any] | None], kept: list[Any]) -> tuple[Any, ...]:
    """Returns the Python values of kept fields.

    Raises:
        ValueError: there are not as many as the schema has fields.
    """
    return tuple([read(item) if read else item for read, item in zip(reads, kept, strict=True)])


def show_all(fields: list[Field], kept: list[Any]) -> dict[str, Any]:
    """Returns the JSON values of kept fields by field name.

    Raises:
        ValueError: there are not as many as the schema has fields.
    """
    return {
        field.name: field.show(item) if field.show else item
        for field, item in zip(fields, kept, strict=True)
    }


def _passing_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda kept: None if kept is None else convert(kept)


def _has_collection(data_type: str | Mapping[str, Any]) -> bool:
    if isinstance(data_type, str):
        return False
    if data_type["type"] == "struct":
        return any(_has_collection(field["type"]) for field in data_type["fields"])
    return True
