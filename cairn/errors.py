"""Every error Cairn raises, in one tree.

CairnError
├── BadInputError            what the caller gave is wrong; nothing was changed
├── StoreFailedError         a store failed; the same call may succeed later (retryable)
│   ├── StorageError         the object store or the local disk
│   │   └── DamagedStateError    local state is not what was written; it is rebuilt
│   └── MetastoreError       Postgres
├── RefusedError             refused to keep state safe; never retried
│   └── FencedError          a newer run of the job has taken over
├── ReplacedError            what a change stands on was replaced meanwhile; make it anew
├── CorruptSegmentError      bytes read back are not the bytes that were written
└── OutcomeUnknownError      the call may or may not have taken effect; look before trying again
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from cairn.printable import printable

__all__ = [
    "BadInputError",
    "CairnError",
    "CorruptSegmentError",
    "DamagedStateError",
    "FencedError",
    "MetastoreError",
    "OutcomeUnknownError",
    "RefusedError",
    "ReplacedError",
    "StorageError",
    "StoreFailedError",
    "cause_of",
]

# A text of several lines ends before Java's stack, or the next exception.
_RAISED = re.compile(
    r"^\s*cairn\.errors\.(?P<name>\w+): (?P<text>.*?)(?=\n\tat |\n\n|\s*\Z)",
    re.MULTILINE | re.DOTALL,
)
_TEXT = re.compile(
    r"(?P<message>.*?) \[(?=job |checkpoint |file |offset )(?:job (?P<job>.*?))?"
    r"(?:(?:, |(?<=\[))checkpoint (?P<checkpoint>\d+))?"
    r"(?:(?:, |(?<=\[))file (?P<file>.*?))?"
    r"(?:(?:, |(?<=\[))offset (?P<offset>\d+))?\]",
    re.DOTALL,
)


class CairnError(Exception):
    """Root of all errors. Names its subject: job, checkpoint, file and offset, where known."""

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        job: str | None = None,
        checkpoint: int | None = None,
        file: str | None = None,
        offset: int | None = None,
    ) -> None:
        self.message = message
        self.job = job
        self.checkpoint = checkpoint
        self.file = file
        self.offset = offset
        facts = {"job": job, "checkpoint": checkpoint, "file": file, "offset": offset}
        known = {name: value for name, value in facts.items() if value is not None}
        # Escaped, as of names and paths that others may have made.
        about = printable(", ".join(f"{name} {value}" for name, value in known.items()))
        text = printable(message, lines=True)
        # The facts in the text as well: Spark shows no more of a task's error.
        super().__init__(f"{text} [{about}]" if about else text)


class BadInputError(CairnError, ValueError):
    """What the caller gave cannot be used: an unknown option, a wrong type, a changed schema."""


class StoreFailedError(CairnError):
    """A store failed; the same call may succeed later."""

    retryable = True


class StorageError(StoreFailedError):
    """The object store or the local disk failed."""


class DamagedStateError(StorageError):
    """Local state is not what was written to it; it is rebuilt from storage."""


class MetastoreError(StoreFailedError):
    """Postgres could not be reached or gave up for `cairn.metastore.timeout`."""


class RefusedError(CairnError):
    """Refused because continuing could lose or mix up state. A retry does not help."""


class FencedError(RefusedError):
    """A newer run of the job has taken over; this one changes nothing any more."""


class ReplacedError(CairnError):
    """Somebody else has replaced what a change was made from, so it was not made.

    Nothing has failed: the same call makes it from what is there now.
    """

    retryable = True


class CorruptSegmentError(CairnError):
    """A segment's bytes do not match the checksum recorded for it, or cannot be decoded."""


class OutcomeUnknownError(CairnError):
    """The connection broke while a change was being made; it may have taken effect."""


def cause_of(error: BaseException) -> CairnError | None:
    """Returns the Cairn error that an exception was raised from, or whose text it has.

    A query ends with an exception of Spark's, which has the error of a task as the text of a Python
    traceback: the error is made again from that. None if there is none.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, CairnError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    classes = {kind.__name__: kind for kind in _all_of(CairnError)}
    found = [one for one in _RAISED.finditer(str(error)) if one["name"] in classes]
    # The last one: a traceback ends with the error that was raised, after those it was raised from.
    return _made_again(classes[found[-1]["name"]], found[-1]["text"]) if found else None


def _all_of(kind: type[CairnError]) -> list[type[CairnError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _all_of(child))]


def _made_again(kind: type[CairnError], text: str) -> CairnError:
    about = _TEXT.fullmatch(text)
    if about is None:
        return kind(text)
    return kind(
        about["message"],
        job=about["job"],
        checkpoint=None if about["checkpoint"] is None else int(about["checkpoint"]),
        file=about["file"],
        offset=None if about["offset"] is None else int(about["offset"]),
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a question with a space at its end about the closest known word; "" without one."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? " if close else ""
