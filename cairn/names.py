"""The one place that says which names there may be: of jobs, state variables, fields and pins.

What is declared has to fit into the metastore, a manifest and a line of a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from cairn.errors import BadInputError
from cairn.printable import is_printable

LONGEST_NAME = 255
"""Characters of the name of a job, a state variable or a pin."""
LONGEST_FIELD = 2_000
"""Characters of a field's name, which Spark may have made of an expression."""


def is_name(name: str, longest: int = LONGEST_NAME) -> bool:
    """Tells whether something may have a name: short, and all of it can be stored and printed."""
    return len(name) <= longest and is_printable(name)


def is_job_name(name: str) -> bool:
    """Tells whether a job may have a name: one that is not blank, too."""
    return bool(name.strip()) and is_name(name)


def check_job_name(name: object) -> None:
    """Refuses a name that no job may have.

    Raises:
        BadInputError: it is blank, or see `check_name`.
    """
    if not isinstance(name, str) or not is_job_name(name):
        raise BadInputError(
            f"a job's name is 1 to {LONGEST_NAME} printable characters, not {name!r:.80}"
        )


def check_name(what: str, name: object, longest: int = LONGEST_NAME) -> None:
    """Refuses a name that could not be stored or printed. `what` says whose it is.

    Raises:
        BadInputError: it is no text, too long, or has control characters, lone surrogates or marks
            that change the direction of text.
    """
    if not isinstance(name, str) or not is_name(name, longest):
        found = f"one of {len(name)} characters, {name!a:.80}" if isinstance(name, str) else name
        raise BadInputError(
            f"the name of {what} has at most {longest} characters, and no control characters; "
            f"found {found}. Choose another"
        )


def check_fields(what: str, schema: object) -> None:
    """Refuses names of fields in a schema, a StructType's JSON value, and in structs inside it.

    Raises:
        BadInputError: see `check_name`.
    """
    if not isinstance(schema, Mapping):
        return
    for field in schema.get("fields", ()):
        check_name(f"a field of {what}", field["name"], LONGEST_FIELD)
        check_fields(what, field["type"])
    for inside in ("elementType", "keyType", "valueType"):
        check_fields(what, schema.get(inside))
