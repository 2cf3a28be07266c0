"""Who owns a job's root: the bytes of an owner object, and what they mean to a metastore."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cairn.errors import CorruptSegmentError, RefusedError

_VERSION = 1

_Id = Annotated[int, Meta(ge=1, le=2**62)]
_Uuid = Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_Word = Annotated[str, Meta(max_length=200, pattern="^[!-~]*$")]


@dataclass(frozen=True, slots=True)
class _Head:
    form: Literal["cairn-owner"]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The content of an owner object: which metastore made the root its own, and when."""

    metastore_id: _Uuid
    database_id: _Word
    timeline: _Id
    generation: _Id
    ownership_id: _Uuid
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The newest time that this metastore set out to own a root.

    `is_written` tells whether the owner object of it was in storage.
    """

    generation: int
    ownership_id: str
    database_id: str
    timeline: int
    since: datetime
    is_written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFacts:
    """What this metastore knows about itself and about a job's root.

    `ownership` is the newest one, `written_generation` the newest of those that were written, 0
    without one.
    """

    metastore_id: str
    database_id: str
    timeline: int
    job: str
    job_id: str
    storage: str
    next_checkpoint_id: int
    ownership: Ownership | None
    written_generation: int


class Standing(Enum):
    """What the newest owner object of a root means to this metastore."""

    OWNED = auto()
    UNOWNED = auto()
    """There is none, and this metastore has written none."""
    UNFINISHED = auto()
    """This metastore set out to own it, and its object is not there yet."""
    MISSING = auto()
    """An object that this metastore has written is not there: it is another storage."""
    FOREIGN = auto()
    """It is another metastore's, or that of a copy."""
    OTHER_TIMELINE = auto()
    """It is this metastore's, of another history: transactions may have been lost since."""


def standing(facts: OwnFacts, owner: Owner | None) -> Standing:
    """Returns what the newest owner object of a root means; None: there is none."""
    mine = facts.ownership
    if owner is not None and mine is not None and owner.ownership_id == mine.ownership_id:
        # A copy of the database has the same rows, so they do not tell it from this one.
        if owner.database_id != facts.database_id:
            return Standing.FOREIGN
        return Standing.OWNED if owner.timeline == facts.timeline else Standing.OTHER_TIMELINE
    found = 0 if owner is None else owner.generation
    if found < facts.written_generation:
        return Standing.MISSING
    if owner is None:
        is_begun = mine is not None and mine.database_id == facts.database_id
        return Standing.UNFINISHED if is_begun else Standing.UNOWNED
    if mine is None or found >= mine.generation or not _is_own(owner, facts):
        return Standing.FOREIGN
    # A take-over that was begun is finished by another one only, where that is what it was for.
    return Standing.UNFINISHED if owner.timeline == facts.timeline else Standing.OTHER_TIMELINE


def _is_own(owner: Owner, facts: OwnFacts) -> bool:
    """Tells whether this metastore wrote an owner object; one that is alike may have others."""
    return (owner.metastore_id, owner.database_id, owner.generation) == (
        facts.metastore_id,
        facts.database_id,
        facts.written_generation,
    )


def encode(owner: Owner) -> bytes:
    """Returns the bytes of an owner object."""
    head = msgspec.to_builtins(_Head("cairn-owner", _VERSION))
    return msgspec.json.encode(head | msgspec.to_builtins(owner)) + b"\n"


def decode(data: bytes, *, file: str) -> Owner:
    """Returns what is in an owner object's bytes; `file` names it in errors.

    Raises:
        CorruptSegmentError: the bytes are not those of an owner object.
        RefusedError: a newer Cairn wrote it.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        owner = msgspec.json.decode(data, type=Owner) if head.version == _VERSION else None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptSegmentError(
            f"the owner object cannot be read: {error}. Put back its original bytes, or have the "
            "metastore that is to own the job write the next one: `cairn metastore take-over JOB`",
            file=file,
        ) from error
    if owner is None:
        raise RefusedError(
            f"the owner object has version {head.version}, this Cairn reads {_VERSION}: use the "
            "Cairn that wrote it, or a newer one",
            file=file,
        )
    return owner
