"""The plain values that name bytes in storage and what they are for."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.keygroups import KeyGroupRange
from metastore.enums import Scope, SegmentKind


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """A directory that one subtask or one task manager owns, to be given up whole (FLIP-306 4.3).

    `path` is its key below the job's storage. A subtask's has `subtask` and `parallelism`, a task
    manager's has `tm_id`.
    """

    path: str
    scope: Scope
    subtask: int | None = None
    parallelism: int | None = None
    tm_id: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """One contiguous byte range of a physical file, written by one subtask for one purpose.

    `path` is the physical file's key below the job's storage, `offset` and `size_bytes` the range
    in it, `sha256` the hex digest of exactly those bytes. The segment brings a restore to the
    state of checkpoint `as_of_checkpoint` in its `key_groups`; it is part of checkpoint c iff
    `first_checkpoint <= c` and (`released_checkpoint` is None or `c < released_checkpoint`).
    `sequence_number` is its place among the changelog segments of a subtask in one checkpoint. One
    of an exclusive kind is released at the checkpoint after its own from the start.
    """

    segment_id: str
    kind: SegmentKind
    path: str
    offset: int
    size_bytes: int
    sha256: str
    key_groups: KeyGroupRange
    entries: int
    first_checkpoint: int
    as_of_checkpoint: int
    released_checkpoint: int | None = None
    sequence_number: int = 0
