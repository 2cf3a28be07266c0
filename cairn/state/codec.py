"""Tuples of state as msgpack bytes, checked against their Spark schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import CodeType
from typing import Any, cast

import msgspec

from cairn.errors import BadInputError
from cairn.state.evolution import UNREADABLE, Arrangement, arrangement, reading, unreadable
from cairn.state.fields import Field, FieldCompiler, RowFactory, read_all, show_all
from cairn.state.scalars import Scalar

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list).decode
_NOT_TUPLES = (str, bytes, bytearray, dict, set, frozenset)


class TupleCodec:
    """Encodes and decodes the tuples of one schema. Equal tuples have equal bytes.

    `schema` is a StructType's JSON value, `name` says in messages what is encoded, for example
    "state variable count". Nested structs decode to tuples, or to rows of `row_factory`. `layout`
    is what `cairn.state.evolution.merge` returned for the schema, None for the schema itself.
    With `takes_text`, text stands for a tuple of one field.

    Attributes:
        encode: takes a tuple, a row or a list, by position, and returns its bytes. Raises
            BadInputError if it does not fit the schema, TypeError for None and other values that
            are no sequence of fields, as Spark does.
        decode: returns the tuple that was encoded. Raises CorruptSegmentError for other bytes.
        make_row: makes a row of a decoded tuple by `row_factory`; None without one.

    Raises:
        BadInputError: a field has a type that state cannot hold.
        CorruptSegmentError: the layout is none.
    """

    __slots__ = (
        "_arranged",
        "_fields",
        "_name",
        "_takes_text",
        "decode",
        "encode",
        "field_names",
        "make_row",
    )

    encode: Callable[[tuple[Any, ...]], bytes]
    decode: Callable[[bytes], tuple[Any, ...]]
    make_row: Callable[..., tuple[Any, ...]] | None

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        name: str,
        row_factory: RowFactory | None = None,
        layout: Mapping[str, Any] | None = None,
        takes_text: bool = False,
    ) -> None:
        layout = layout or schema
        self._name = name
        with reading(f"the layout of {name}"):
            self._arranged = arrangement(schema, layout)
            self._fields = FieldCompiler(name, row_factory).fields(schema, layout)
        self._takes_text = takes_text and len(self._fields) == 1
        self.field_names = tuple(field.name for field in self._fields)
        self.make_row = row_factory(*self.field_names) if row_factory else None
        exact = [field.scalar for field in self._fields if field.scalar and field.scalar.exact]
        # Most schemas: msgpack's values are the tuple's own, so no loop in Python.
        if len(exact) == len(self._fields) and self._arranged is None:
            self.encode = _exact_encoder(self._fields, self._encode_checked)
            kinds = tuple[tuple(cast(Any, kind.exact) | None for kind in exact)]  # type: ignore[misc, valid-type]
            self.decode = _checked(msgspec.msgpack.Decoder(kinds).decode, name)
        else:
            self.encode = self._encode_checked
            self.decode = _checked(_decoder(self._fields, self._arranged), name)

    def to_json(self, data: bytes) -> dict[str, Any]:
        """Returns an encoded tuple as JSON values by field name.

        Dates and times are ISO text (timestamps in UTC), decimals and intervals text, binary
        base64 text, maps objects if their keys are strings, else lists of key and value. Floats
        that JSON lacks are text: nan, inf, -inf.
        """
        with reading(f"a value of {self._name}"):
            kept = _unpack(data)
            return show_all(
                self._fields, self._arranged.to_schema(kept) if self._arranged else kept
            )

    def _encode_checked(self, value: Iterable[object]) -> bytes:
        if self._takes_text and isinstance(value, str):
            value = (value,)
        # Text and dicts can be iterated too, and would be taken for tuples of their parts.
        if isinstance(value, _NOT_TUPLES):
            raise BadInputError(
                f"{self._name}: expected a tuple ({', '.join(self.field_names)}), "
                f"found a {type(value).__name__}"
            )
        values = tuple(value)
        if len(values) != len(self._fields):
            raise BadInputError(
                f"{self._name}: expected {len(self._fields)} fields "
                f"({', '.join(self.field_names)}), found {len(values)}"
            )
        written = [field.write(item) for field, item in zip(self._fields, values, strict=True)]
        return _pack(self._arranged.to_layout(written) if self._arranged else written)


def _checked(
    decode: Callable[[bytes], tuple[Any, ...]], name: str
) -> Callable[[bytes], tuple[Any, ...]]:
    def checked(data: bytes) -> tuple[Any, ...]:
        # Not `reading`: a context manager costs more than most values.
        try:
            return decode(data)
        except UNREADABLE as error:
            raise unreadable(f"a value of {name}", error) from error

    return checked


def _decoder(
    fields: list[Field], arranged: Arrangement | None
) -> Callable[[bytes], tuple[Any, ...]]:
    reads = [field.read for field in fields]
    if arranged is None:
        return lambda data: read_all(reads, _unpack(data))
    to_schema = arranged.to_schema
    return lambda data: read_all(reads, to_schema(_unpack(data)))


def _exact_encoder(
    fields: list[Field], encode_checked: Callable[[Any], bytes]
) -> Callable[[Any], bytes]:
    """Returns an encoder for tuples that msgpack keeps as they are; others it leaves to the given.

    It is generated, as namedtuple's methods are: a loop over the fields takes twice the time.
    """
    names = [f"v{i}" for i in range(len(fields))]
    checks = [_exact_check(name, field) for name, field in zip(names, fields, strict=True)]
    source = f"""
def encode(value):
    if type(value) is tuple and len(value) == {len(fields)}:
        ({"".join(f"{name}, " for name in names)}) = value
        if {" and ".join(checks) or "True"}:
            try:
                return pack(value)
            except UnicodeEncodeError:
                pass
    return encode_checked(value)
"""
    scope: dict[str, Any] = {"pack": _pack, "encode_checked": encode_checked}
    exec(_compiled(source), scope)  # noqa: S102 - made of type names and numbers only
    return cast(Callable[[Any], bytes], scope["encode"])


@cache
def _compiled(source: str) -> CodeType:
    """Returns the code: a task makes the same codecs for each of its subtasks."""
    return compile(source, "<tuple encoder>", "exec")


def _exact_check(name: str, field: Field) -> str:
    kind = cast(Scalar, field.scalar)
    if kind.exact is type(None):
        return f"{name} is None" if field.nullable else "False"
    check = f"type({name}) is {cast(type, kind.exact).__name__}"
    if kind.low is not None:
        check += f" and {kind.low} <= {name} <= {kind.high}"
    return f"({check} or {name} is None)" if field.nullable else f"({check})"
