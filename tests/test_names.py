"""Names that are declared can be stored, read back from a manifest, and printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError, CorruptSegmentError, StorageError
from cairn.manifest import decode, encode
from cairn.names import LONGEST_FIELD, LONGEST_NAME, check_fields, check_name, is_job_name, is_name
from cairn.printable import is_printable, printable
from cairn.settings import Settings
from cairn.state.handle import DeclaringHandle
from tests.savepoints.test_manifest_format import MANIFEST

UNPRINTABLE = {
    "NUL": "a\0b",
    "an escape": "\x1b[2J",
    "a line": "a\nb",
    "a separator": "a\u2028b",
    "a lone surrogate": "a\ud800",
    "right to left": "\u202etxt.exe",
    "C1": "\x9b2J",
}
TOO_LONG = "x" * 10_000


@pytest.mark.parametrize("name", ["", " ", "a\0b", "a\nb", "\ud800", "\x1b[2J", "a" * 256])
def test_a_name_that_cannot_be_stored_or_printed_is_no_jobs(name: str) -> None:
    assert not is_job_name(name)


@pytest.mark.parametrize("name", ["clicks", "Straße 7", "点击", "a/b 'c'", "a" * 255])
def test_any_other_text_is_a_jobs_name(name: str) -> None:
    assert is_job_name(name)


@pytest.mark.parametrize("name", [*UNPRINTABLE.values(), TOO_LONG], ids=[*UNPRINTABLE, "10 kB"])
def test_a_name_that_cannot_be_stored_or_printed_is_refused_when_it_is_declared(name: str) -> None:
    handle = DeclaringHandle(resolve)
    for declare in (
        lambda: handle.getValueState(name, "n long"),
        lambda: handle.getListState(name, "n long"),
        lambda: handle.getMapState(name, "k string", "n long"),
        lambda: handle.getOperatorListState(name, "n long"),
        lambda: handle.getUnionListState(name, "n long"),
        lambda: handle.deleteIfExists(name),
        lambda: handle.getValueState("n", struct(name)),
        lambda: handle.getValueState("n", struct("s", struct(name))),
    ):
        with pytest.raises(BadInputError, match="no control characters") as caught:
            declare()
        assert is_printable(str(caught.value))
        assert len(str(caught.value)) < 400


def resolve(schema: object) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else struct(str(schema).split()[0])


def struct(name: str, inner: object = "long") -> dict[str, object]:
    field = {"name": name, "type": inner, "nullable": True, "metadata": {}}
    return {"type": "struct", "fields": [field]}


@pytest.mark.parametrize("where", ["elementType", "keyType", "valueType"])
def test_names_inside_of_arrays_and_maps_are_checked(where: str) -> None:
    inside = {where: struct("a\0")}
    with pytest.raises(BadInputError, match="a field of the key"):
        check_fields("the key", struct("s", inside))
    check_fields("the key", struct("x" * LONGEST_FIELD, {where: struct("a")}))


@given(st.text(max_size=LONGEST_NAME).filter(is_name))
def test_every_name_that_may_be_declared_is_read_from_a_manifest(name: str) -> None:
    check_name("a state variable", name)
    manifest = replace(MANIFEST, variables=(replace(MANIFEST.variables[0], name=name),))
    assert decode(encode(manifest), file="chk") == manifest


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 1000])
def test_a_manifest_with_a_name_that_none_may_have_is_refused(name: str) -> None:
    manifest = replace(MANIFEST, variables=(replace(MANIFEST.variables[0], name=name),))
    with pytest.raises(CorruptSegmentError, match="a name that none may have"):
        decode(encode(manifest), file="chk")


@pytest.mark.parametrize("text", UNPRINTABLE.values(), ids=UNPRINTABLE)
def test_errors_escape_what_others_have_named(text: str) -> None:
    error = str(StorageError(f"no {text}", job=text, file=text))
    assert is_printable(error.replace("\n", ""))
    # Of an escaped line, only the error's own text has lines.
    assert error.count("\n") == text.count("\n")


@given(st.text(alphabet=st.characters()))
def test_escaped_text_is_printable_and_other_text_is_as_it_was(text: str) -> None:
    shown = printable(text)
    assert is_printable(shown)
    assert (shown == text) == is_printable(text)
    assert re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), shown) == re.sub(
        r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), text
    )


def test_a_local_directory_with_a_name_that_cannot_be_printed_is_refused() -> None:
    for text in UNPRINTABLE.values():
        with pytest.raises(BadInputError, match=re.escape("cairn.local-dir")):
            Settings.from_options({"cairn.local-dir": text})
