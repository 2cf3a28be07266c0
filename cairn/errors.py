"""Every error Cairn raises, in one tree.

CairnError
├── BadInputError            what the caller gave is wrong; nothing was changed
├── StoreFailedError         a store failed; the same call may succeed later (retryable)
│   ├── StorageError         the object store or the local disk
│   └── MetastoreError       Postgres
├── RefusedError             refused to keep state safe; never retried
│   └── FencedError          a newer run of the job has taken over
├── CorruptSegmentError      bytes read back are not the bytes that were written
└── OutcomeUnknownError      the call may or may not have taken effect; look before trying again
"""

from __future__ import annotations

__all__ = [
    "BadInputError",
    "CairnError",
    "CorruptSegmentError",
    "FencedError",
    "MetastoreError",
    "OutcomeUnknownError",
    "RefusedError",
    "StorageError",
    "StoreFailedError",
]


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
        about = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        # The facts in the text as well: Spark shows no more of a task's error.
        super().__init__(f"{message} [{about}]" if about else message)


class BadInputError(CairnError, ValueError):
    """What the caller gave cannot be used: an unknown option, a wrong type, a changed schema."""


class StoreFailedError(CairnError):
    """A store failed; the same call may succeed later."""

    retryable = True


class StorageError(StoreFailedError):
    """The object store or the local disk failed."""


class MetastoreError(StoreFailedError):
    """Postgres could not be reached or gave up for `cairn.metastore.timeout`."""


class RefusedError(CairnError):
    """Refused because continuing could lose or mix up state. A retry does not help."""


class FencedError(RefusedError):
    """A newer run of the job has taken over; this one changes nothing any more."""


class CorruptSegmentError(CairnError):
    """A segment's bytes do not match the checksum recorded for it, or cannot be decoded."""


class OutcomeUnknownError(CairnError):
    """The connection broke while a change was being made; it may have taken effect."""
